"""Element-wise functions of one operand. Integers compute as the default float dtype where the result is real."""

from __future__ import annotations

import math

from genesis.autograd import Context, ElementwiseFunction, Tensor
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_ints
from genesis.functional.elementwise import Mul, Stepwise
from genesis.functional.elementwise import pow as power
from genesis.ndarray import NDArray

__all__ = [
    "abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "positive", "reciprocal", "round",
    "rsqrt", "sign", "sin", "sqrt", "square",
]  # fmt: skip


def neg(input: Tensor) -> Tensor:
    """−input.

    Args:
        input: any shape, numbers.
    Returns: shape and dtype of input.
    Raises: DTypeError: input is bool.
    Grad: input. Saves nothing.
    Example: >>> F.neg(genesis.tensor([1.0, -2.0])).tolist()
    [-1.0, 2.0]
    """
    if input.array.dtype.name == "bool":
        raise DTypeError(describe("neg", "input", "numbers; for bool tensors use ~ or logical_not", "bool"))
    return Neg.apply(input)


def positive(input: Tensor) -> Tensor:
    """+input: the tensor itself.

    Args:
        input: any shape, numbers.
    Returns: input.
    Raises: DTypeError: input is bool.
    Grad: input.
    Example: >>> F.positive(genesis.tensor([1.0, -2.0])).tolist()
    [1.0, -2.0]
    """
    if input.array.dtype.name == "bool":
        raise DTypeError(describe("positive", "input", "numbers", "bool"))
    return input


