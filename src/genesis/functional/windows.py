"""Shared by convolution and pooling: arguments as one number or one per dimension, and signals seen as planes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, TypeVarTuple, overload

from genesis.autograd import Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.ndarray import NDArray
from genesis.shapes import Shape

Size = int | tuple[int, ...]  # a number for every dimension, or one for each
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


def remembered(check: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
    """check, a function of shapes and settings, with its results kept: a network asks for few, again and again."""
    known = functools.lru_cache(maxsize=4096, typed=True)(check)

    @functools.wraps(check)
    def lookup(*args: *Ts) -> R:
        try:
            return known(*args)
        except TypeError:  # what cannot be looked up: a list, or what is of a wrong type, as check will say
            return check(*args)

    return lookup


def require_tensor(op: str, argument: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise DTypeError(describe(op, argument, "a Tensor", type(value).__name__))


@overload
def shapes_of(
    op: str, arguments: Sequence[str], tensors: tuple[Tensor, Tensor, Tensor | None], required: Literal[2]
) -> tuple[Shape, Shape, Shape | None]: ...
@overload
def shapes_of(
    op: str, arguments: Sequence[str], tensors: tuple[Tensor, Tensor, *tuple[Tensor | None, ...]], required: Literal[2]
) -> tuple[Shape, Shape, *tuple[Shape | None, ...]]: ...
@overload
def shapes_of(
    op: str, arguments: Sequence[str], tensors: Sequence[Tensor | None], required: Literal[0]
) -> tuple[Shape | None, ...]: ...
def shapes_of(
    op: str, arguments: Sequence[str], tensors: Sequence[Tensor | None], required: int
) -> tuple[Shape | None, ...]:
    """The shapes of tensors; from number `required` on, they may be None, and so is then their shape."""
    found: list[Shape | None] = []
    for tensor in tensors:
        if isinstance(tensor, Tensor):
            found.append(tensor.array.shape)
        elif tensor is None and len(found) >= required:
            found.append(None)
        else:
            require_tensor(op, arguments[len(found)], tensor)  # says what is wrong
    return tuple(found)


def per_dimension(op: str, argument: str, value: object, count: int, least: int) -> Shape:
    """value as count integers, each at least least; one number (or a sequence of one) holds for every dimension.

    Example:
        >>> per_dimension("conv2d", "stride", 2, 2, least=1)
        (2, 2)
    """
    given = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    if any(isinstance(number, bool) or not hasattr(number, "__index__") for number in given):
        raise DTypeError(describe(op, argument, "an int or a tuple of ints", repr(value)))
    numbers = tuple(number.__index__() for number in given)
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) != count:
        raise ShapeError(describe(op, argument, f"1 or {count} numbers", numbers))
    if any(number < least for number in numbers):
        raise ShapeError(describe(op, argument, f"numbers >= {least}", value))
    return numbers


def planar(values: Shape, fill: int) -> tuple[int, int]:
    """The values of one dimension as those of two: a signal is a plane of height 1."""
    return (fill, values[0]) if len(values) == 1 else (values[0], values[1])


def as_planes(x: NDArray, spatial: int) -> NDArray:
    """(C, L), (N, C, L), (C, H, W) or (N, C, H, W), of 1 or 2 spatial dimensions, as (N, C, H, W)."""
    x = x.unsqueeze(0) if x.ndim == spatial + 1 else x
    return x.unsqueeze(2) if spatial == 1 else x


def from_planes(y: NDArray, spatial: int, ndim: int) -> NDArray:
    """Undo as_planes, for a result of another size."""
    y = y.select(2, 0) if spatial == 1 else y
    return y.select(0, 0) if ndim == spatial + 1 else y
