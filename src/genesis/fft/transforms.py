"""The transforms of torch.fft, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import functional as F
from genesis import shapes
from genesis.autograd import Tensor
from genesis.dtypes import get_default_dtype
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.complex_numbers import require_device
from genesis.functional.fourier import FFT, IRFFT, RFFT
from genesis.functional.keywords import also
from genesis.shapes import Shape

__all__ = [
    "fft", "fft2", "fftn", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ihfft", "ihfft2", "ihfftn", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftn",
]  # fmt: skip

Dims = Sequence[int] | int | None
_LAST_TWO = (-2, -1)
_FORWARD = {None: "none", "backward": "none", "ortho": "sqrt", "forward": "size"}  # what divides the sums
_BACKWARD = {None: "size", "backward": "size", "ortho": "sqrt", "forward": "none"}
_SWAPPED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


# --- one dimension ----------------------------------------------------------------------------------------------------


@also(axis="dim")
def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform.

        y[k] = Σ_j x[j] · exp(−2πi·j·k / n)

    Args:
        input: any shape; float32, float64 or complex, on the CPU; integers compute as the default float dtype.
        n: the length along dim: input is cut or filled with zeros to it; its own by default.
        dim: the dimension that is transformed.
        norm: "backward" (None): the sum as it is; "ortho": over √n; "forward": over n. ifft divides by the rest.
    Returns: the shape of input, n along dim; complex.
    Raises: ValueError: n < 1, or another norm. DTypeError: a 16-bit dtype. NotImplementedError: input is on a CUDA
        device. IndexError: there is no such dimension.
    Grad: input. Saves nothing.
    Example: >>> genesis.fft.fft(genesis.tensor([1.0, 0.0, -1.0, 0.0])).real.tolist()
    [0.0, 2.0, 0.0, 2.0]
    """
    return _complex_transform("fft", input, *_one(input, "fft", n, dim), norm, True)


@also(axis="dim")
def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of fft. See `genesis.fft.fft`.

    Example:
        >>> genesis.fft.ifft(genesis.fft.fft(genesis.tensor([1.0, 2.0]))).real.tolist()
        [1.0, 2.0]
    """
    return _complex_transform("ifft", input, *_one(input, "ifft", n, dim), norm, False)


@also(axis="dim")
def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform of a real signal: its frequencies 0 … n // 2; the others are their conjugates.

    Args:
        input: any shape; float32 or float64, on the CPU; integers compute as the default float dtype.
        n, dim, norm: as in `genesis.fft.fft`.
    Returns: the shape of input, n // 2 + 1 along dim; complex.
    Raises: as `genesis.fft.fft`. DTypeError: input is complex.
    Grad: input. Saves nothing.
    Example: >>> genesis.fft.rfft(genesis.tensor([1.0, 0.0, -1.0, 0.0])).real.tolist()
    [0.0, 2.0, 0.0]
    """
    return _from_real("rfft", input, *_one(input, "rfft", n, dim), norm)


