"""Gradients of gradients of trigonometric, logarithmic, error and gamma functions, and of running products."""

from __future__ import annotations

import math
from collections.abc import Callable

from genesis.autograd import Context, ElementwiseFunction, Tensor
from genesis.autograd.recorded_walk import RULES, Recorded
from genesis.functional import (
    bessel,
    exponents,
    fractions,
    hurwitz,
    joining,
    normal_tails,
    special,
    statistics,
    transcendental,
    trigonometry,
)
from genesis.functional.bessel import i0, i0e, i1, i1e
from genesis.functional.elementwise import add, div, mul, sub, where
from genesis.functional.normal_tails import erfcx
from genesis.functional.second_order import Gradients, diagonal, linear_by
from genesis.functional.second_order_formulas import by_input, by_output
from genesis.functional.transcendental import digamma
from genesis.functional.trigonometry import cosh, sinh
from genesis.functional.unary import cos, exp, log, log1p, neg, rsqrt, sign, sin
from genesis.ndarray import NDArray, ops

__all__: list[str] = []  # the import fills the table of rules

for stepwise in (fractions.Trunc, fractions.Fmod, fractions.CopySign, fractions.NextAfter):
    RULES[stepwise] = diagonal

# --- one operand ------------------------------------------------------------------------------------------------------


def _sinc(grad: Tensor, x: Tensor) -> Tensor:
    zero = x == 0
    x = where(zero, 1.0, x)
    angle = x * math.pi
    return where(zero, 0.0, grad * ((cos(angle) * angle - sin(angle)) / (angle * x)))


def _logit(grad: Tensor, x: Tensor) -> Tensor:
    return where((x >= 0) & (x <= 1), grad / (x * (1 - x)), math.nan)


def _of_i1(grad: Tensor, x: Tensor) -> Tensor:
    zero = x == 0
    x = where(zero, 1.0, x)
    return where(zero, mul(grad, 0.5), grad * (i0(x) - i1(x) / x))


def _of_i1e(grad: Tensor, x: Tensor) -> Tensor:
    zero = x == 0
    x = where(zero, 1.0, x)
    return where(zero, mul(grad, 0.5), grad * (i0e(x) - i1e(x) * (sign(x) + 1 / x)))


_Formula = Callable[[Tensor, Tensor], Tensor]
_OF_INPUT: dict[type, _Formula] = {
    trigonometry.ArcSin: lambda grad, x: mul(grad, rsqrt(sub(1, mul(x, x)))),
    trigonometry.ArcCos: lambda grad, x: neg(mul(grad, rsqrt(sub(1, mul(x, x))))),
    trigonometry.ArcTan: lambda grad, x: div(grad, add(mul(x, x), 1)),
    trigonometry.Sinh: lambda grad, x: mul(grad, cosh(x)),
    trigonometry.Cosh: lambda grad, x: mul(grad, sinh(x)),
    trigonometry.Asinh: lambda grad, x: mul(grad, rsqrt(add(mul(x, x), 1))),
    trigonometry.Acosh: lambda grad, x: mul(grad, rsqrt(sub(mul(x, x), 1))),
    trigonometry.Atanh: lambda grad, x: div(grad, sub(1, mul(x, x))),
    transcendental.Log2: lambda grad, x: div(grad, mul(x, math.log(2))),
    transcendental.Log10: lambda grad, x: div(grad, mul(x, math.log(10))),
    transcendental.Erfc: lambda grad, x: mul(mul(grad, exp(neg(mul(x, x)))), -2 / math.sqrt(math.pi)),
    transcendental.LogGamma: lambda grad, x: mul(grad, digamma(x)),
    transcendental.Digamma: lambda grad, x: mul(grad, Trigamma.apply(x)),
    special.Logit: _logit,
    special.Sinc: _sinc,
    bessel.I0: lambda grad, x: mul(grad, i1(x)),
    bessel.I0e: lambda grad, x: mul(grad, sub(i1e(x), mul(sign(x), i0e(x)))),
    bessel.I1: _of_i1,
    bessel.I1e: _of_i1e,
    normal_tails.Erfcx: lambda grad, x: mul(grad, sub(mul(mul(x, erfcx(x)), 2.0), 2 / math.sqrt(math.pi))),
    normal_tails.LogNdtr: lambda grad, x: mul(grad, div(math.sqrt(2 / math.pi), erfcx(mul(x, -math.sqrt(0.5))))),
}
_OF_OUTPUT: dict[type, _Formula] = {
    trigonometry.Tan: lambda grad, y: mul(grad, add(mul(y, y), 1)),
    transcendental.Exp2: lambda grad, y: mul(mul(grad, y), math.log(2)),
    transcendental.Erfinv: lambda grad, y: mul(mul(grad, exp(mul(y, y))), math.sqrt(math.pi) / 2),
    normal_tails.Ndtri: lambda grad, y: mul(mul(grad, exp(mul(mul(y, y), 0.5))), math.sqrt(2 * math.pi)),
}
RULES.update({function: by_input(formula) for function, formula in _OF_INPUT.items()})
RULES.update({function: by_output(formula) for function, formula in _OF_OUTPUT.items()})