class Neg(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return x.neg()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad.neg()


def abs(input: Tensor) -> Tensor:
    """|input|; the gradient at 0 is 0.

    Args:
        input: any shape and dtype.
    Returns: shape and dtype of input.
    Grad: input. Saves input.
    Example: >>> F.abs(genesis.tensor([1.0, -2.0])).tolist()
    [1.0, 2.0]
    """
    return Abs.apply(input)


class Abs(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.abs()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(x.sign())  # d|x| = sign x, 0 at 0


def exp(input: Tensor) -> Tensor:
    """eˣ.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.exp(genesis.tensor([0.0, -genesis.inf])).tolist()
    [1.0, 0.0]
    """
    return Exp.apply(input)


class Exp(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = x.exp()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.mul(y)  # d eˣ = eˣ


def expm1(input: Tensor) -> Tensor:
    """eˣ − 1, accurate near 0.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.expm1(genesis.tensor([0.0, 1e-10])).tolist()
    [0.0, 1.000000013351432e-10]
    """
    return Expm1.apply(input)


class Expm1(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = x.expm1()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.mul(y.add(1))  # d(eˣ − 1) = eˣ


def log(input: Tensor) -> Tensor:
    """The natural logarithm; NaN below 0.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.log(genesis.tensor([1.0, 0.0])).tolist()
    [0.0, -inf]
    """
    return Log.apply(input)


class Log(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.log()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.div(x)  # d ln x = 1/x


def log1p(input: Tensor) -> Tensor:
    """ln(1 + x), accurate near 0.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.log1p(genesis.tensor([0.0, 1e-10])).tolist()
    [0.0, 1.000000013351432e-10]
    """
    return Log1p.apply(input)


class Log1p(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.log1p()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.div(x.add(1))  # d ln(1 + x) = 1/(1 + x)


def sqrt(input: Tensor) -> Tensor:
    """√x; NaN below 0.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.sqrt(genesis.tensor([4.0, 9.0])).tolist()
    [2.0, 3.0]
    """
    return Sqrt.apply(input)


class Sqrt(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = x.sqrt()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.div(y.mul(2))  # d √x = 1/(2√x)


def rsqrt(input: Tensor) -> Tensor:
    """1/√x.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.rsqrt(genesis.tensor([4.0, 16.0])).tolist()
    [0.5, 0.25]
    """
    return Rsqrt.apply(input)


class Rsqrt(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = x.rsqrt()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.mul(y.mul(y).mul(y)).mul(-0.5)  # d x^(−1/2) = −x^(−3/2)/2


def reciprocal(input: Tensor) -> Tensor:
    """1/x.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.reciprocal(genesis.tensor([2.0, 4.0])).tolist()
    [0.5, 0.25]
    """
    return Reciprocal.apply(input)


class Reciprocal(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = x.reciprocal()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.mul(y.mul(y)).neg()  # d 1/x = −1/x²


def square(input: Tensor) -> Tensor:
    """x².

    Args:
        input: any shape and dtype.
    Returns: the shape and dtype of input (int64 for bool).
    Grad: input. Saves input.
    Example: >>> F.square(genesis.tensor([3.0, -2.0])).tolist()
    [9.0, 4.0]
    """
    return Mul.apply(input, input) if input.array.dtype.name != "bool" else power(input, 2)


def sin(input: Tensor) -> Tensor:
    """The sine of an angle in radians.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.sin(genesis.tensor([0.0])).tolist()
    [0.0]
    """
    return Sin.apply(input)


class Sin(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(x.cos())  # d sin = cos


def cos(input: Tensor) -> Tensor:
    """The cosine of an angle in radians.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.cos(genesis.tensor([0.0])).tolist()
    [1.0]
    """
    return Cos.apply(input)


class Cos(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.cos()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(x.sin()).neg()  # d cos = −sin


def erf(input: Tensor) -> Tensor:
    """The error function, 2/√π · ∫₀ˣ exp(−t²) dt.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.erf(genesis.tensor([0.0, genesis.inf])).tolist()
    [0.0, 1.0]
    """
    return Erf.apply(input)


class Erf(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.erf()

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(x.mul(x).neg().exp()).mul(2 / math.sqrt(math.pi))  # d erf = 2/√π · exp(−x²)


def sign(input: Tensor) -> Tensor:
    """The sign of each element: −1, 0 or 1.

    Args:
        input: any shape and dtype.
    Returns: shape and dtype of input.
    Grad: input, zero everywhere. Saves nothing.
    Example: >>> F.sign(genesis.tensor([-3.0, 0.0, 2.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    return Sign.apply(input)


class Sign(Stepwise):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return x.sign()


def floor(input: Tensor) -> Tensor:
    """The largest integer ≤ x.

    Args:
        input: any shape and dtype.
    Returns: shape and dtype of input.
    Grad: input, zero everywhere. Saves nothing.
    Example: >>> F.floor(genesis.tensor([1.5, -1.5])).tolist()
    [1.0, -2.0]
    """
    return Floor.apply(input)


class Floor(Stepwise):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return x.floor()


def ceil(input: Tensor) -> Tensor:
    """The smallest integer ≥ x.

    Args:
        input: any shape and dtype.
    Returns: shape and dtype of input.
    Grad: input, zero everywhere. Saves nothing.
    Example: >>> F.ceil(genesis.tensor([1.5, -1.5])).tolist()
    [2.0, -1.0]
    """
    return Ceil.apply(input)


class Ceil(Stepwise):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return x.ceil()


def round(input: Tensor, *, decimals: int = 0) -> Tensor:
    """The nearest integer, or multiple of 10^−decimals; halves go to even.

    Args:
        input: any shape and dtype.
        decimals: digits to keep after the point; negative ones round to tens, hundreds, …
    Returns: shape and dtype of input.
    Raises: DTypeError: decimals is no int.
    Grad: input, zero everywhere. Saves nothing.
    Example: >>> F.round(genesis.tensor([0.5, 1.5, 2.4])).tolist()
    [0.0, 2.0, 2.0]
    """
    require_ints("round", decimals=decimals)
    return Round.apply(input, decimals=decimals)


class Round(Stepwise):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, decimals: int) -> NDArray:
        return x.round(decimals)
