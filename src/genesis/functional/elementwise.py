"""Element-wise functions of two and three operands.

Inputs broadcast; the dtype of the result follows PyTorch's promotion rule. A gradient may be returned still broadcast
and in the wider dtype: the backward walk sums and casts it to the input's shape and dtype.
"""

from __future__ import annotations

import cmath
import math

from genesis import dtypes
from genesis.autograd import BinaryFunction, Context, ElementwiseFunction, Gradients, Tensor
from genesis.dtypes import AnyNumber, Number
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.choice import Where as Where
from genesis.functional.choice import where as where
from genesis.ndarray import NDArray, ops, result_type

__all__ = ["add", "clamp", "div", "floor_divide", "maximum", "minimum", "mul", "pow", "remainder", "sub", "where"]

Operand = NDArray | Number


def add(input: Tensor | AnyNumber, other: Tensor | AnyNumber, *, alpha: Number = 1) -> Tensor:
    """input + alpha · other.

    Args:
        input, other: tensors whose shapes broadcast, or numbers.
        alpha: a factor of other; an integer if both operands are.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other. Saves nothing.
    Example: >>> F.add(genesis.tensor([1.0, 2.0]), 1).tolist()
    [2.0, 3.0]
    """
    return Add.apply(input, other if alpha == 1 else _scaled("add", other, alpha, input))


