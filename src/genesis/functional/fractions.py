"""Truncation, remainders and signs of floating-point numbers."""

from __future__ import annotations

from genesis.autograd import BinaryFunction, Context, ElementwiseFunction, Gradients, Tensor
from genesis.dtypes import Number
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.elementwise import Stepwise, sub
from genesis.ndarray import NDArray, ops, result_type

__all__ = ["copysign", "fmod", "frac", "nextafter", "signbit", "trunc"]

Operand = NDArray | Number


def trunc(input: Tensor) -> Tensor:
    """The integer part: rounded toward 0.

    Args:
        input: any shape and dtype.
    Returns: shape and dtype of input.
    Grad: input, zero everywhere. Saves nothing.
    Example: >>> F.trunc(genesis.tensor([1.5, -1.5])).tolist()
    [1.0, -1.0]
    """
    return Trunc.apply(input)


class Trunc(Stepwise):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return ops.trunc(x)


def frac(input: Tensor) -> Tensor:
    """The part after the point, with the sign of input.

    Args:
        input: any shape, floating.
    Returns: shape and dtype of input.
    Raises: DTypeError: input is not floating.
    Grad: input. Saves nothing.
    Example: >>> F.frac(genesis.tensor([1.5, -1.5])).tolist()
    [0.5, -0.5]
    """
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe("frac", "input", "a floating dtype", input.array.dtype))
    return sub(input, trunc(input.detach()))


def fmod(input: Tensor, other: Tensor | Number) -> Tensor:
    """The remainder of a division rounded toward 0; it has the sign of input.

    Args:
        input: any shape, numbers.
        other: a tensor that broadcasts with input, or a number.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast. DTypeError: both are bool.
    Grad: input, other. Saves both where other's gradient is asked for.
    Example: >>> F.fmod(genesis.tensor([5.0, -5.0]), 3).tolist()
    [2.0, -2.0]
    """
    require_tensors("fmod", input=input)
    kinds = [value.array.dtype if isinstance(value, Tensor) else None for value in (input, other)]
    if all(kind is not None and kind.name == "bool" for kind in kinds):
        raise DTypeError(describe("fmod", "other", "numbers", "bool"))
    return Fmod.apply(input, other)


class Fmod(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        if ctx.needs_input_grad[1]:
            ctx.save(x, y)
        else:
            ctx.save(None, None)
        return ops.fmod(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y = ctx.saved
        return grad, None if y is None else grad.mul(ops.trunc(ops.div(x, y))).neg()  # x − y·trunc(x/y)


def copysign(input: Tensor, other: Tensor | Number) -> Tensor:
    """|input| with the sign of other, that of zeros too.

    Args:
        input: any shape; integers compute as the default float dtype.
        other: a tensor that broadcasts with input, or a number.
    Returns: the common shape, in the promoted dtype, a floating one.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input. Saves input and the output.
    Example: >>> F.copysign(genesis.tensor([1.0, 2.0]), genesis.tensor([-0.0, 3.0])).tolist()
    [-1.0, 2.0]
    """
    require_tensors("copysign", input=input)
    return CopySign.apply(input, other)


class CopySign(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        z = ops.copysign(x, y)
        ctx.save(x, z)
        return z

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, z = ctx.saved
        needs_y = ctx.needs_input_grad[1]
        return grad.mul(ops.sign(z).mul(ops.sign(x))), grad.full_like(0, z.shape) if needs_y else None


def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The number after input in the direction of other.

    Args:
        input, other: tensors whose shapes broadcast, floating.
    Returns: the common shape, in the promoted dtype.
    Raises: DTypeError: a dtype is not floating. ValueError: the shapes don't broadcast.
    Grad: input; zero where both are equal. Saves both.
    Example: >>> F.nextafter(genesis.tensor([0.0]), genesis.tensor([1.0])).tolist()
    [1.401298464324817e-45]
    """
    return NextAfter.apply(input, other)


class NextAfter(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand) -> NDArray:
        dtype = result_type(x, y)
        if not dtype.is_floating_point:
            raise DTypeError(describe("nextafter", "input", "a floating dtype", dtype))
        ctx.save(x, y)
        return ops.nextafter(x, y)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y = ctx.saved
        return grad.mul(ops.ne(x, y).to(grad.dtype)), grad.full_like(0)  # a step that hardly depends on x


def signbit(input: Tensor) -> Tensor:
    """Whether the sign is minus, that of −0.0 too.

    Args:
        input: any shape and dtype.
    Returns: the shape of input, bool.
    Example: >>> F.signbit(genesis.tensor([-0.0, 0.0, -1.0])).tolist()
    [True, False, True]
    """
    return SignBit.apply(input)


class SignBit(ElementwiseFunction):
    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return (ops.copysign(x.full_like(1), x) if x.dtype.is_floating_point else x).lt(0)
