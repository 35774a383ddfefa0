"""Element-wise ops: torch's own, under the contract's names."""

from __future__ import annotations

import torch
from torch import Tensor

from genesis.backends.contract import Number, Operand


def neg(x: Tensor) -> Tensor:
    return torch.neg(x)


def abs(x: Tensor) -> Tensor:
    return torch.abs(x)


def sign(x: Tensor) -> Tensor:
    return torch.sgn(x)  # of complex numbers too


def exp(x: Tensor) -> Tensor:
    return torch.exp(x)


def expm1(x: Tensor) -> Tensor:
    return torch.expm1(x)


def log(x: Tensor) -> Tensor:
    return torch.log(x)


def log1p(x: Tensor) -> Tensor:
    return torch.log1p(x)


def sqrt(x: Tensor) -> Tensor:
    return torch.sqrt(x)


def rsqrt(x: Tensor) -> Tensor:
    return torch.rsqrt(x)


def reciprocal(x: Tensor) -> Tensor:
    return torch.reciprocal(x)


def sin(x: Tensor) -> Tensor:
    return torch.sin(x)


def cos(x: Tensor) -> Tensor:
    return torch.cos(x)


def tanh(x: Tensor) -> Tensor:
    return torch.tanh(x)


def sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def erf(x: Tensor) -> Tensor:
    return torch.erf(x)


def tan(x: Tensor) -> Tensor:
    return torch.tan(x)


def asin(x: Tensor) -> Tensor:
    return torch.asin(x)


def acos(x: Tensor) -> Tensor:
    return torch.acos(x)


def atan(x: Tensor) -> Tensor:
    return torch.atan(x)


def sinh(x: Tensor) -> Tensor:
    return torch.sinh(x)


def cosh(x: Tensor) -> Tensor:
    return torch.cosh(x)


def asinh(x: Tensor) -> Tensor:
    return torch.asinh(x)


def acosh(x: Tensor) -> Tensor:
    return torch.acosh(x)


def atanh(x: Tensor) -> Tensor:
    return torch.atanh(x)


def exp2(x: Tensor) -> Tensor:
    return torch.exp2(x)


def log2(x: Tensor) -> Tensor:
    return torch.log2(x)


def log10(x: Tensor) -> Tensor:
    return torch.log10(x)


def erfc(x: Tensor) -> Tensor:
    return torch.erfc(x)


def erfinv(x: Tensor) -> Tensor:
    return torch.erfinv(x)


def lgamma(x: Tensor) -> Tensor:
    return torch.lgamma(x)


def digamma(x: Tensor) -> Tensor:
    return torch.digamma(x)


def trunc(x: Tensor) -> Tensor:
    return torch.trunc(x)


def trigamma(x: Tensor) -> Tensor:
    return torch.polygamma(1, x)


def floor(x: Tensor) -> Tensor:
    return torch.floor(x)


def ceil(x: Tensor) -> Tensor:
    return torch.ceil(x)


def isnan(x: Tensor) -> Tensor:
    return torch.isnan(x)


def isinf(x: Tensor) -> Tensor:
    return torch.isinf(x)


def isfinite(x: Tensor) -> Tensor:
    return torch.isfinite(x)


def logical_not(x: Tensor) -> Tensor:
    return torch.logical_not(x)


def bitwise_not(x: Tensor) -> Tensor:
    return torch.bitwise_not(x)


def round(x: Tensor, decimals: int = 0) -> Tensor:
    return torch.round(x, decimals=decimals) if decimals else torch.round(x)


def add(x: Operand, y: Operand) -> Tensor:
    return x + y


def sub(x: Operand, y: Operand) -> Tensor:
    return x - y


def mul(x: Operand, y: Operand) -> Tensor:
    return x * y


def div(x: Operand, y: Operand) -> Tensor:
    return x / y


def fmod(x: Operand, y: Operand) -> Tensor:
    return torch.fmod(*_both(x, y))


def atan2(x: Operand, y: Operand) -> Tensor:
    return torch.atan2(*_both(x, y))


def hypot(x: Operand, y: Operand) -> Tensor:
    return torch.hypot(*_both(x, y))


def copysign(x: Operand, y: Operand) -> Tensor:
    return torch.copysign(*_both(x, y))


def nextafter(x: Operand, y: Operand) -> Tensor:
    return torch.nextafter(*_both(x, y))


def _both(x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    """Both as tensors of one dtype: one may be a number."""
    if not isinstance(x, Tensor):
        x = torch.tensor(x, dtype=y.dtype)
    return x, y if isinstance(y, Tensor) else torch.tensor(y, dtype=x.dtype)


def floor_divide(x: Operand, y: Operand) -> Tensor:
    return x // y


def remainder(x: Operand, y: Operand) -> Tensor:
    return torch.remainder(x, y)


def pow(x: Operand, y: Operand) -> Tensor:
    return torch.pow(x, y)


def maximum(x: Operand, y: Operand) -> Tensor:
    return torch.maximum(*_tensors(x, y))


def minimum(x: Operand, y: Operand) -> Tensor:
    return torch.minimum(*_tensors(x, y))


def eq(x: Operand, y: Operand) -> Tensor:
    return x == y


def ne(x: Operand, y: Operand) -> Tensor:
    return x != y


def lt(x: Operand, y: Operand) -> Tensor:
    return x < y


def le(x: Operand, y: Operand) -> Tensor:
    return x <= y


def gt(x: Operand, y: Operand) -> Tensor:
    return x > y


def ge(x: Operand, y: Operand) -> Tensor:
    return x >= y


def logical_and(x: Operand, y: Operand) -> Tensor:
    return torch.logical_and(*_tensors(x, y))


def logical_or(x: Operand, y: Operand) -> Tensor:
    return torch.logical_or(*_tensors(x, y))


def bitwise_and(x: Operand, y: Operand) -> Tensor:
    return x & y


def bitwise_or(x: Operand, y: Operand) -> Tensor:
    return x | y


def bitwise_xor(x: Operand, y: Operand) -> Tensor:
    return x ^ y


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    kind = x.dtype if isinstance(x, Tensor) else y.dtype  # a number takes the other's dtype
    x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=kind)
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=kind)
    return torch.where(condition, x, y)


def clamp(x: Tensor, low: Number | None, high: Number | None) -> Tensor:
    return torch.clamp(x, low, high)


def _tensors(x: Operand, y: Operand) -> tuple[Tensor, Tensor]:
    """Both as tensors, for the functions of torch that take no numbers."""
    x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=y.dtype)
    y = y if isinstance(y, Tensor) else torch.tensor(y, dtype=x.dtype)
    return x, y