@also(axis="dim")
def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of rfft.

    Args:
        input: any shape, complex, on the CPU; the frequencies 0 … n // 2 along dim.
        n: the length of the result along dim; by default 2 · (input's − 1), which is even.
        dim, norm: as in `genesis.fft.fft`.
    Returns: the shape of input, n along dim; real.
    Raises: as `genesis.fft.fft`.
    Grad: input. Saves nothing.
    Example: >>> genesis.fft.irfft(genesis.fft.rfft(genesis.tensor([1.0, 2.0, 3.0])), n=3).tolist()
    [1.0, 2.0, 3.0]
    """
    return _to_real("irfft", input, *_one(input, "irfft", n, dim), norm)


@also(axis="dim")
def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The transform of a signal whose negative times are the conjugates of the positive ones, which is real.

    Args:
        input: any shape, complex, on the CPU; the times 0 … n // 2 along dim.
        n, dim: as in `genesis.fft.irfft`.
        norm: as in `genesis.fft.fft`.
    Returns: the shape of input, n along dim; real.
    Raises: as `genesis.fft.fft`.
    Grad: input. Saves nothing.
    Example: >>> genesis.fft.hfft(genesis.tensor([1 + 0j, 2 + 0j])).tolist()
    [3.0, -1.0]
    """
    return _to_real("hfft", F.conj(input), *_one(input, "hfft", n, dim), _swapped("hfft", norm))


@also(axis="dim")
def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of hfft, of a real input. See `genesis.fft.hfft`.

    Example:
        >>> genesis.fft.ihfft(genesis.tensor([3.0, -1.0])).real.tolist()
        [1.0, 2.0]
    """
    return F.conj(_from_real("ihfft", input, *_one(input, "ihfft", n, dim), _swapped("ihfft", norm)))


# --- several dimensions -----------------------------------------------------------------------------------------------


@also(axis="dim", axes="dim")
def fftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The discrete Fourier transform over several dimensions.

    Args:
        input: as in `genesis.fft.fft`.
        s: the length along each of dim, cut or filled with zeros; −1 for input's own.
        dim: the dimensions; by default all, or with s the last ones.
        norm: as in `genesis.fft.fft`, of the product of the lengths.
    Returns: the shape of input, s along dim; complex.
    Raises: as `genesis.fft.fft`. ShapeError: s and dim differ in length, or a dimension appears twice.
    Grad: input. Saves nothing.
    Example: >>> genesis.fft.fftn(genesis.ones(2, 2)).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return _complex_transform("fftn", input, *_several(input, "fftn", s, dim), norm, True)


@also(axis="dim", axes="dim")
def ifftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of fftn. See `genesis.fft.fftn`."""
    return _complex_transform("ifftn", input, *_several(input, "ifftn", s, dim), norm, False)


@also(axis="dim", axes="dim")
def rfftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The transform of a real signal over several dimensions, of the last one of which half is kept.

    Args:
        input: as in `genesis.fft.rfft`.
        s, dim, norm: as in `genesis.fft.fftn`.
    Returns: the shape of input, s along dim but s // 2 + 1 along the last of them; complex.
    Raises: as `genesis.fft.fftn`. DTypeError: input is complex.
    Grad: input. Saves nothing.
    Example: >>> genesis.fft.rfftn(genesis.ones(2, 4)).shape
    (2, 3)
    """
    return _from_real("rfftn", input, *_several(input, "rfftn", s, dim), norm)


@also(axis="dim", axes="dim")
def irfftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of rfftn.

    Args:
        input: as in `genesis.fft.irfft`.
        s: the lengths of the result along dim; by default input's, but 2 · (its − 1) along the last one.
        dim, norm: as in `genesis.fft.fftn`.
    Returns: the shape of input, s along dim; real.
    Raises: as `genesis.fft.fftn`.
    Grad: input. Saves nothing.
    Example: >>> genesis.fft.irfftn(genesis.fft.rfftn(genesis.ones(2, 4))).shape
    (2, 4)
    """
    return _to_real("irfftn", input, *_several(input, "irfftn", s, dim), norm)


@also(axis="dim", axes="dim")
def hfftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The transform of a signal whose values at negative times are conjugates. See `genesis.fft.irfftn`."""
    return _to_real("hfftn", F.conj(input), *_several(input, "hfftn", s, dim), _swapped("hfftn", norm))


@also(axis="dim", axes="dim")
def ihfftn(input: Tensor, s: Dims = None, dim: Dims = None, norm: str | None = None) -> Tensor:
    """The inverse of hfftn, of a real input. See `genesis.fft.rfftn`."""
    return F.conj(_from_real("ihfftn", input, *_several(input, "ihfftn", s, dim), _swapped("ihfftn", norm)))


@also(axis="dim", axes="dim")
def fft2(input: Tensor, s: Dims = None, dim: Dims = _LAST_TWO, norm: str | None = None) -> Tensor:
    """The transform over the last two dimensions. See `genesis.fft.fftn`."""
    return _complex_transform("fft2", input, *_several(input, "fft2", s, dim), norm, True)


@also(axis="dim", axes="dim")
def ifft2(input: Tensor, s: Dims = None, dim: Dims = _LAST_TWO, norm: str | None = None) -> Tensor:
    """The inverse of fft2. See `genesis.fft.fftn`."""
    return _complex_transform("ifft2", input, *_several(input, "ifft2", s, dim), norm, False)


@also(axis="dim", axes="dim")
def rfft2(input: Tensor, s: Dims = None, dim: Dims = _LAST_TWO, norm: str | None = None) -> Tensor:
    """The transform of a real signal over the last two dimensions. See `genesis.fft.rfftn`."""
    return _from_real("rfft2", input, *_several(input, "rfft2", s, dim), norm)


@also(axis="dim", axes="dim")
def irfft2(input: Tensor, s: Dims = None, dim: Dims = _LAST_TWO, norm: str | None = None) -> Tensor:
    """The inverse of rfft2. See `genesis.fft.irfftn`."""
    return _to_real("irfft2", input, *_several(input, "irfft2", s, dim), norm)


@also(axis="dim", axes="dim")
def hfft2(input: Tensor, s: Dims = None, dim: Dims = _LAST_TWO, norm: str | None = None) -> Tensor:
    """The transform hfftn over the last two dimensions. See `genesis.fft.irfftn`."""
    return _to_real("hfft2", F.conj(input), *_several(input, "hfft2", s, dim), _swapped("hfft2", norm))


@also(axis="dim", axes="dim")
def ihfft2(input: Tensor, s: Dims = None, dim: Dims = _LAST_TWO, norm: str | None = None) -> Tensor:
    """The inverse of hfft2, of a real input. See `genesis.fft.rfftn`."""
    return F.conj(_from_real("ihfft2", input, *_several(input, "ihfft2", s, dim), _swapped("ihfft2", norm)))


# --- the three kinds --------------------------------------------------------------------------------------------------


def _complex_transform(op: str, input: Tensor, dims: Shape, sizes: Shape, norm: str | None, forward: bool) -> Tensor:
    scale = _scale(op, norm, _FORWARD if forward else _BACKWARD)
    x = _resized(op, _number_input(op, input), dims, _own_sizes(op, input, dims, sizes))
    if forward and dims and not x.array.dtype.is_complex:
        return RFFT.apply(x, dims=dims, scale=scale, onesided=False)
    x = F.cast(x, x.array.dtype.to_complex())
    return FFT.apply(x, dims=dims, scale=scale, forward=forward)


def _from_real(op: str, input: Tensor, dims: Shape, sizes: Shape, norm: str | None) -> Tensor:
    if input.array.dtype.is_complex:
        raise DTypeError(describe(op, "input", "real numbers", input.array.dtype))
    _require_dims(op, dims)
    x = _resized(op, _number_input(op, input), dims, _own_sizes(op, input, dims, sizes))
    return RFFT.apply(x, dims=dims, scale=_scale(op, norm, _FORWARD), onesided=True)


def _to_real(op: str, input: Tensor, dims: Shape, sizes: Shape, norm: str | None) -> Tensor:
    _require_dims(op, dims)
    x = _number_input(op, input)
    own = input.array.shape[dims[-1]]
    size = 2 * (own - 1) if sizes[-1] == -1 else sizes[-1]
    if size < 1:
        raise ValueError(describe(op, "n", "a length of at least 1", size))
    half = _own_sizes(op, input, dims[:-1], sizes[:-1])
    x = _resized(op, F.cast(x, x.array.dtype.to_complex()), dims, (*half, size // 2 + 1))
    return IRFFT.apply(x, dims=dims, scale=_scale(op, norm, _BACKWARD), size=size)


# --- arguments --------------------------------------------------------------------------------------------------------


def _one(input: Tensor, op: str, n: int | None, dim: int) -> tuple[Shape, Shape]:
    require_tensors(op, input=input)
    return (shapes.normalize_dim(op, dim, input.array.ndim),), (-1 if n is None else int(n),)


def _several(input: Tensor, op: str, s: Dims, dim: Dims) -> tuple[Shape, Shape]:
    """The dimensions, and the length along each; −1 for input's own."""
    require_tensors(op, input=input)
    ndim = input.array.ndim
    sizes = None if s is None else (s,) if isinstance(s, int) else tuple(map(int, s))
    if dim is None:
        first = 0 if sizes is None else ndim - len(sizes)
        if first < 0:
            raise ShapeError(describe(op, "s", f"at most {ndim} sizes, as input has dimensions", sizes))
        dims = tuple(range(first, ndim))
    else:
        given = (dim,) if isinstance(dim, int) else tuple(dim)
        dims = tuple([shapes.normalize_dim(op, each, ndim) for each in given])
        if len({*dims}) != len(dims):
            raise ShapeError(describe(op, "dim", "distinct dimensions", given))
        if sizes is not None and len(sizes) != len(dims):
            raise ShapeError(describe(op, "s", f"{len(dims)} sizes, as dim", sizes))
    return dims, (-1,) * len(dims) if sizes is None else sizes


def _require_dims(op: str, dims: Shape) -> None:
    if not dims:
        raise ShapeError(describe(op, "input", "at least one dimension to transform", "none"))


def _own_sizes(op: str, input: Tensor, dims: Shape, sizes: Shape) -> Shape:
    """The lengths, with input's own in the places of −1."""
    shape = input.array.shape
    found = tuple([shape[dim] if size == -1 else size for dim, size in zip(dims, sizes, strict=True)])
    for size in found:
        if size < 1:
            raise ValueError(describe(op, "n", "a length of at least 1", size))
    return found


def _number_input(op: str, input: Tensor) -> Tensor:
    """The input in a dtype that can be transformed."""
    dtype = input.array.dtype
    require_device(op, input)
    if dtype.name in ("float16", "bfloat16"):
        raise DTypeError(describe(op, "input", "float32, float64 or complex; convert with .float()", dtype))
    return input if dtype.is_differentiable else F.cast(input, get_default_dtype())


def _resized(op: str, input: Tensor, dims: Shape, sizes: Shape) -> Tensor:
    """Cut, or filled with zeros behind, to these lengths along dims."""
    for dim, size in zip(dims, sizes, strict=True):
        own = input.array.shape[dim]
        if size < own:
            input = F.narrow(input, dim, 0, size)
        elif size > own:
            input = F.pad(input, (0, 0) * (input.array.ndim - 1 - dim) + (0, size - own))
    return input


def _scale(op: str, norm: str | None, table: dict[str | None, str]) -> str:
    if norm not in table:
        raise ValueError(describe(op, "norm", '"backward", "ortho" or "forward"', repr(norm)))
    return table[norm]


def _swapped(op: str, norm: str | None) -> str:
    return _scale(op, norm, _SWAPPED)
