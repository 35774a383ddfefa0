"""The frequencies of a discrete Fourier transform, and their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from genesis import functional as F
from genesis.creation import DeviceLike, device_of, dtype_of
from genesis.dtypes import DType, float64
from genesis.errors import DTypeError, describe
from genesis.functional.keywords import also
from genesis.ndarray import NDArray
from genesis.pinning import placed
from genesis.tensor import Tensor

__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]


@placed
def fftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """The frequencies of a discrete Fourier transform: 0, 1, …, then the negative ones, over n · d.

    Args:
        n: the length of the signal, at least 1.
        d: the time between its samples.
        dtype, device, requires_grad: as in `genesis.empty`.
    Returns: (n,).
    Raises: ValueError: n < 1. DTypeError: dtype is not floating, or n no int.

    Example:
        >>> genesis.fft.fftfreq(4).tolist()
        [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies("fftfreq", n, d, dtype, device, requires_grad)


@placed
def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """The frequencies of a real signal's transform: 0, 1, …, n // 2, over n · d. See `genesis.fft.fftfreq`."""
    return _frequencies("rfftfreq", n, d, dtype, device, requires_grad)


def _frequencies(
    op: str, n: int, d: float, dtype: DType | None, device: DeviceLike,
    requires_grad: bool,
) -> Tensor:  # fmt: skip
    if not hasattr(n, "__index__"):
        raise DTypeError(describe(op, "n", "an int", type(n).__name__))
    if n < 1:
        raise ValueError(describe(op, "n", "at least 1", n))
    dtype = dtype_of(dtype)
    if not dtype.is_floating_point:
        raise DTypeError(describe(op, "dtype", "a floating dtype", dtype))
    cycles = np.arange(n, dtype=np.float64)
    if op == "rfftfreq":
        cycles = cycles[: n // 2 + 1]
    else:
        cycles[(n + 1) // 2 :] -= n
    with np.errstate(divide="ignore", invalid="ignore"):  # d may be 0, as in PyTorch
        values = cycles / np.float64(n * d)
    return Tensor(NDArray.from_numpy(values, float64).to(dtype).to_device(device_of(device)), requires_grad)


@also(axis="dim")
def fftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Roll each dimension by half its size, so that frequency 0 is in the centre.

    Args:
        input: any shape and dtype.
        dim: one or several dimensions; all if None.
    Returns: shape and dtype of input.
    Raises: IndexError: no such dimension.
    Grad: input.

    Example:
        >>> genesis.fft.fftshift(genesis.fft.fftfreq(4)).tolist()
        [-0.5, -0.25, 0.0, 0.25]
    """
    dims = _dims(input, dim)
    return F.roll(input, tuple(input.shape[each] // 2 for each in dims), dims)


@also(axis="dim")
def ifftshift(input: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    """Undo fftshift. See `genesis.fft.fftshift`."""
    dims = _dims(input, dim)
    return F.roll(input, tuple(-(input.shape[each] // 2) for each in dims), dims)


def _dims(input: Tensor, dim: int | Sequence[int] | None) -> tuple[int, ...]:
    if dim is None:
        return tuple(range(input.ndim))
    return (dim,) if isinstance(dim, int) else tuple(dim)
