"""The regularized incomplete gamma functions."""

from __future__ import annotations

import math

import numpy as np

from genesis.autograd import BinaryFunction, Context, Gradients, Tensor
from genesis.autograd.recorded_walk import RULES, Recorded
from genesis.dtypes import float64, get_default_dtype
from genesis.functional.arguments import require_tensors
from genesis.functional.transcendental import lgamma
from genesis.functional.unary import exp, log
from genesis.ndarray import NDArray, ops, result_type
from genesis.shapes import broadcast

__all__ = ["gammainc", "gammaincc"]


def gammainc(input: Tensor, other: Tensor) -> Tensor:
    """The lower one: P(a, x) = 1/Γ(a) · ∫₀ˣ tᵃ⁻¹ e⁻ᵗ dt, with input for a and other for x.

    Args:
        input, other: at least 0, NaN below; tensors whose shapes broadcast.
    Returns: the common shape, in the promoted dtype. Integers compute as the default float dtype.
    Raises: ValueError: the shapes don't broadcast. NotImplementedError: backward to input, as in PyTorch.
    Grad: other.
    Source: DLMF §8.7, §8.9.
    Example: >>> round(genesis.special.gammainc(genesis.tensor(1.0), genesis.tensor(2.0)).item(), 4)
    0.8647
    """
    require_tensors("gammainc", input=input, other=other)
    return IncompleteGamma.apply(input, other, upper=False)


def gammaincc(input: Tensor, other: Tensor) -> Tensor:
    """The upper one: Q(a, x) = 1 − P(a, x), exact where it is small.

    Args:
        input, other: as in `F.gammainc`.
    Returns: the common shape, in the promoted dtype. Integers compute as the default float dtype.
    Raises: ValueError: the shapes don't broadcast. NotImplementedError: backward to input, as in PyTorch.
    Grad: other.
    Example: >>> round(genesis.special.gammaincc(genesis.tensor(1.0), genesis.tensor(2.0)).item(), 4)
    0.1353
    """
    require_tensors("gammaincc", input=input, other=other)
    return IncompleteGamma.apply(input, other, upper=True)


class IncompleteGamma(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, a: NDArray, x: NDArray, *, upper: bool) -> NDArray:
        dtype = result_type(a, x)
        dtype = dtype if dtype.is_floating_point else get_default_dtype()
        shape = broadcast("gammaincc" if upper else "gammainc", a.shape, x.shape)
        a, x = (value.to(float64).expand(shape) for value in (a, x))
        ctx.save(a, x, upper)
        return _incomplete_gamma(a, x)[upper].to(dtype)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        a, x, upper = ctx.saved
        _refuse_first(ctx.needs_input_grad)
        density = x.log().mul(a.sub(1.0)).sub(x).sub(ops.lgamma(a)).exp()  # ∂P/∂x = xᵃ⁻¹ e⁻ˣ / Γ(a)
        return None, grad.mul(density.neg() if upper else density)


def _refuse_first(needs: tuple[bool, ...]) -> None:
    if needs[0]:
        raise NotImplementedError("gammainc: argument 'input' has no derivative, in PyTorch neither; detach() it")


def _second_order(call: Recorded, grad: Tensor) -> tuple[Tensor | None, ...]:
    _refuse_first(call.needs)
    a, x = (call.input(index, each) for index, each in enumerate(call.saved[:2]))
    density = exp(log(x) * (a - 1) - x - lgamma(a))
    return None, grad * (-density if call.saved[2] else density)


RULES[IncompleteGamma] = _second_order


# --- values in float64 ------------------------------------------------------------------------------------------------

_LARGE = 20.0  # from here on the integral over the peak of tᵃ⁻¹ e⁻ᵗ, which is smooth
_NUM_TERMS = 100  # of both series and of the continued fraction, which needs most at (0, 1)
_NODES, _WEIGHTS = (values.tolist() for values in np.polynomial.legendre.leggauss(48))


