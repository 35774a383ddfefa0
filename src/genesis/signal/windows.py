"""Window functions: how much each of M samples counts, computed in float64 and rounded once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from genesis.creation import DeviceLike, device_of, dtype_of
from genesis.dtypes import DType, float32, float64
from genesis.errors import DTypeError, describe
from genesis.ndarray import NDArray
from genesis.pinning import placed
from genesis.tensor import Tensor

__all__ = [
    "bartlett", "blackman", "cosine", "exponential", "gaussian", "general_cosine", "general_hamming", "hamming",
    "hann", "kaiser", "nuttall",
]  # fmt: skip


@placed
def hann(
    M: int, *, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """The Hann window: ½ (1 − cos(2πn / N)), with N = M − 1 if it is symmetric, else M.

    Args:
        M: the number of samples, at least 0.
        sym: whether it is symmetric, for filters; else it is one period, for spectra.
        dtype: float32 or float64; the default float dtype if None.
        device, requires_grad: as in `genesis.empty`.
    Returns: (M,).
    Raises: ValueError: M < 0. DTypeError: M is no int, or another dtype.

    Example:
        >>> genesis.signal.windows.hann(5).tolist()
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    return cosines("hann", M, (0.5, 0.5), sym, dtype, device, requires_grad)


@placed
def hamming(
    M: int, *, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """The Hamming window: 0.54 − 0.46 cos(2πn / N). See `genesis.signal.windows.hann`."""
    return cosines("hamming", M, (0.54, 1 - 0.54), sym, dtype, device, requires_grad)


@placed
def general_hamming(
    M: int, *, alpha: float = 0.54, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Hann's and Hamming's windows: alpha − (1 − alpha) cos(2πn / N).

    Args:
        M, sym, dtype, device, requires_grad: as in `genesis.signal.windows.hann`.
        alpha: the mean; 0.5 for Hann's, 0.54 for Hamming's.
    Returns: (M,).
    Raises: ValueError: M < 0. DTypeError: M is no int, or another dtype.

    Example:
        >>> genesis.signal.windows.general_hamming(3, alpha=0.75).tolist()
        [0.5, 1.0, 0.5]
    """
    return cosines("general_hamming", M, (alpha, 1 - alpha), sym, dtype, device, requires_grad)


@placed
def blackman(
    M: int, *, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """The Blackman window: 0.42 − 0.5 cos(2πn / N) + 0.08 cos(4πn / N). See `genesis.signal.windows.hann`."""
    return cosines("blackman", M, (0.42, 0.5, 0.08), sym, dtype, device, requires_grad)


@placed
def nuttall(
    M: int, *, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """The minimum 4-term Blackman–Harris window of Nuttall. See `genesis.signal.windows.hann`."""
    return cosines("nuttall", M, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym, dtype, device, requires_grad)


@placed
def general_cosine(
    M: int, *, a: Iterable[float], sym: bool = True, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """Σ (−1)ⁱ aᵢ cos(2πin / N).

    Args:
        M, sym, dtype, device, requires_grad: as in `genesis.signal.windows.hann`.
        a: the coefficients, at least one.
    Returns: (M,).
    Raises: ValueError: M < 0, or no coefficients. DTypeError: M is no int, a is no sequence, or another dtype.

    Example:
        >>> genesis.signal.windows.general_cosine(3, a=[0.75, 0.25]).tolist()
        [0.5, 1.0, 0.5]
    """
    if not isinstance(a, Iterable):
        raise DTypeError(describe("general_cosine", "a", "a sequence of numbers", type(a).__name__))
    coefficients = tuple(a)
    if not coefficients:
        raise ValueError(describe("general_cosine", "a", "at least one coefficient", "none"))
    return cosines("general_cosine", M, coefficients, sym, dtype, device, requires_grad)


@placed
def bartlett(
    M: int, *, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """The Bartlett window, a triangle: 1 − |2n / N − 1|. See `genesis.signal.windows.hann`."""
    return window("bartlett", M, sym, triangle, dtype, device, requires_grad)


@placed
def kaiser(
    M: int, *, beta: float = 12.0, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The Kaiser window: I₀(β √(1 − (2n / N − 1)²)) / I₀(β).

    Args:
        M, sym, dtype, device, requires_grad: as in `genesis.signal.windows.hann`.
        beta: how narrow it is, at least 0.
    Returns: (M,).
    Raises: ValueError: M < 0, or beta < 0. DTypeError: M is no int, or another dtype.

    Example:
        >>> genesis.signal.windows.kaiser(3, beta=0.0).tolist()
        [1.0, 1.0, 1.0]
    """
    return window("kaiser", M, sym, bessel(beta, "kaiser"), dtype, device, requires_grad)


@placed
def cosine(
    M: int, *, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None, requires_grad: bool = False
) -> Tensor:  # fmt: skip
    """Half a wave: sin(π(n + ½) / (N + 1)). See `genesis.signal.windows.hann`."""
    return window(
        "cosine", M, sym, lambda n, last: np.sin(math.pi * (n + 0.5) / (last + 1)), dtype, device, requires_grad
    )


@placed
def gaussian(
    M: int, *, std: float = 1.0, sym: bool = True, dtype: DType | None = None, device: DeviceLike = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The Gaussian window: exp(−½ ((n − N/2) / std)²).

    Args:
        M, sym, dtype, device, requires_grad: as in `genesis.signal.windows.hann`.
        std: the standard deviation, in samples; above 0.
    Returns: (M,).
    Raises: ValueError: M < 0, or std not above 0. DTypeError: M is no int, or another dtype.

    Example:
        >>> [round(value, 4) for value in genesis.signal.windows.gaussian(3).tolist()]
        [0.6065, 1.0, 0.6065]
    """
    if std <= 0:
        raise ValueError(describe("gaussian", "std", "above 0", std))
    return window(
        "gaussian", M, sym, lambda n, last: np.exp(-0.5 * ((n - last / 2) / std) ** 2), dtype, device, requires_grad
    )


@placed
def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, dtype: DType | None = None,
    device: DeviceLike = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The exponential window: exp(−|n − center| / tau).

    Args:
        M, sym, dtype, device, requires_grad: as in `genesis.signal.windows.hann`.
        center: where it is 1; N/2 if None, as it must be in a symmetric one.
        tau: in how many samples it falls to 1/e; above 0.
    Returns: (M,).
    Raises: ValueError: M < 0, tau not above 0, or a center of a symmetric one. DTypeError: M is no int, or another
        dtype.

    Example:
        >>> [round(value, 4) for value in genesis.signal.windows.exponential(3).tolist()]
        [0.3679, 1.0, 0.3679]
    """
    if tau <= 0:
        raise ValueError(describe("exponential", "tau", "above 0", tau))
    if sym and center is not None:
        raise ValueError(describe("exponential", "center", "None for a symmetric window", center))

    def values(n: Samples, last: float) -> Samples:
        return np.exp(-np.abs(n - (last / 2 if center is None else center)) / tau)

    return window("exponential", M, sym, values, dtype, device, requires_grad)


# --- what they share --------------------------------------------------------------------------------------------------

Samples = npt.NDArray[np.float64]
Values = Callable[[Samples, float], Samples]  # of the samples' numbers, and of N
DTYPES = (float32, float64)


def cosines(
    op: str, M: int, a: tuple[float, ...], sym: bool, dtype: DType | None, device: DeviceLike, requires_grad: bool
) -> Tensor:  # fmt: skip
    return window(op, M, sym, sum_of_cosines(a), dtype, device, requires_grad)


def window(
    op: str, M: int, sym: bool, values: Values, dtype: DType | None, device: DeviceLike, requires_grad: bool
) -> Tensor:  # fmt: skip
    dtype = dtype_of(dtype)
    if dtype not in DTYPES:
        raise DTypeError(describe(op, "dtype", "float32 or float64", dtype))
    return sampled(op, "M", M, sym, values).to(device_of(device), dtype).requires_grad_(requires_grad)


def sampled(op: str, argument: str, count: int, sym: bool, values: Values) -> Tensor:
    """The window in float64 on the CPU."""
    if not hasattr(count, "__index__"):
        raise DTypeError(describe(op, argument, "an int", type(count).__name__))
    if count < 0:
        raise ValueError(describe(op, argument, "at least 0", count))
    last = count if not sym and count > 1 else count - 1
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        found = values(np.arange(count, dtype=np.float64), float(last))
    return Tensor(NDArray.from_numpy(found, float64))


def sum_of_cosines(a: tuple[float, ...]) -> Values:
    """Σ (−1)ⁱ aᵢ cos(2πin / N); 1 where there is one sample."""

    def values(n: Samples, last: float) -> Samples:
        if last <= 0:
            return np.ones_like(n)
        return sum(
            ((-1) ** i * each * np.cos(2 * math.pi * i * n / last) for i, each in enumerate(a)), np.zeros_like(n)
        )

    return values


def triangle(n: Samples, last: float) -> Samples:
    return 1 - np.abs(2 * n / last - 1) if last > 0 else np.ones_like(n)


def bessel(beta: float, op: str) -> Values:
    if beta < 0:
        raise ValueError(describe(op, "beta", "at least 0", beta))

    def values(n: Samples, last: float) -> Samples:
        across = 2 * n / last - 1 if last > 0 else np.zeros_like(n)
        return np.i0(beta * np.sqrt(np.maximum(1 - across**2, 0))) / np.i0(beta)

    return values
