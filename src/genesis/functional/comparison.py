"""Questions with bool answers, and logic: functions without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from genesis.autograd import Context, ElementwiseFunction, Tensor
from genesis.dtypes import AnyNumber, Number
from genesis.errors import DTypeError, describe
from genesis.functional.arguments import require_tensors
from genesis.ndarray import NDArray, ops

Operand: TypeAlias = "NDArray | Number"
Comparison: TypeAlias = "Callable[[Operand, Operand], NDArray]"

__all__ = [
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "eq", "ge", "gt", "isfinite", "isinf", "isnan", "le",
    "logical_and", "logical_not", "logical_or", "lt", "ne",
]  # fmt: skip


class Compare(ElementwiseFunction):
    """A binary op of the contract that answers in bool."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: Operand, y: Operand, *, op: Comparison) -> NDArray:
        return op(x, y)


class Ask(ElementwiseFunction):
    """A unary op of the contract that answers in bool (bitwise_not: in the dtype of its input)."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, op: Callable[[NDArray], NDArray]) -> NDArray:
        return op(x)


def eq(input: Tensor, other: Tensor | AnyNumber) -> Tensor:
    """input = other, element by element; NaN equals nothing.

    Args:
        input: any shape and dtype.
        other: a tensor that broadcasts with input, or a number.
    Returns: the common shape, bool.
    Raises: TypeError: input is no tensor. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.eq(genesis.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [False, True, False]
    """
    require_tensors("eq", input=input)
    return Compare.apply(input, other, op=ops.eq)


def ne(input: Tensor, other: Tensor | AnyNumber) -> Tensor:
    """input ≠ other, element by element; NaN differs from everything.

    Args:
        input: any shape and dtype.
        other: a tensor that broadcasts with input, or a number.
    Returns: the common shape, bool.
    Raises: TypeError: input is no tensor. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.ne(genesis.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [True, False, True]
    """
    require_tensors("ne", input=input)
    return Compare.apply(input, other, op=ops.ne)


def lt(input: Tensor, other: Tensor | Number) -> Tensor:
    """input < other, element by element.

    Args:
        input: any shape and dtype.
        other: a tensor that broadcasts with input, or a number.
    Returns: the common shape, bool.
    Raises: TypeError: input is no tensor. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.lt(genesis.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [True, False, False]
    """
    require_tensors("lt", input=input)
    return Compare.apply(input, other, op=ops.lt)


def le(input: Tensor, other: Tensor | Number) -> Tensor:
    """input ≤ other, element by element.

    Args:
        input: any shape and dtype.
        other: a tensor that broadcasts with input, or a number.
    Returns: the common shape, bool.
    Raises: TypeError: input is no tensor. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.le(genesis.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [True, True, False]
    """
    require_tensors("le", input=input)
    return Compare.apply(input, other, op=ops.le)


def gt(input: Tensor, other: Tensor | Number) -> Tensor:
    """input > other, element by element.

    Args:
        input: any shape and dtype.
        other: a tensor that broadcasts with input, or a number.
    Returns: the common shape, bool.
    Raises: TypeError: input is no tensor. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.gt(genesis.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [False, False, True]
    """
    require_tensors("gt", input=input)
    return Compare.apply(input, other, op=ops.gt)


def ge(input: Tensor, other: Tensor | Number) -> Tensor:
    """input ≥ other, element by element.

    Args:
        input: any shape and dtype.
        other: a tensor that broadcasts with input, or a number.
    Returns: the common shape, bool.
    Raises: TypeError: input is no tensor. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.ge(genesis.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [False, True, True]
    """
    require_tensors("ge", input=input)
    return Compare.apply(input, other, op=ops.ge)


def logical_and(input: Tensor, other: Tensor) -> Tensor:
    """True where both are nonzero.

    Args:
        input, other: tensors of any dtype whose shapes broadcast.
    Returns: the common shape, bool.
    Raises: TypeError: an operand is no tensor. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.logical_and(genesis.tensor([0, 1, 2]), genesis.tensor([1, 1, 0])).tolist()
    [False, True, False]
    """
    require_tensors("logical_and", input=input, other=other)
    return Compare.apply(input, other, op=ops.logical_and)


def logical_or(input: Tensor, other: Tensor) -> Tensor:
    """True where at least one is nonzero.

    Args:
        input, other: tensors of any dtype whose shapes broadcast.
    Returns: the common shape, bool.
    Raises: TypeError: an operand is no tensor. ValueError: the shapes don't broadcast.
    Grad: none.
    Example: >>> F.logical_or(genesis.tensor([0, 1, 0]), genesis.tensor([1, 1, 0])).tolist()
    [True, True, False]
    """
    require_tensors("logical_or", input=input, other=other)
    return Compare.apply(input, other, op=ops.logical_or)


def isnan(input: Tensor) -> Tensor:
    """True where input is NaN.

    Args:
        input: any shape and dtype.
    Returns: the shape of input, bool.
    Grad: none.
    Example: >>> F.isnan(genesis.tensor([1.0, genesis.nan, genesis.inf])).tolist()
    [False, True, False]
    """
    return Ask.apply(input, op=ops.isnan)


def isinf(input: Tensor) -> Tensor:
    """True where input is ±∞.

    Args:
        input: any shape and dtype.
    Returns: the shape of input, bool.
    Grad: none.
    Example: >>> F.isinf(genesis.tensor([1.0, genesis.nan, genesis.inf])).tolist()
    [False, False, True]
    """
    return Ask.apply(input, op=ops.isinf)


def isfinite(input: Tensor) -> Tensor:
    """True where input is neither NaN nor ±∞.

    Args:
        input: any shape and dtype.
    Returns: the shape of input, bool.
    Grad: none.
    Example: >>> F.isfinite(genesis.tensor([1.0, genesis.nan, genesis.inf])).tolist()
    [True, False, False]
    """
    return Ask.apply(input, op=ops.isfinite)


def logical_not(input: Tensor) -> Tensor:
    """True where input is zero or False.

    Args:
        input: any shape and dtype.
    Returns: the shape of input, bool.
    Grad: none.
    Example: >>> F.logical_not(genesis.tensor([0, 1, 2])).tolist()
    [True, False, False]
    """
    return Ask.apply(input, op=ops.logical_not)


def bitwise_and(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input & other, bit by bit; the logical and of bools.

    Args:
        input, other: integers or bool, tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: an operand is of floats.
    Grad: none.
    Example: >>> F.bitwise_and(genesis.tensor([5, 6]), 3).tolist()
    [1, 2]
    """
    _require_bits("bitwise_and", input, other)
    return Compare.apply(input, other, op=ops.bitwise_and)


def bitwise_or(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input | other, bit by bit; the logical or of bools.

    Args:
        input, other: integers or bool, tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: an operand is of floats.
    Grad: none.
    Example: >>> F.bitwise_or(genesis.tensor([5, 6]), 3).tolist()
    [7, 7]
    """
    _require_bits("bitwise_or", input, other)
    return Compare.apply(input, other, op=ops.bitwise_or)


def bitwise_xor(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input ^ other, bit by bit; where bools differ.

    Args:
        input, other: integers or bool, tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: an operand is of floats.
    Grad: none.
    Example: >>> F.bitwise_xor(genesis.tensor([5, 6]), 3).tolist()
    [6, 5]
    """
    _require_bits("bitwise_xor", input, other)
    return Compare.apply(input, other, op=ops.bitwise_xor)


def bitwise_not(input: Tensor) -> Tensor:
    """~input, bit by bit; the logical not of bools.

    Args:
        input: any shape, integers or bool.
    Returns: the shape and dtype of input.
    Raises: TypeError: input is of floats.
    Grad: none.
    Example: >>> F.bitwise_not(genesis.tensor([0, 5])).tolist()
    [-1, -6]
    """
    _require_bits("bitwise_not", input)
    return Ask.apply(input, op=ops.bitwise_not)


def _require_bits(op: str, *values: Tensor | Number) -> None:
    for name, value in zip(("input", "other"), values, strict=False):
        floating = value.array.dtype.is_floating_point if isinstance(value, Tensor) else isinstance(value, float)
        if floating:
            raise DTypeError(describe(op, name, "integers or bool", getattr(value, "dtype", type(value).__name__)))
