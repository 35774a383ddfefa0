"""Questions with bool answers, and logic: functions without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genesis.autograd import ElementwiseFunction
from genesis.autograd import Variable as Tensor
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_tensors
from genesis.ndarray import NDArray, ops

__all__ = [
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "eq", "ge", "gt", "isfinite", "isinf", "isnan", "le",
    "logical_and", "logical_not", "logical_or", "lt", "ne",
]  # fmt: skip

Number = bool | int | float


class Compare(ElementwiseFunction):
    """A binary op of the contract that answers in bool."""

    differentiable = False

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any, *, op: Callable[..., NDArray]) -> NDArray:
        return op(x, y)


class Ask(ElementwiseFunction):
    """A unary op of the contract that answers in bool (bitwise_not: in the dtype of its input)."""

    differentiable = False

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, op: Callable[..., NDArray]) -> NDArray:
        return op(x)


def eq(input: Tensor, other: Tensor | Number) -> Any:
    """input = other."""
    require_tensors("eq", input=input)
    return Compare.apply(input, other, op=ops.eq)


def ne(input: Tensor, other: Tensor | Number) -> Any:
    """input ≠ other."""
    require_tensors("ne", input=input)
    return Compare.apply(input, other, op=ops.ne)


def lt(input: Tensor, other: Tensor | Number) -> Any:
    """input < other."""
    require_tensors("lt", input=input)
    return Compare.apply(input, other, op=ops.lt)


def le(input: Tensor, other: Tensor | Number) -> Any:
    """input ≤ other."""
    require_tensors("le", input=input)
    return Compare.apply(input, other, op=ops.le)


def gt(input: Tensor, other: Tensor | Number) -> Any:
    """input > other."""
    require_tensors("gt", input=input)
    return Compare.apply(input, other, op=ops.gt)


def ge(input: Tensor, other: Tensor | Number) -> Any:
    """input ≥ other."""
    require_tensors("ge", input=input)
    return Compare.apply(input, other, op=ops.ge)


def logical_and(input: Tensor, other: Tensor) -> Any:
    """input and other, nonzero being true."""
    require_tensors("logical_and", input=input, other=other)
    return Compare.apply(input, other, op=ops.logical_and)


def logical_or(input: Tensor, other: Tensor) -> Any:
    """input or other, nonzero being true."""
    require_tensors("logical_or", input=input, other=other)
    return Compare.apply(input, other, op=ops.logical_or)


def isnan(input: Tensor) -> Any:
    """Where input is not a number."""
    return Ask.apply(input, op=ops.isnan)


def isinf(input: Tensor) -> Any:
    """Where input is ±∞."""
    return Ask.apply(input, op=ops.isinf)


def isfinite(input: Tensor) -> Any:
    """Where input is neither NaN nor ±∞."""
    return Ask.apply(input, op=ops.isfinite)


def logical_not(input: Tensor) -> Any:
    """Where input is zero or False."""
    return Ask.apply(input, op=ops.logical_not)


def bitwise_and(input: Tensor | Number, other: Tensor | Number) -> Any:
    """input & other, bit by bit."""
    _require_bits("bitwise_and", input, other)
    return Compare.apply(input, other, op=ops.bitwise_and)


def bitwise_or(input: Tensor | Number, other: Tensor | Number) -> Any:
    """input | other, bit by bit."""
    _require_bits("bitwise_or", input, other)
    return Compare.apply(input, other, op=ops.bitwise_or)


def bitwise_xor(input: Tensor | Number, other: Tensor | Number) -> Any:
    """input ^ other, bit by bit."""
    _require_bits("bitwise_xor", input, other)
    return Compare.apply(input, other, op=ops.bitwise_xor)


def bitwise_not(input: Tensor) -> Any:
    """~input, bit by bit; for bool the logical not."""
    _require_bits("bitwise_not", input)
    return Ask.apply(input, op=ops.bitwise_not)


def _require_bits(op: str, *values: Any) -> None:
    for name, value in zip(("input", "other"), values, strict=False):
        floating = value.array.dtype.is_floating_point if isinstance(value, Tensor) else isinstance(value, float)
        if floating:
            raise DTypeError(describe(op, name, "integers or bool", getattr(value, "dtype", type(value).__name__)))
