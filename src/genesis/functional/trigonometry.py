"""Trigonometric and hyperbolic functions, and their inverses."""

from __future__ import annotations

from genesis.autograd import BinaryFunction, Context, ElementwiseFunction, Gradients, Tensor
from genesis.functional.arguments import require_tensors
from genesis.ndarray import NDArray, ops

__all__ = ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "hypot", "sinh", "tan"]


def tan(input: Tensor) -> Tensor:
    """The tangent of an angle in radians.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.tan(genesis.tensor([0.0])).tolist()
    [0.0]
    """
    return Tan.apply(input)


class Tan(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = ops.tan(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.mul(y.mul(y).add(1))  # d tan = 1 + tan²


def asin(input: Tensor) -> Tensor:
    """The arcsine, in [−π/2, π/2]; NaN outside [−1, 1].

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.asin(genesis.tensor([0.0])).tolist()
    [0.0]
    """
    return ArcSin.apply(input)


class ArcSin(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.asin(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(ops.rsqrt(x.mul(x).neg().add(1)))  # d asin = 1/√(1 − x²)


def acos(input: Tensor) -> Tensor:
    """The arccosine, in [0, π]; NaN outside [−1, 1].

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.acos(genesis.tensor([1.0])).tolist()
    [0.0]
    """
    return ArcCos.apply(input)


class ArcCos(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.acos(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(ops.rsqrt(x.mul(x).neg().add(1))).neg()  # d acos = −1/√(1 − x²)


def atan(input: Tensor) -> Tensor:
    """The arctangent, in [−π/2, π/2].

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.atan(genesis.tensor([0.0])).tolist()
    [0.0]
    """
    return ArcTan.apply(input)


class ArcTan(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.atan(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.div(x.mul(x).add(1))  # d atan = 1/(1 + x²)


def sinh(input: Tensor) -> Tensor:
    """The hyperbolic sine.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.sinh(genesis.tensor([0.0])).tolist()
    [0.0]
    """
    return Sinh.apply(input)


class Sinh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.sinh(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(ops.cosh(x))  # d sinh = cosh


def cosh(input: Tensor) -> Tensor:
    """The hyperbolic cosine.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.cosh(genesis.tensor([0.0])).tolist()
    [1.0]
    """
    return Cosh.apply(input)


class Cosh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.cosh(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(ops.sinh(x))  # d cosh = sinh


def asinh(input: Tensor) -> Tensor:
    """The inverse hyperbolic sine.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.asinh(genesis.tensor([0.0])).tolist()
    [0.0]
    """
    return Asinh.apply(input)


class Asinh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.asinh(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(ops.rsqrt(x.mul(x).add(1)))  # d asinh = 1/√(x² + 1)


def acosh(input: Tensor) -> Tensor:
    """The inverse hyperbolic cosine; NaN below 1.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.acosh(genesis.tensor([1.0])).tolist()
    [0.0]
    """
    return Acosh.apply(input)


class Acosh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.acosh(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(ops.rsqrt(x.mul(x).sub(1)))  # d acosh = 1/√(x² − 1)


def atanh(input: Tensor) -> Tensor:
    """The inverse hyperbolic tangent; NaN outside [−1, 1].

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.atanh(genesis.tensor([0.0])).tolist()
    [0.0]
    """
    return Atanh.apply(input)


class Atanh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.atanh(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.div(x.mul(x).neg().add(1))  # d atanh = 1/(1 − x²)


def atan2(input: Tensor, other: Tensor) -> Tensor:
    """The angle in [−π, π] of the point (other, input).

    Args:
        input: the second coordinate, any shape.
        other: the first one; broadcasts with input.
    Returns: the common shape, in the promoted dtype, a floating one.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other. Saves both.
    Example: >>> F.atan2(genesis.tensor([0.0]), genesis.tensor([1.0])).tolist()
    [0.0]
    """
    require_tensors("atan2", input=input, other=other)
    return ArcTan2.apply(input, other)


class ArcTan2(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, y: NDArray, x: NDArray) -> NDArray:
        ctx.save(y, x)
        return ops.atan2(y, x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        y, x = ctx.saved
        square = x.mul(x).add(y.mul(y))
        scale = square.eq(0).where(0.0, grad.div(square))
        return scale.mul(x), scale.mul(y).neg()  # d atan2(y, x) = (x dy − y dx) / (x² + y²)


def hypot(input: Tensor, other: Tensor) -> Tensor:
    """√(input² + other²), without overflow.

    Args:
        input, other: tensors whose shapes broadcast, floating.
    Returns: the common shape, in the promoted dtype.
    Raises: ValueError: the shapes don't broadcast.
    Grad: input, other. Saves both and the output.
    Example: >>> F.hypot(genesis.tensor([3.0]), genesis.tensor([4.0])).tolist()
    [5.0]
    """
    require_tensors("hypot", input=input, other=other)
    return Hypot.apply(input, other)


class Hypot(BinaryFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, y: NDArray) -> NDArray:
        z = ops.hypot(x, y)
        ctx.save(x, y, z)
        return z

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, y, z = ctx.saved
        return grad.mul(x.div(z)), grad.mul(y.div(z))  # d √(x² + y²) = (x dx + y dy) / √(x² + y²)
