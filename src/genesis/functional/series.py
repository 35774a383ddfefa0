"""Polynomials, Chebyshev series and rational functions of arrays, which special functions are computed by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis.dtypes import float64, get_default_dtype
from genesis.ndarray import NDArray


def floating_array(x: NDArray) -> NDArray:
    """Integers and bool in the default float dtype; floats as they are."""
    return x if x.dtype.is_floating_point else x.to(get_default_dtype())


def in_float64(values: Callable[[NDArray], NDArray], x: NDArray) -> NDArray:
    """The values of a function at x, computed in float64 and rounded once, to x's dtype.

    Args:
        values: of an array of float64, the same.
        x: floating.
    Returns: shape and dtype of x.
    """
    return values(x.to(float64)).to(x.dtype)


def polynomial(x: NDArray, coefficients: Sequence[float]) -> NDArray:
    """A polynomial by Horner's rule, the coefficient of the highest power first."""
    total = x.mul(coefficients[0]).add(coefficients[1])
    for coefficient in coefficients[2:]:
        total = total.mul(x).add(coefficient)
    return total


def ratio(x: NDArray, over: Sequence[float], under: Sequence[float]) -> NDArray:
    """A rational function; coefficients as polynomial() takes them."""
    return polynomial(x, over).div(polynomial(x, under))


def chebyshev(x: NDArray, coefficients: Sequence[float]) -> NDArray:
    """The series ½ c₀ + Σ cₙ Tₙ(x/2) by Clenshaw's recurrence, the last coefficient first."""
    before, last = x.full_like(0.0), x.full_like(coefficients[0])
    older = before
    for coefficient in coefficients[1:]:
        older, before = before, last
        last = x.mul(before).sub(older).add(coefficient)
    return last.sub(older).mul(0.5)
