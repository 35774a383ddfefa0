"""The zeta function of Hurwitz."""

from __future__ import annotations

import math

from genesis.autograd import BinaryFunction, Context, Gradients, Tensor
from genesis.dtypes import Number, float64, get_default_dtype
from genesis.functional.arguments import require_tensors
from genesis.ndarray import NDArray, ops, result_type
from genesis.shapes import broadcast

__all__ = ["zeta"]

Operand = NDArray | Number
NO_DERIVATIVE = "zeta: argument 'input' has no derivative, in PyTorch neither; detach() it"


def zeta(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """Σ (other + k)^−input over k = 0, 1, …: the zeta function of Hurwitz.

    Infinite where input is 1 or other is 0, −1, …; NaN where input is below 1, or no integer while other is below 0.

    Args:
        input, other: tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype. Integers compute as the default float dtype.
    Raises: ValueError: the shapes don't broadcast. NotImplementedError: backward to input, as in PyTorch.
    Grad: other.
    Example: >>> round(genesis.special.zeta(genesis.tensor(2.0), 1.0).item(), 4)
    1.6449
    """
    if not isinstance(input, Tensor):
        require_tensors("zeta", other=other)
    return Zeta.apply(input, other)


class Zeta(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, s: Operand, q: Operand) -> NDArray:
        dtype = result_type(s, q)
        dtype = dtype if dtype.is_floating_point else get_default_dtype()
        ctx.save(s, q)
        # Of numbers too, as PyTorch: they are first rounded to the dtype of the result.
        like = s if isinstance(s, NDArray) else q
        assert isinstance(like, NDArray)
        wide = [
            (x if isinstance(x, NDArray) else like.to(dtype).full_like(x, ())).to(dtype).to(float64) for x in (s, q)
        ]
        return _zeta(*wide).to(dtype)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        if ctx.needs_input_grad[0]:
            raise NotImplementedError(NO_DERIVATIVE)
        s, q = ctx.saved
        above = s.add(1) if isinstance(s, NDArray) else s + 1
        return None, grad.mul(ops.mul(Zeta.forward(ctx, above, q), s)).neg()  # ∂ζ/∂q = −s·ζ(s + 1, q)


# --- values in float64 ------------------------------------------------------------------------------------------------


def _zeta(s: NDArray, q: NDArray) -> NDArray:
    """Below 0, the terms up to there are a difference of two zeta functions, as (−x)^−s is ±x^−s."""
    count = q.floor().neg()
    rest = q.add(count)  # q modulo 1, where q is negative
    below = q.lt(0)
    odd = s.remainder(2.0).eq(1)
    shape = broadcast("zeta", s.shape, q.shape)
    starts = below.where(rest, q), rest.neg().add(1.0), below.where(q.neg(), 1.0).add(1.0)
    sums = _positive(s, ops.cat([each.expand(shape).unsqueeze(0) for each in starts], 0))  # one call for the three
    value, one, other = (sums.select(0, index) for index in range(3))
    terms = one.sub(other)
    value = value.add(below.where(odd.where(terms.neg(), terms), 0.0))
    value = below.logical_and(s.ne(s.floor())).where(math.nan, value)
    value = q.le(0).logical_and(q.eq(q.floor())).where(math.inf, value)
    return s.eq(1).where(math.inf, s.lt(1).where(math.nan, value))


def _positive(s: NDArray, q: NDArray) -> NDArray:
    """Ten terms, and Euler and Maclaurin's formula for the rest. q > 0."""
    minus = s.neg()
    total = q.pow(minus)
    for _ in range(9):
        q = q.add(1.0)
        term = q.pow(minus)
        total = total.add(term)
    total = total.add(term.mul(q).div(s.sub(1.0))).sub(term.mul(0.5))
    rising, inverse = s, ops.div(1.0, q)
    power, square = term.mul(inverse), inverse.mul(inverse)
    for n, divisor in enumerate(_DIVISORS):
        total = total.add(power.eq(0).where(0.0, rising.mul(power).div(divisor)))
        rising = rising.mul(s.add(2 * n + 1.0)).mul(s.add(2 * n + 2.0))
        power = power.mul(square)
    return total


_DIVISORS = (  # (2n)! / B₂ₙ
    12.0, -720.0, 30240.0, -1209600.0, 47900160.0, -1.8924375803183791606e9, 7.47242496e10, -2.950130727918164224e12,
    1.1646782814350067249e14, -4.5979787224074726105e15, 1.8152105401943546773e17, -7.1661652561756670113e18,
)  # fmt: skip