def _incomplete_gamma(a: NDArray, x: NDArray) -> tuple[NDArray, NDArray]:
    """P and Q. Each is computed where it is the smaller one, so that 1 − it is exact."""
    large = a.ge(_LARGE)
    small_a, usual_x = large.where(1.0, a), x.isfinite().logical_and(x.gt(0)).where(x, 1.0)
    usual_a = a.isfinite().where(a, _LARGE).maximum(_LARGE)
    power = usual_x.log().mul(small_a).sub(ops.lgamma(small_a.add(1.0)))  # ln xᵃ / Γ(a + 1)
    by_series = _lower_series(small_a, usual_x, power)
    by_fraction = _upper_fraction(small_a, usual_x, power)
    near_zero = _upper_series(small_a, usual_x, power)
    is_upper, integral = _peak_integral(usual_a, usual_x)
    from_below = large.where(is_upper.logical_not(), usual_x.lt(small_a.maximum(1.0)))
    below = large.where(integral, by_series)
    above = large.where(integral, usual_x.lt(1.0).where(near_zero, by_fraction))
    lower = from_below.where(below, above.neg().add(1.0))
    upper = from_below.where(below.neg().add(1.0), above)
    upper = large.logical_not().logical_and(usual_x.lt(1.0)).where(near_zero, upper)
    return _with_limits(a, x, lower, 0.0), _with_limits(a, x, upper, 1.0)


def _with_limits(a: NDArray, x: NDArray, value: NDArray, at_zero: float) -> NDArray:
    """Q or P at infinity and at 0, where it is at_zero at x = 0, and NaN where there is none."""
    value = x.isinf().logical_or(a.eq(0)).where(1.0 - at_zero, value)
    value = a.isinf().logical_or(x.eq(0)).where(at_zero, value)
    both = a.eq(0).logical_and(x.eq(0)).logical_or(a.isinf().logical_and(x.isinf()))
    invalid = both.logical_or(a.lt(0)).logical_or(x.lt(0)).logical_or(a.isnan()).logical_or(x.isnan())
    return invalid.where(math.nan, value)


def _lower_series(a: NDArray, x: NDArray, power: NDArray) -> NDArray:
    """P = xᵃ e⁻ˣ / Γ(a + 1) · Σ xⁿ / ((a + 1) ⋯ (a + n))."""
    term = total = x.full_like(1.0)
    for n in range(1, _NUM_TERMS):
        term = term.mul(x).div(a.add(float(n)))
        total = total.add(term)
    return power.sub(x).exp().mul(total)


def _upper_series(a: NDArray, x: NDArray, power: NDArray) -> NDArray:
    """Q = 1 − xᵃ / Γ(a + 1) · (1 + Σ (−x)ⁿ a / (n! (a + n))), for x < 1."""
    term, total = x.full_like(1.0), x.full_like(0.0)
    for n in range(1, 20):
        term = term.mul(x).div(-float(n))
        total = total.add(term.mul(a).div(a.add(float(n))))
    return power.expm1().neg().sub(power.exp().mul(total))


def _upper_fraction(a: NDArray, x: NDArray, power: NDArray) -> NDArray:
    """Q by Legendre's continued fraction, from its end: Γ(a, x) = xᵃ e⁻ˣ / (x + 1 − a − (1 − a)/(x + 3 − a − …))."""
    base = x.sub(a)
    value = base.add(2.0 * _NUM_TERMS + 1)
    for n in range(_NUM_TERMS, 0, -1):
        value = base.add(2.0 * n - 1).sub(a.neg().add(float(n)).mul(float(n)).div(value))
    return power.sub(x).exp().mul(a).div(value)


def _peak_integral(a: NDArray, x: NDArray) -> tuple[NDArray, NDArray]:
    """Whether x is above the peak of tᵃ⁻¹ e⁻ᵗ, and the integral from x to where it is negligible, on that side.

    Gauss and Legendre's quadrature; Γ(a) by Stirling's series, so that no large logarithms are subtracted.
    Source: Press et al., Numerical Recipes, 3rd ed., §6.2.
    """
    peak = a.sub(1.0)
    width = peak.sqrt()
    is_upper = x.gt(peak)
    reach = is_upper.where(width.mul(17.0), width.mul(-9.5).maximum(x.neg()))
    steepness = peak.div(x).sub(1.0).abs()  # of ln tᵃ⁻¹ e⁻ᵗ at x; it is concave
    tail = ops.div(40.0, steepness)
    half = reach.maximum(tail.neg()).minimum(tail).mul(0.5)
    total = x.full_like(0.0)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        t = x.add(half.mul(node + 1))
        apart = t.sub(peak).div(peak)
        logarithm = apart.lt(-0.5).where(t.div(peak).log(), apart.log1p())
        total = total.add(logarithm.sub(apart).mul(peak).exp().mul(weight))
    inverse = ops.div(1.0, peak)
    square = inverse.mul(inverse)
    series = square.mul(1 / 1260).add(-1 / 360).mul(square).add(1 / 12).mul(inverse)
    scale = series.neg().exp().mul(ops.div(1.0, width.mul(math.sqrt(2 * math.pi))))
    return is_upper, half.abs().mul(total).mul(scale)
