"""Questions with bool answers, and logic: functions without a gradient."""

from __future__ import annotations

from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.dtypes import Number
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_tensors
from genesis.ndarray import NDArray, binary


class Compare(ArrayFunction):
    """A binary op of the contract that answers in bool."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray | Number, y: NDArray | Number, *, op: str) -> NDArray:
        return binary(op, x, y)


class Ask(ArrayFunction):
    """A unary op of the contract that answers in bool (bitwise_not: in the dtype of its input)."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, op: str) -> NDArray:
        answer: NDArray = getattr(x, op)()
        return answer


def eq(input: Tensor, other: Tensor | Number) -> Tensor:
    """input = other."""
    require_tensors("eq", input=input)
    return Compare.apply(input, other, op="eq")


def ne(input: Tensor, other: Tensor | Number) -> Tensor:
    """input ≠ other."""
    require_tensors("ne", input=input)
    return Compare.apply(input, other, op="ne")


def lt(input: Tensor, other: Tensor | Number) -> Tensor:
    """input < other."""
    require_tensors("lt", input=input)
    return Compare.apply(input, other, op="lt")


def le(input: Tensor, other: Tensor | Number) -> Tensor:
    """input ≤ other."""
    require_tensors("le", input=input)
    return Compare.apply(input, other, op="le")


def gt(input: Tensor, other: Tensor | Number) -> Tensor:
    """input > other."""
    require_tensors("gt", input=input)
    return Compare.apply(input, other, op="gt")


def ge(input: Tensor, other: Tensor | Number) -> Tensor:
    """input ≥ other."""
    require_tensors("ge", input=input)
    return Compare.apply(input, other, op="ge")


def logical_and(input: Tensor, other: Tensor) -> Tensor:
    """input and other, nonzero being true."""
    require_tensors("logical_and", input=input, other=other)
    return Compare.apply(input, other, op="logical_and")


def logical_or(input: Tensor, other: Tensor) -> Tensor:
    """input or other, nonzero being true."""
    require_tensors("logical_or", input=input, other=other)
    return Compare.apply(input, other, op="logical_or")


def isnan(input: Tensor) -> Tensor:
    """Where input is not a number."""
    return Ask.apply(input, op="isnan")


def isinf(input: Tensor) -> Tensor:
    """Where input is ±∞."""
    return Ask.apply(input, op="isinf")


def isfinite(input: Tensor) -> Tensor:
    """Where input is neither NaN nor ±∞."""
    return Ask.apply(input, op="isfinite")


def logical_not(input: Tensor) -> Tensor:
    """Where input is zero or False."""
    return Ask.apply(input, op="logical_not")


def bitwise_and(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input & other, bit by bit."""
    _require_bits("bitwise_and", input, other)
    return Compare.apply(input, other, op="bitwise_and")


def bitwise_or(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input | other, bit by bit."""
    _require_bits("bitwise_or", input, other)
    return Compare.apply(input, other, op="bitwise_or")


def bitwise_xor(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input ^ other, bit by bit."""
    _require_bits("bitwise_xor", input, other)
    return Compare.apply(input, other, op="bitwise_xor")


def bitwise_not(input: Tensor) -> Tensor:
    """~input, bit by bit; for bool the logical not."""
    _require_bits("bitwise_not", input)
    return Ask.apply(input, op="bitwise_not")


def _require_bits(op: str, *values: Tensor | Number) -> None:
    for name, value in zip(("input", "other"), values, strict=False):
        floating = value.array.dtype.is_floating_point if isinstance(value, Tensor) else isinstance(value, float)
        if floating:
            raise DTypeError(describe(op, name, "integers or bool", getattr(value, "dtype", type(value).__name__)))
