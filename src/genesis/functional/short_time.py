"""Short-time Fourier transforms: spectrograms of signals, and signals of spectrograms. On the CPU only."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from genesis.autograd import Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.complex_numbers import complex, imag, real, require_device, view_as_real
from genesis.functional.conversion import cast
from genesis.functional.elementwise import div, mul
from genesis.functional.folding import fold
from genesis.functional.fourier import FFT, IRFFT, RFFT
from genesis.functional.joining import narrow
from genesis.functional.keywords import taking
from genesis.functional.padding import pad
from genesis.functional.shape import expand, reshape, transpose, unsqueeze
from genesis.functional.stacking import unfold_windows
from genesis.functional.unary import square
from genesis.ndarray import NDArray

__all__ = ["istft", "stft"]


@dataclass
class STFTArguments:
    """The arguments of `F.stft`, under PyTorch's names and in its order."""

    input: Tensor
    n_fft: int
    hop_length: int | None = None
    win_length: int | None = None
    window: Tensor | None = None
    center: bool = True
    pad_mode: str = "reflect"
    normalized: bool = False
    onesided: bool | None = None
    return_complex: bool | None = None
    align_to_window: bool | None = None


@dataclass
class ISTFTArguments:
    """The arguments of `F.istft`, under PyTorch's names and in its order."""

    input: Tensor
    n_fft: int
    hop_length: int | None = None
    win_length: int | None = None
    window: Tensor | None = None
    center: bool = True
    normalized: bool = False
    onesided: bool | None = None
    length: int | None = None
    return_complex: bool = False


@taking(STFTArguments)
def stft(given: STFTArguments) -> Tensor:
    """The short-time Fourier transform: the transform of each windowed frame of a signal.

    Args:
        given: PyTorch's arguments, by position or name: input, (N, L) or (L,), and n_fft, the length of a frame;
            hop_length from one frame to the next, n_fft // 4 by default; window, (win_length,), ones by default, filled
            with zeros on both sides up to n_fft; center: frames have their times in the middle, so that the signal is
            padded by n_fft // 2 in pad_mode; normalized: over √n_fft; onesided: half of the frequencies, the default of
            real signals; return_complex: to be given for real signals, False for pairs of real numbers.
    Returns: (N, frequencies, frames) or (frequencies, frames), complex.
    Raises: ValueError: return_complex is missing; lengths that don't fit. NotImplementedError: on a CUDA device, or
        align_to_window.
    Grad: input, window.
    Example: >>> genesis.stft(genesis.ones(8), 4, return_complex=True).shape
    (3, 9)
    """
    require_tensors("stft", input=given.input)
    require_device("stft", given.input)
    if given.align_to_window is not None:
        raise NotImplementedError(describe("stft", "align_to_window", "None", given.align_to_window))
    x = given.input
    if x.array.ndim not in (1, 2) or not x.array.dtype.is_differentiable:
        got = f"{x.array.dtype} of shape {x.array.shape}"
        raise ShapeError(describe("stft", "input", "a floating or complex signal (L,) or signals (N, L)", got))
    is_complex = any(part is not None and part.array.dtype.is_complex for part in (x, given.window))
    if given.return_complex is None and not is_complex:
        raise ValueError(describe("stft", "return_complex", "True or False, as the signal is real", None))
    window, hop = _window("stft", given)
    signals = x if x.array.ndim == 2 else unsqueeze(x, 0)
    if given.center:
        half = given.n_fft // 2
        padded = pad(unsqueeze(signals, 1), (half, half), given.pad_mode)
        signals = reshape(padded, (signals.shape[0], padded.shape[2]))
    if not 0 < given.n_fft <= signals.shape[-1]:
        raise ValueError(describe("stft", "n_fft", f"1 to {signals.shape[-1]}, the signal's length", given.n_fft))
    frames = mul(unfold_windows(signals, -1, given.n_fft, hop), window)
    scale = "sqrt" if given.normalized else "none"
    onesided = not is_complex if given.onesided is None else given.onesided
    if frames.array.dtype.is_complex:
        if onesided:
            raise ValueError(describe("stft", "onesided", "False, as the signal or the window is complex", onesided))
        found = FFT.apply(frames, dims=(2,), scale=scale, forward=True)
    else:
        found = RFFT.apply(frames, dims=(2,), scale=scale, onesided=onesided)
    found = transpose(found, 1, 2)
    found = found if x.array.ndim == 2 else reshape(found, found.shape[1:])
    return view_as_real(found) if given.return_complex is False else found


