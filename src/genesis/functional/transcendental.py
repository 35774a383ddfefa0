"""Logarithms to other bases, and the error and gamma functions."""

from __future__ import annotations

import math

from genesis.autograd import Context, ElementwiseFunction, Tensor
from genesis.ndarray import NDArray, ops

__all__ = ["digamma", "erfc", "erfinv", "exp2", "lgamma", "log2", "log10"]


def exp2(input: Tensor) -> Tensor:
    """2ˣ.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.exp2(genesis.tensor([3.0])).tolist()
    [8.0]
    """
    return Exp2.apply(input)


class Exp2(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = ops.exp2(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.mul(y.mul(math.log(2)))  # d 2ˣ = 2ˣ·ln 2


def log2(input: Tensor) -> Tensor:
    """The logarithm to base 2; NaN below 0.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.log2(genesis.tensor([8.0])).tolist()
    [3.0]
    """
    return Log2.apply(input)


class Log2(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.log2(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.div(x.mul(math.log(2)))  # d log₂ x = 1/(x·ln 2)


def log10(input: Tensor) -> Tensor:
    """The logarithm to base 10; NaN below 0.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.log10(genesis.tensor([1.0])).tolist()
    [0.0]
    """
    return Log10.apply(input)


class Log10(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.log10(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.div(x.mul(math.log(10)))  # d log₁₀ x = 1/(x·ln 10)


def erfc(input: Tensor) -> Tensor:
    """1 − erf(x), accurate where that is small.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.erfc(genesis.tensor([0.0])).tolist()
    [1.0]
    """
    return Erfc.apply(input)


class Erfc(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.erfc(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(x.mul(x).neg().exp()).mul(-2 / math.sqrt(math.pi))  # d erfc = −2/√π · exp(−x²)


def erfinv(input: Tensor) -> Tensor:
    """The inverse of erf; ±∞ at ±1, NaN outside.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.erfinv(genesis.tensor([0.0])).tolist()
    [0.0]
    """
    return Erfinv.apply(input)


class Erfinv(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = ops.erfinv(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return grad.mul(y.mul(y).exp()).mul(math.sqrt(math.pi) / 2)  # d erf⁻¹ = √π/2 · exp(y²)


def lgamma(input: Tensor) -> Tensor:
    """ln |Γ(x)|.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> F.lgamma(genesis.tensor([1.0])).tolist()
    [0.0]
    """
    return LogGamma.apply(input)


class LogGamma(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.lgamma(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(ops.digamma(x))  # d ln Γ = ψ


def digamma(input: Tensor) -> Tensor:
    """ψ(x) = d ln Γ(x) / dx; −∞ at 0, NaN at the negative integers.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves input.
    Example: >>> round(F.digamma(genesis.tensor(1.0)).item(), 4)
    -0.5772
    """
    return Digamma.apply(input)


class Digamma(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.digamma(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return grad.mul(ops.trigamma(x))  # d ψ = ψ′
