"""Element-wise functions of special use: of probabilities, of logarithms of sums, at removable poles."""

from __future__ import annotations

import math

from genesis.autograd import BinaryFunction, Context, ElementwiseFunction, Gradients, Tensor
from genesis.dtypes import Number, get_default_dtype
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.comparison import eq, lt
from genesis.functional.compound import floating
from genesis.functional.elementwise import add, clamp, maximum, mul, sub, where
from genesis.functional.transcendental import erfc, lgamma
from genesis.functional.unary import abs as absolute
from genesis.functional.unary import exp, log1p, neg
from genesis.ndarray import NDArray, ops, result_type

__all__ = [
    "entr",
    "logaddexp",
    "logaddexp2",
    "logit",
    "mvlgamma",
    "ndtr",
    "sinc",
    "xlog1py",
    "xlogy",
]

Operand = NDArray | Number


def logaddexp(input: Tensor, other: Tensor) -> Tensor:
    """ln(eˣ + eʸ), without overflow.

    Args:
        input, other: tensors whose shapes broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other.
    Example: >>> F.logaddexp(genesis.tensor([1000.0]), genesis.tensor([1000.0])).tolist()
    [1000.6931762695312]
    """
    return _log_add("logaddexp", input, other, 1.0)


def logaddexp2(input: Tensor, other: Tensor) -> Tensor:
    """log₂(2ˣ + 2ʸ), without overflow.

    Args:
        input, other: tensors whose shapes broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other.
    Example: >>> F.logaddexp2(genesis.tensor([3.0]), genesis.tensor([3.0])).tolist()
    [4.0]
    """
    return _log_add("logaddexp2", input, other, math.log(2))


def xlogy(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input · ln other, and 0 where input is 0; NaN where other is.

    Args:
        input, other: tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype. Integers compute as the default float dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other.
    Example: >>> F.xlogy(genesis.tensor([0.0, 2.0]), genesis.tensor([0.0, 1.0])).tolist()
    [0.0, 0.0]
    """
    return XLogY.apply(input, other, shift=0)


def xlog1py(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input · ln(1 + other), and 0 where input is 0; NaN where other is.

    Args:
        input, other: tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype. Integers compute as the default float dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other.
    Example: >>> F.xlog1py(genesis.tensor([0.0, 2.0]), genesis.tensor([-1.0, 0.0])).tolist()
    [0.0, 0.0]
    """
    return XLogY.apply(input, other, shift=1)


def logit(input: Tensor, eps: float | None = None) -> Tensor:
    """ln(x / (1 − x)), the inverse of sigmoid.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
        eps: clamp input to [eps, 1 − eps] first.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input; zero where it is clamped.
    Example: >>> F.logit(genesis.tensor([0.5])).tolist()
    [0.0]
    """
    x = floating(input)
    if eps is not None:
        x = clamp(x, eps, 1 - eps)
    return Logit.apply(x)


def sinc(input: Tensor) -> Tensor:
    """sin(πx) / (πx), and 1 at 0.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.sinc(genesis.tensor([0.0])).tolist()
    [1.0]
    """
    return Sinc.apply(input)


def entr(input: Tensor) -> Tensor:
    """−x · ln x, 0 at 0 and −∞ below.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input.
    Example: >>> round(F.entr(genesis.tensor(0.5)).item(), 4)
    0.3466
    """
    x = floating(input)
    return where(lt(x, 0), -math.inf, neg(xlogy(x, x)))


def ndtr(input: Tensor) -> Tensor:
    """The distribution function of the standard normal: ½ erfc(−x/√2).

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input.
    Example: >>> F.ndtr(genesis.tensor([0.0])).tolist()
    [0.5]
    """
    return mul(erfc(mul(floating(input), -math.sqrt(0.5))), 0.5)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """The multivariate log-gamma function of dimension p.

    Args:
        input: any shape, above (p − 1)/2; integers compute as the default float dtype.
        p: the dimension, at least 1.
    Returns: the shape of input, in the dtype it is computed in.
    Raises: ValueError: p < 1. DTypeError: input is bool.
    Grad: input.
    Example: >>> F.mvlgamma(genesis.tensor([2.0]), 1).tolist()
    [0.0]
    """
    if p < 1:
        raise ValueError(describe("mvlgamma", "p", "at least 1", p))
    if input.array.dtype.name == "bool":
        raise DTypeError(describe("mvlgamma", "input", "numbers", "bool"))
    x = floating(input)
    total = add(lgamma(x), p * (p - 1) / 4 * math.log(math.pi))
    for number in range(1, p):
        total = add(total, lgamma(sub(x, number / 2)))
    return total


# --- what they share --------------------------------------------------------------------------------------------------


class XLogY(BinaryFunction):
    """x · ln(shift + y), where 0 · ln is 0."""

    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand, *, shift: int) -> NDArray:
        dtype = result_type(x, y)
        dtype = dtype if dtype.is_floating_point else get_default_dtype()
        x, y = (value.to(dtype) if isinstance(value, NDArray) else value for value in (x, y))
        if not isinstance(y, NDArray):
            y = x.full_like(y, ())  # type: ignore[union-attr]
        ctx.save(x, y, shift)
        product = _log(y, shift).mul(x)
        return ops.where(y.isnan(), y, ops.eq(y.full_like(1, ()).mul(x), 0).where(0.0, product)).to(dtype)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y, shift = ctx.saved
        log = _log(y, shift)
        still = ops.eq(y.full_like(1, ()).mul(x), 0).logical_and(ops.le(y, -shift))
        return still.where(0.0, grad.mul(log)), grad.mul(ops.div(x, y.add(shift)))


def _log(y: NDArray, shift: int) -> NDArray:
    return y.log1p() if shift else y.log()


class Logit(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.div(x.neg().add(1)).log()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        inside = x.ge(0).logical_and(x.le(1))
        return inside.where(grad.div(x.mul(x.neg().add(1))), math.nan)  # d logit = 1/(x(1 − x))


class Sinc(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        x = x if x.dtype.is_floating_point else x.to(get_default_dtype())
        ctx.save(x)
        angle = x.mul(math.pi)
        return x.eq(0).where(1.0, angle.sin().div(angle))

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        angle = x.mul(math.pi)
        slope = angle.cos().mul(angle).sub(angle.sin()).div(angle.mul(x))  # d sinc = (πx·cos πx − sin πx) / (πx²)
        return grad.mul(x.eq(0).where(0.0, slope))


def _log_add(op: str, input: Tensor, other: Tensor, base: float) -> Tensor:
    """The greater plus log(1 + base^−distance); base is given by its logarithm."""
    require_tensors(op, input=input, other=other)
    x, y = (floating(value) for value in (input, other))
    distance = absolute(sub(x, y))
    both = eq(distance, distance)  # ∞ − ∞ has no distance: the greater is the result
    apart = where(both, distance, math.inf)
    more = mul(log1p(exp(mul(apart, -base))), 1 / base)
    return add(maximum(x, y), more)
