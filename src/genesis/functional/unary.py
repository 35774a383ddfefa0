"""Element-wise functions of one operand. Integers compute as the default float dtype where the result is real."""

from __future__ import annotations

import math
from typing import Any

from genesis.autograd import ElementwiseFunction
from genesis.autograd import Variable as Tensor
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_ints
from genesis.functional.elementwise import Mul, Stepwise
from genesis.functional.elementwise import pow as power
from genesis.ndarray import NDArray

__all__ = [
    "abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "neg", "reciprocal", "round", "rsqrt",
    "sign", "sin", "sqrt", "square",
]  # fmt: skip


def neg(input: Tensor) -> Any:
    """−input."""
    if input.array.dtype.name == "bool":
        raise DTypeError(describe("neg", "input", "numbers; for bool tensors use ~ or logical_not", "bool"))
    return Neg.apply(input)


class Neg(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        return x.neg()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return grad.neg()


def abs(input: Tensor) -> Any:
    """|input|."""
    return Abs.apply(input)


class Abs(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.abs()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return grad.mul(x.sign())  # d|x| = sign x, 0 at 0


def exp(input: Tensor) -> Any:
    """eˣ."""
    return Exp.apply(input)


class Exp(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        y = x.exp()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return grad.mul(y)  # d eˣ = eˣ


def expm1(input: Tensor) -> Any:
    """eˣ − 1, exact near 0."""
    return Expm1.apply(input)


class Expm1(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        y = x.expm1()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return grad.mul(y.add(1))  # d(eˣ − 1) = eˣ


def log(input: Tensor) -> Any:
    """The natural logarithm."""
    return Log.apply(input)


class Log(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.log()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return grad.div(x)  # d ln x = 1/x


def log1p(input: Tensor) -> Any:
    """ln(1 + x), exact near 0."""
    return Log1p.apply(input)


class Log1p(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.log1p()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return grad.div(x.add(1))  # d ln(1 + x) = 1/(1 + x)


def sqrt(input: Tensor) -> Any:
    """√input."""
    return Sqrt.apply(input)


class Sqrt(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        y = x.sqrt()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return grad.div(y.mul(2))  # d √x = 1/(2√x)


def rsqrt(input: Tensor) -> Any:
    """1/√input."""
    return Rsqrt.apply(input)


class Rsqrt(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        y = x.rsqrt()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return grad.mul(y.mul(y).mul(y)).mul(-0.5)  # d x^(−1/2) = −x^(−3/2)/2


def reciprocal(input: Tensor) -> Any:
    """1/input."""
    return Reciprocal.apply(input)


class Reciprocal(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        y = x.reciprocal()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return grad.mul(y.mul(y)).neg()  # d 1/x = −1/x²


def square(input: Tensor) -> Any:
    """input²."""
    return Mul.apply(input, input) if input.array.dtype.name != "bool" else power(input, 2)


def sin(input: Tensor) -> Any:
    """The sine of an angle in radians."""
    return Sin.apply(input)


class Sin(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return grad.mul(x.cos())  # d sin = cos


def cos(input: Tensor) -> Any:
    """The cosine of an angle in radians."""
    return Cos.apply(input)


class Cos(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.cos()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return grad.mul(x.sin()).neg()  # d cos = −sin


def erf(input: Tensor) -> Any:
    """The error function 2/√π · ∫₀ˣ exp(−t²) dt."""
    return Erf.apply(input)


class Erf(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return x.erf()

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return grad.mul(x.mul(x).neg().exp()).mul(2 / math.sqrt(math.pi))  # d erf = 2/√π · exp(−x²)


def sign(input: Tensor) -> Any:
    """−1, 0 or 1; its gradient is zero."""
    return Sign.apply(input)


class Sign(Stepwise):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        return x.sign()


def floor(input: Tensor) -> Any:
    """The largest integer ≤ input; its gradient is zero."""
    return Floor.apply(input)


class Floor(Stepwise):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        return x.floor()


def ceil(input: Tensor) -> Any:
    """The smallest integer ≥ input; its gradient is zero."""
    return Ceil.apply(input)


class Ceil(Stepwise):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        return x.ceil()


def round(input: Tensor, *, decimals: int = 0) -> Any:
    """The nearest integer (or multiple of 10^−decimals), halves to even; its gradient is zero."""
    require_ints("round", decimals=decimals)
    return Round.apply(input, decimals=decimals)


class Round(Stepwise):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, decimals: int) -> NDArray:
        return x.round(decimals)
