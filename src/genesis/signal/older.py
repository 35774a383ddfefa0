"""PyTorch's window functions of its top level: hann_window and its like, of one period unless asked otherwise."""

from __future__ import annotations

from genesis.creation import DeviceLike, device_of, dtype_of
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.pinning import placed
from genesis.signal.windows import Values, bessel, sampled, sum_of_cosines, triangle
from genesis.tensor import Tensor

__all__ = ["bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"]


@placed
def hann_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The Hann window: ½ (1 − cos(2πn / N)), with N = window_length if it is periodic, else one less.

    Args:
        window_length: the number of samples, at least 0.
        periodic: whether it is one period, for spectra; else it is symmetric, for filters.
        dtype: floating; the default float dtype if None.
        device, requires_grad: as in `genesis.empty`.
    Returns: (window_length,).
    Raises: ValueError: window_length < 0. DTypeError: it is no int, or dtype is not floating.

    Example:
        >>> genesis.hann_window(4).round(decimals=3).tolist()
        [0.0, 0.5, 1.0, 0.5]
    """
    return _window("hann_window", window_length, periodic, sum_of_cosines((0.5, 0.5)), dtype, device, requires_grad)


@placed
def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The Hamming window: alpha − beta · cos(2πn / N).

    Args:
        window_length, periodic, dtype, device, requires_grad: as in `genesis.hann_window`.
        alpha, beta: its mean, and the height of its wave.
    Returns: (window_length,).
    Raises: ValueError: window_length < 0. DTypeError: it is no int, or dtype is not floating.

    Example:
        >>> genesis.hamming_window(2, True, 0.75, 0.25).tolist()
        [0.5, 1.0]
    """
    values = sum_of_cosines((alpha, beta))
    return _window("hamming_window", window_length, periodic, values, dtype, device, requires_grad)


@placed
def blackman_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The Blackman window: 0.42 − 0.5 cos(2πn / N) + 0.08 cos(4πn / N). See `genesis.hann_window`."""
    values = sum_of_cosines((0.42, 0.5, 0.08))
    return _window("blackman_window", window_length, periodic, values, dtype, device, requires_grad)


@placed
def bartlett_window(
    window_length: int, periodic: bool = True, *, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The Bartlett window, a triangle: 1 − |2n / N − 1|. See `genesis.hann_window`."""
    return _window("bartlett_window", window_length, periodic, triangle, dtype, device, requires_grad)


@placed
def kaiser_window(
    window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The Kaiser window: I₀(β √(1 − (2n / N − 1)²)) / I₀(β).

    Args:
        window_length, periodic, dtype, device, requires_grad: as in `genesis.hann_window`.
        beta: how narrow it is, at least 0.
    Returns: (window_length,).
    Raises: ValueError: window_length < 0, or beta < 0. DTypeError: window_length is no int, or dtype is not floating.

    Example:
        >>> genesis.kaiser_window(3, False, 0.0).tolist()
        [1.0, 1.0, 1.0]
    """
    values = bessel(beta, "kaiser_window")
    return _window("kaiser_window", window_length, periodic, values, dtype, device, requires_grad)


def _window(
    op: str, length: int, periodic: bool, values: Values, dtype: DType | None, device: DeviceLike, requires_grad: bool
) -> Tensor:  # fmt: skip
    dtype = dtype_of(dtype)
    if not dtype.is_floating_point:
        raise DTypeError(describe(op, "dtype", "a floating dtype", dtype))
    made = sampled(op, "window_length", length, not periodic, values)
    return made.to(device_of(device), dtype).requires_grad_(requires_grad)
