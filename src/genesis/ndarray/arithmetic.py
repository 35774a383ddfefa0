"""The arithmetic of NDArray: its element-wise ops as methods, so that gradients read as formulas.

Operands are promoted, see result_type(). The other ops are called by their names: `ops.sum(x, dims)`.
"""

from __future__ import annotations

from typing import Self

from genesis import dtypes
from genesis.backends import contract as ops
from genesis.backends.dispatch import result_type as result_type
from genesis.ndarray.array import Array

Number = bool | int | float


class Arithmetic(Array):
    """A part of NDArray: see the module's docstring."""

    __slots__ = ()

    # --- one operand --------------------------------------------------------------------------------------------------

    def neg(self) -> Self:
        return ops.neg(self)

    def abs(self) -> Self:
        return ops.abs(self)

    def sign(self) -> Self:
        return ops.sign(self)

    def floor(self) -> Self:
        return ops.floor(self)

    def ceil(self) -> Self:
        return ops.ceil(self)

    def isnan(self) -> Self:
        return ops.isnan(self)

    def isinf(self) -> Self:
        return ops.isinf(self)

    def isfinite(self) -> Self:
        return ops.isfinite(self)

    def logical_not(self) -> Self:
        return ops.logical_not(self)

    def bitwise_not(self) -> Self:
        return ops.bitwise_not(self)

    def exp(self) -> Self:
        return ops.exp(self)

    def expm1(self) -> Self:
        return ops.expm1(self)

    def log(self) -> Self:
        return ops.log(self)

    def log1p(self) -> Self:
        return ops.log1p(self)

    def sqrt(self) -> Self:
        return ops.sqrt(self)

    def rsqrt(self) -> Self:
        return ops.rsqrt(self)

    def reciprocal(self) -> Self:
        return ops.reciprocal(self)

    def sin(self) -> Self:
        return ops.sin(self)

    def cos(self) -> Self:
        return ops.cos(self)

    def tanh(self) -> Self:
        return ops.tanh(self)

    def sigmoid(self) -> Self:
        return ops.sigmoid(self)

    def erf(self) -> Self:
        return ops.erf(self)

    def round(self, decimals: int = 0) -> Self:
        return ops.round(self, decimals)

    def clamp(self, low: Number | None, high: Number | None) -> Self:
        return ops.clamp(self, low, high)

    # --- two and three operands ---------------------------------------------------------------------------------------

    def add(self, other: Self | Number) -> Self:
        return ops.add(self, other)

    def sub(self, other: Self | Number) -> Self:
        return ops.sub(self, other)

    def mul(self, other: Self | Number) -> Self:
        return ops.mul(self, other)

    def div(self, other: Self | Number) -> Self:
        return ops.div(self, other)

    def floor_divide(self, other: Self | Number) -> Self:
        return ops.floor_divide(self, other)

    def remainder(self, other: Self | Number) -> Self:
        return ops.remainder(self, other)

    def pow(self, other: Self | Number) -> Self:
        return ops.pow(self, other)

    def maximum(self, other: Self | Number) -> Self:
        return ops.maximum(self, other)

    def minimum(self, other: Self | Number) -> Self:
        return ops.minimum(self, other)

    def eq(self, other: Self | Number) -> Self:
        return ops.eq(self, other)

    def ne(self, other: Self | Number) -> Self:
        return ops.ne(self, other)

    def lt(self, other: Self | Number) -> Self:
        return ops.lt(self, other)

    def le(self, other: Self | Number) -> Self:
        return ops.le(self, other)

    def gt(self, other: Self | Number) -> Self:
        return ops.gt(self, other)

    def ge(self, other: Self | Number) -> Self:
        return ops.ge(self, other)

    def logical_and(self, other: Self | Number) -> Self:
        return ops.logical_and(self, other)

    def logical_or(self, other: Self | Number) -> Self:
        return ops.logical_or(self, other)

    def bitwise_and(self, other: Self | Number) -> Self:
        return ops.bitwise_and(self, other)

    def bitwise_or(self, other: Self | Number) -> Self:
        return ops.bitwise_or(self, other)

    def bitwise_xor(self, other: Self | Number) -> Self:
        return ops.bitwise_xor(self, other)

    def where(self, x: Self | Number, y: Self | Number) -> Self:
        """x where self (bool) is true, else y; x and y are promoted."""
        dtype = result_type(x, y)
        x = x.to(dtype) if isinstance(x, Array) else dtypes.number("where", "input", x, dtype, rounds=True)
        y = y.to(dtype) if isinstance(y, Array) else dtypes.number("where", "other", y, dtype, rounds=True)
        if not isinstance(x, Array) and not isinstance(y, Array):
            y = self.full_like(y, (), dtype)
        return ops.where(self, x, y)