@taking(ISTFTArguments)
def istft(given: ISTFTArguments) -> Tensor:
    """The inverse of stft: frames are transformed back, windowed, added where they overlap, and divided by the sum of
    the squared windows.

    Args:
        given: PyTorch's arguments, by position or name: input, (N, frequencies, frames) or (frequencies, frames),
            complex; length: of the signal, by default what the frames cover; return_complex: of a complex signal, whose
            spectrogram has all frequencies; the others as in `F.stft`.
    Returns: (N, L) or (L,).
    Raises: ValueError: lengths that don't fit, or windows that leave a part of the signal out.
        DTypeError: input is not complex. NotImplementedError: on a CUDA device.
    Grad: input, window.
    Example: >>> x, window = genesis.arange(8.0), genesis.signal.windows.hann(4, sym=False)
    >>> genesis.istft(genesis.stft(x, 4, window=window, return_complex=True), 4, window=window).shape
    (8,)
    """
    require_tensors("istft", input=given.input)
    require_device("istft", given.input)
    x, n_fft = given.input, given.n_fft
    if not x.array.dtype.is_complex or x.array.ndim not in (2, 3) or not x.array.numel:
        got = f"{x.array.dtype} of shape {x.array.shape}"
        raise DTypeError(describe("istft", "input", "complex, (N, frequencies, frames)", got))
    window, hop = _window("istft", given)
    spectra = transpose(x if x.array.ndim == 3 else unsqueeze(x, 0), 1, 2)
    num_frames, num_frequencies = spectra.shape[1:]
    onesided = num_frequencies != n_fft if given.onesided is None else given.onesided
    if num_frequencies != (n_fft // 2 + 1 if onesided else n_fft):
        raise ValueError(describe("istft", "input", f"the frequencies of n_fft={n_fft}", num_frequencies))
    scale = "sqrt" if given.normalized else "size"
    if given.return_complex:
        if onesided:
            raise ValueError(describe("istft", "onesided", "False, as return_complex is True", True))
        frames = FFT.apply(spectra, dims=(2,), scale=scale, forward=False)
    else:
        half = narrow(spectra, 2, 0, n_fft // 2 + 1)
        frames = IRFFT.apply(half, dims=(2,), scale=scale, size=n_fft)
    whole = n_fft + hop * (num_frames - 1)
    signals = _added_up(mul(frames, window), hop, whole)
    weight = _added_up(expand(square(window), (1, num_frames, n_fft)), hop, whole)
    start = n_fft // 2 if given.center else 0
    end = whole - start if given.length is None else min(start + given.length, whole)
    signals, weight = (narrow(each, 1, start, max(end - start, 0)) for each in (signals, weight))
    if not float(weight.detach().abs().amin().item()) > 1e-11:
        raise ValueError(describe("istft", "window", "windows that overlap, with no zeros between", "a gap"))
    signals = div(signals, weight)
    missing = 0 if given.length is None else given.length - signals.shape[1]
    if missing > 0:
        warnings.warn("istft: the frames are shorter than length; the rest is filled with zeros", stacklevel=3)
        signals = pad(signals, (0, missing))
    return signals if x.array.ndim == 3 else reshape(signals, signals.shape[1:])


def _added_up(frames: Tensor, hop: int, length: int) -> Tensor:
    """Frames (N, frames, n) as signals (N, length), added where they overlap."""
    if frames.array.dtype.is_complex:
        return complex(_added_up(real(frames), hop, length), _added_up(imag(frames), hop, length))
    size = frames.shape[2]
    found = fold(transpose(frames, 1, 2), (1, length), (1, size), stride=(1, hop))
    return reshape(found, (frames.shape[0], length))


def _window(op: str, given: STFTArguments | ISTFTArguments) -> tuple[Tensor, int]:
    """The window, as long as a frame, and the step from one frame to the next."""
    x, n_fft = given.input, given.n_fft
    hop = n_fft // 4 if given.hop_length is None else given.hop_length
    length = n_fft if given.win_length is None else given.win_length
    if hop < 1:
        raise ValueError(describe(op, "hop_length", "at least 1", hop))
    if not 0 < length <= n_fft:
        raise ValueError(describe(op, "win_length", f"1 to n_fft ({n_fft})", length))
    window = given.window
    if window is None:
        window = x._like(NDArray.full((length,), 1, x.array.dtype.to_real(), x.array.device))
    elif window.array.shape != (length,):
        raise ValueError(describe(op, "window", f"shape ({length},)", window.array.shape))
    elif not window.array.dtype.is_differentiable:
        window = cast(window, x.array.dtype.to_real())
    if length < n_fft:
        left = (n_fft - length) // 2
        window = pad(window, (left, n_fft - length - left))
    return window, hop
