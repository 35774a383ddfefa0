"""Shifts of integers, bit by bit."""

from __future__ import annotations

from genesis import dtypes
from genesis.autograd import Tensor
from genesis.dtypes import Number
from genesis.errors import DTypeError, describe
from genesis.functional.comparison import Compare
from genesis.ndarray import NDArray, result_type

__all__ = ["bitwise_left_shift", "bitwise_right_shift"]

Operand = NDArray | Number


def bitwise_left_shift(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """input · 2^other; what is shifted out is lost. Shifts below 0, and by all bits or more, give 0.

    Args:
        input, other: integers, tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: an operand is of floats, or both are of bools.
    Grad: none.
    Example: >>> F.bitwise_left_shift(genesis.tensor([1, 5]), 2).tolist()
    [4, 20]
    """
    _require_integers("bitwise_left_shift", input, other)
    return Compare.apply(input, other, op=_left)


def bitwise_right_shift(input: Tensor | Number, other: Tensor | Number) -> Tensor:
    """⌊input / 2^other⌋. Shifts below 0, and by all bits or more, give 0, or −1 of negative numbers.

    Args:
        input, other: integers, tensors whose shapes broadcast, or one of them a number.
    Returns: the common shape, in the promoted dtype.
    Raises: TypeError: an operand is of floats, or both are of bools.
    Grad: none.
    Example: >>> F.bitwise_right_shift(genesis.tensor([20, -3]), 1).tolist()
    [10, -2]
    """
    _require_integers("bitwise_right_shift", input, other)
    return Compare.apply(input, other, op=_right)


def _require_integers(op: str, *values: Tensor | Number) -> None:
    dtype = result_type(*(value.array if isinstance(value, Tensor) else value for value in values))
    if dtype.is_floating_point or dtype.name == "bool":
        raise DTypeError(describe(op, "input", "integers", dtype))


def _left(x: Operand, y: Operand) -> NDArray:
    value, count = _promoted(x, y)
    bits = 8 * value.dtype.itemsize
    moved = value.mul(value.full_like(2, ()).pow(count.clamp(0, bits - 1)))
    return count.ge(0).logical_and(count.lt(bits)).where(moved, 0)


def _right(x: Operand, y: Operand) -> NDArray:
    value, count = _promoted(x, y)
    last = 8 * value.dtype.itemsize - (1 if value.dtype.name == "uint8" else 2)  # the largest power that dtype holds
    quotient = value.floor_divide(value.full_like(2, ()).pow(count.clamp(0, last)))
    signs = value.lt(0).to(value.dtype).neg()  # what is left when all bits have moved out
    return count.ge(0).logical_and(count.le(last)).where(quotient, signs)


def _promoted(x: Operand, y: Operand) -> tuple[NDArray, NDArray]:
    """Both as arrays of the common dtype."""
    dtype, like = result_type(x, y), x if isinstance(x, NDArray) else y
    assert isinstance(like, NDArray)
    count = y if isinstance(y, NDArray) else like.full_like(min(max(int(y), -1), 64), (), dtypes.int64)
    value = x.to(dtype) if isinstance(x, NDArray) else like.full_like(x, (), dtype)
    return value, count.to(dtype)