class Trigamma(ElementwiseFunction):
    """ψ′."""

    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.trigamma(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(_tetragamma(x))


def _tetragamma(x: NDArray) -> NDArray:
    """ψ″: the asymptotic series at x + 10, and ψ″(x) = ψ″(x + 1) − 2/x³; below 1/2 by the reflection at it."""
    low = ops.lt(x, 0.5)
    z = low.where(x.neg().add(1), x)
    total = z.full_like(0)
    for _ in range(10):
        total = total.sub(ops.div(2.0, z.mul(z).mul(z)))
        z = z.add(1)
    t = ops.div(1.0, z.mul(z))
    series = t.full_like(0)
    for factor in (691 / 210, -5 / 6, 3 / 10, -1 / 6, 1 / 6, -1 / 2):  # −(2n + 1)·B₂ₙ
        series = series.add(factor).mul(t)
    tail = series.sub(ops.div(1.0, z)).sub(1.0).mul(t)
    angle = x.mul(math.pi)
    sine = angle.sin()
    reflected = ops.div(angle.cos().mul(2 * math.pi**3), sine.mul(sine).mul(sine))
    return low.where(total.add(tail).sub(reflected), total.add(tail))


# --- two operands -----------------------------------------------------------------------------------------------------


def _arc_tan2(call: Recorded, grad: Tensor) -> Gradients:
    y, x = (call.input(index, each) for index, each in enumerate(call.saved))
    square = x * x + y * y
    zero = square == 0
    scale = where(zero, 0.0, grad / where(zero, 1.0, square))
    return scale * x, -(scale * y)


def _hypot(call: Recorded, grad: Tensor) -> Gradients:
    x, y, z = *(call.input(index, each) for index, each in enumerate(call.saved[:2])), call.output(call.saved[2])
    return grad * (x / z), grad * (y / z)


def _x_log_y(call: Recorded, grad: Tensor) -> Gradients:
    x, y = (call.input(index, each) for index, each in enumerate(call.saved[:2]))
    shift = call.saved[2]
    still = (x == 0) & (y <= -shift)
    inside = where(still, 1.0, y)
    grad_x = where(still, 0.0, grad * (log1p(inside) if shift else log(inside))) if call.needs[0] else None
    return grad_x, grad * (x / (y + shift)) if call.needs[1] else None


def _zeta(call: Recorded, grad: Tensor) -> Gradients:
    if call.needs[0]:
        raise NotImplementedError(hurwitz.NO_DERIVATIVE)
    s, q = (call.input(index, each) for index, each in enumerate(call.saved))
    return None, -(grad * hurwitz.Zeta.apply(s + 1, q) * s)


RULES[trigonometry.ArcTan2] = _arc_tan2
RULES[trigonometry.Hypot] = _hypot
RULES[special.XLogY] = _x_log_y
RULES[hurwitz.Zeta] = _zeta
RULES[exponents.Frexp] = lambda call, grad, *_: (
    grad * call.constant(exponents.power_of_two(call.saved[0].neg(), grad.array))
)

# --- running ----------------------------------------------------------------------------------------------------------


def _least_so_far(call: Recorded, array: NDArray) -> NDArray:
    (indices,) = call.saved
    return ops.gather(array, call.ctx.dim, indices)


def _cum_prod(call: Recorded, grad: Tensor) -> Tensor:
    """Back through the steps of a product by doubling: exact where elements are zero."""
    x, dim = call.input(0, call.saved[0]), call.ctx.dim
    size, step = x.shape[dim] if x.ndim else 1, 1
    stages = []
    while step < size:
        early, late = joining.narrow(x, dim, 0, size - step), joining.narrow(x, dim, step, size - step)
        stages.append((early, late, step))
        x = joining.cat([joining.narrow(x, dim, 0, step), early * late], dim)
        step *= 2
    for early, late, step in reversed(stages):
        head, tail = joining.narrow(grad, dim, 0, step), joining.narrow(grad, dim, step, size - step)
        nothing = call.constant(head.array.full_like(0))
        grad = joining.cat([head, tail * early], dim) + joining.cat([tail * late, nothing], dim)
    return grad


RULES[statistics.CumMin] = linear_by(_least_so_far)
RULES[statistics.CumProd] = _cum_prod