class Add(BinaryFunction):
    takes_numbers = True

    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        return ops.add(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return grad, grad


def sub(input: Tensor | AnyNumber, other: Tensor | AnyNumber, *, alpha: Number = 1) -> Tensor:
    """input − alpha · other.

    Args:
        input, other: tensors whose shapes broadcast, or numbers.
        alpha: a factor of other; an integer if both operands are.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast. DTypeError: an operand is bool.
    Grad: input, other. Saves nothing.
    Example: >>> F.sub(genesis.tensor([1.0, 2.0]), 1, alpha=2).tolist()
    [-1.0, 0.0]
    """
    for value in (input, other):
        if value is True or value is False or (isinstance(value, Tensor) and value.array.dtype.name == "bool"):
            raise DTypeError(describe("sub", "other", "numbers; for bool tensors use ^ or logical_not", "bool"))
    return Sub.apply(input, other if alpha == 1 else _scaled("sub", other, alpha, input))


class Sub(BinaryFunction):
    takes_numbers = True

    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        return ops.sub(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return grad, grad.neg() if ctx.needs_input_grad[1] else None


def _scaled(op: str, other: Tensor | AnyNumber, alpha: Number, input: Tensor | AnyNumber) -> Tensor | AnyNumber:
    kinds = [value.array.dtype if isinstance(value, Tensor) else dtypes.of_scalar(value) for value in (input, other)]
    if isinstance(alpha, float) and not any(dtype.is_differentiable for dtype in kinds):
        raise DTypeError(describe(op, "alpha", "an integer, as both inputs are integers", alpha))
    if isinstance(alpha, bool) and not all(dtype.name == "bool" for dtype in kinds):
        raise DTypeError(describe(op, "alpha", "a number, as the inputs are not bool", alpha))
    return mul(other, alpha) if isinstance(other, Tensor) else other * alpha


def mul(input: Tensor | AnyNumber, other: Tensor | AnyNumber) -> Tensor:
    """input · other.

    Args:
        input, other: tensors whose shapes broadcast, or numbers.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other. Saves the operands that the other's gradient needs.
    Example: >>> F.mul(genesis.tensor([1.0, 2.0]), 3).tolist()
    [3.0, 6.0]
    """
    return Mul.apply(input, other)


class Mul(BinaryFunction):
    takes_numbers = True

    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        needs_x, needs_y = ctx.needs_input_grad
        ctx.save(x if needs_y else None, y if needs_x else None)
        return ops.mul(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y = ctx.saved
        return None if y is None else grad.mul(y), None if x is None else grad.mul(x)


def div(input: Tensor | AnyNumber, other: Tensor | AnyNumber, *, rounding_mode: str | None = None) -> Tensor:
    """input / other, or the quotient rounded.

    Args:
        input, other: tensors whose shapes broadcast, or numbers.
        rounding_mode: None; "floor" rounds down, "trunc" towards zero; a rounded quotient has gradient zero.
    Returns: the common shape; the promoted dtype, but the default float dtype for unrounded integers.
    Raises: ValueError: the shapes don't broadcast; another rounding_mode.
    Grad: input, other. Saves other, and input if other's gradient needs it.
    Example: >>> F.div(genesis.tensor([5.0, -5.0]), 2, rounding_mode="trunc").tolist()
    [2.0, -2.0]
    """
    if rounding_mode is None:
        return Div.apply(input, other)
    if rounding_mode == "floor":
        return floor_divide(input, other)  # type: ignore[arg-type]  # complex numbers are refused there
    if rounding_mode != "trunc":
        raise ValueError(describe("div", "rounding_mode", 'None, "floor" or "trunc"', repr(rounding_mode)))
    return TruncDivide.apply(input, other)


class Div(BinaryFunction):
    takes_numbers = True

    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        needs_y = ctx.needs_input_grad[1]
        ctx.save(x if needs_y else None, y)
        return ops.div(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y = ctx.saved
        grad_x = grad.div(y)  # d/dx x/y = 1/y
        grad_y = grad_x.mul(x).div(y).neg() if ctx.needs_input_grad[1] else None  # d/dy x/y = −x/y²
        return grad_x, grad_y


def floor_divide(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """⌊input / other⌋, as Python's //.

    Args:
        input, other: tensors whose shapes broadcast, or numbers.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast. DTypeError: both are bool. ZeroDivisionError: integers by 0.
    Grad: input, other: zero everywhere. Saves nothing.
    Example: >>> F.floor_divide(genesis.tensor([5, -5]), 2).tolist()
    [2, -3]
    """
    _require_divisor("floor_divide", input, other)
    return FloorDivide.apply(input, other)


def _require_divisor(op: str, input: Tensor | Number, other: Tensor | Number) -> None:
    if isinstance(input, Tensor) and input.array.dtype.is_floating_point:
        return
    dtype = result_type(*(value.array if isinstance(value, Tensor) else value for value in (input, other)))
    if dtype.name == "bool":
        raise DTypeError(describe(op, "input", "numbers", dtype))
    divides = not isinstance(input, Tensor) or input.array.numel > 0
    if divides and not isinstance(other, Tensor) and other == 0 and not dtype.is_floating_point:
        raise ZeroDivisionError(describe(op, "other", "a number other than 0, as input is of integers", other))


class Stepwise(ElementwiseFunction):
    """A function that is constant between steps: its gradient is zero everywhere."""

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray | Gradients:
        zero = grad.full_like(0)
        return zero if len(ctx.needs_input_grad) == 1 else tuple(zero for _ in ctx.needs_input_grad)


class FloorDivide(Stepwise):
    takes_numbers = True

    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        return ops.floor_divide(x, y)


class TruncDivide(Stepwise):
    takes_numbers = True

    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        quotient = ops.div(x, y)
        if not (exact := ops.floor_divide(x, y)).dtype.is_floating_point:
            # ⌊q⌋ is one too low where it is inexact and negative.
            inexact = ops.remainder(x, y).ne(0).logical_and(quotient.lt(0))
            return exact.add(inexact.to(exact.dtype))
        return quotient.lt(0).where(quotient.ceil(), quotient.floor())


def remainder(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input − other · ⌊input / other⌋: the sign of other, as Python's %.

    Args:
        input, other: tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast. DTypeError: both are bool. ZeroDivisionError: integers by 0.
    Grad: input, other. Saves both, if other needs a gradient.
    Example: >>> F.remainder(genesis.tensor([5, -5]), 3).tolist()
    [2, 1]
    """
    _require_divisor("remainder", input, other)
    return Remainder.apply(input, other)


class Remainder(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        ctx.save(*((x, y) if ctx.needs_input_grad[1] else (None, None)))
        return ops.remainder(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y = ctx.saved
        return grad, ops.floor_divide(x, y).mul(grad).neg() if ctx.needs_input_grad[1] else None


def pow(input: Tensor | AnyNumber, exponent: Tensor | AnyNumber) -> Tensor:
    """input to the power of exponent.

    Args:
        input, exponent: tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: integers to a negative number, which would be fractions; the shapes don't broadcast.
        DTypeError: both are bool.
    Grad: input, exponent. Saves both, and the output if exponent needs a gradient.
    Example: >>> F.pow(genesis.tensor([2.0, 3.0]), 2).tolist()
    [4.0, 9.0]
    """
    if not (isinstance(input, Tensor) and input.array.dtype.is_differentiable):
        exponent = _integer_exponent(input, exponent)
    return Pow.apply(input, exponent)


def _integer_exponent(input: Tensor | AnyNumber, exponent: Tensor | AnyNumber) -> Tensor | AnyNumber:
    dtype = result_type(*(value.array if isinstance(value, Tensor) else value for value in (input, exponent)))
    if dtype.name == "bool" and (isinstance(exponent, Tensor) or not isinstance(input, Tensor)):
        raise DTypeError(describe("pow", "input", "numbers", dtype))
    if isinstance(exponent, Tensor | complex) or dtype.is_differentiable:
        return exponent
    if exponent < 0:
        raise ValueError(describe("pow", "exponent", "at least 0, as input is of integers", exponent))
    return dtypes.number("pow", "exponent", exponent, dtype)


class Pow(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        result = ops.pow(x, y)
        ctx.save(x, y, result if ctx.needs_input_grad[1] else None)
        return result

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y, result = ctx.saved
        needs_x, needs_y = ctx.needs_input_grad
        grad_x = grad_y = None
        if needs_x:  # d/dx xʸ = y·xʸ⁻¹, and 0 where y = 0
            if isinstance(y, NDArray):
                slope = x.pow(y.sub(1)).mul(y)
                grad_x = grad.mul(y.eq(0).where(0.0, slope))
            else:
                grad_x = grad.full_like(0) if y == 0 else grad.mul(x if y == 2 else x.pow(y - 1)).mul(y)
        if needs_y:  # d/dy xʸ = xʸ·ln x, and 0 where x = 0 and y ≥ 0
            if isinstance(x, NDArray):
                slope = result.mul(x.log())
                at_least_0 = (y.part(0) if y.dtype.is_complex else y).ge(0)
                grad_y = grad.mul(x.eq(0).logical_and(at_least_0).where(0.0, slope))
            elif x == 0:
                grad_y = grad.mul(y.ge(0).where(0.0, result.mul(-math.inf)))
            elif isinstance(x, complex):
                grad_y = grad.mul(ops.mul(result, cmath.log(x)))
            else:
                grad_y = grad.mul(result).mul(math.log(x) if x > 0 else math.nan)
        return grad_x, grad_y


def maximum(input: Tensor, other: Tensor) -> Tensor:
    """The larger of both; NaN if either is. Equal values share the gradient.

    Args:
        input, other: tensors whose shapes broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: an operand is no tensor. ValueError: the shapes don't broadcast.
    Grad: input, other. Saves both.
    Example: >>> F.maximum(genesis.tensor([1.0, 5.0]), genesis.tensor([3.0, 2.0])).tolist()
    [3.0, 5.0]
    """
    require_tensors("maximum", input=input, other=other)
    return Maximum.apply(input, other)


class Maximum(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        ctx.save(x, y)
        return ops.maximum(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y = ctx.saved
        return _share(grad, x, y, x.gt(y), x.lt(y))


def minimum(input: Tensor, other: Tensor) -> Tensor:
    """The smaller of both; NaN if either is. Equal values share the gradient.

    Args:
        input, other: tensors whose shapes broadcast.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: an operand is no tensor. ValueError: the shapes don't broadcast.
    Grad: input, other. Saves both.
    Example: >>> F.minimum(genesis.tensor([1.0, 5.0]), genesis.tensor([3.0, 2.0])).tolist()
    [1.0, 2.0]
    """
    require_tensors("minimum", input=input, other=other)
    return Minimum.apply(input, other)


class Minimum(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        ctx.save(x, y)
        return ops.minimum(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y = ctx.saved
        return _share(grad, x, y, x.lt(y), x.gt(y))


def _share(grad: NDArray, x: NDArray, y: NDArray, first_wins: NDArray, second_wins: NDArray) -> tuple[NDArray, NDArray]:
    """grad to the winner; half to each in a tie."""
    half = x.eq(y).where(grad.mul(0.5), grad)
    return second_wins.where(0.0, half), first_wins.where(0.0, half)


def clamp(input: Tensor, min: Tensor | Number | None = None, max: Tensor | Number | None = None) -> Tensor:
    """input, but at least min and at most max; max where min > max.

    Args:
        input: any shape, numbers.
        min, max: two numbers or two tensors that broadcast with input; one of them may be None.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: neither bound is given. DTypeError: input is bool; one bound a number, the other a tensor
        with dimensions.
    Grad: input, min, max. Saves input, and bounds that are tensors.
    Example: >>> F.clamp(genesis.tensor([-1.0, 0.5, 2.0]), 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    if min is None and max is None:
        raise ValueError(describe("clamp", "min", "at least one of min and max", None))
    bounds = (("min", min), ("max", max))
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        if all(bound is None or isinstance(bound, Tensor) for _, bound in bounds):
            return ClampBetween.apply(input, min, max)
        for name, bound in bounds:  # a 0-d tensor beside a number counts as one
            if isinstance(bound, Tensor) and bound.array.ndim:
                expected = "a number or a 0-d tensor, as the other bound is a number"
                raise DTypeError(describe("clamp", name, expected, f"shape {bound.array.shape}"))
        min, max = (bound.array.item() if isinstance(bound, Tensor) else bound for _, bound in bounds)
    return Clamp.apply(input, min=min, max=max)


class Clamp(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, min: Number | None, max: Number | None) -> NDArray:
        ctx.save(x)
        ctx.min, ctx.max = min, max
        bounds = [bound for bound in (min, max) if bound is not None]
        dtype = result_type(x, *bounds)
        if dtype.name == "bool":
            raise DTypeError(describe("clamp", "input", "numbers", dtype))
        low, high = (
            None if bound is None else dtypes.number("clamp", name, bound, dtype)
            for name, bound in (("min", min), ("max", max))
        )
        return x.to(dtype).clamp(low, high)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return _inside(x, ctx.min, ctx.max).where(grad, 0.0)


class ClampBetween(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, low: NDArray | None, high: NDArray | None) -> NDArray:
        ctx.save(x, low, high)
        y = x if low is None else x.maximum(low)
        return y if high is None else y.minimum(high)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, low, high = ctx.saved
        grad_x = _inside(x, low, high).where(grad, 0.0)
        grad_low = grad_high = None
        if low is not None:
            below = x.lt(low) if high is None else x.lt(low).logical_and(low.lt(high))
            grad_low = below.where(grad, 0.0)
        if high is not None:
            above = x.gt(high) if low is None else x.gt(high).logical_or(low.gt(high))
            grad_high = above.where(grad, 0.0)
        return grad_x, grad_low, grad_high


def _inside(x: NDArray, low: Operand | None, high: Operand | None) -> NDArray:
    if high is None:
        assert low is not None  # clamp() asks for one of them
        return x.ge(low)
    return x.le(high) if low is None else x.ge(low).logical_and(x.le(high))
