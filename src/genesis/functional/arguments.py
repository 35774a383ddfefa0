"""Checks that several families of functions share."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.autograd import Tensor
from genesis.errors import DTypeError, describe
from genesis.shapes import Shape


def require_tensors(op: str, **values: object) -> None:
    """Refuse Python numbers and the like where PyTorch insists on tensors; the keywords are the arguments' names."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise DTypeError(describe(op, name, "a tensor", type(value).__name__))


def int_tuple(op: str, values: Sequence[int], argument: str = "shape") -> Shape:
    """A sequence of integers as a tuple."""
    try:
        return tuple([value.__index__() for value in values])
    except (AttributeError, TypeError):
        raise DTypeError(describe(op, argument, "a sequence of ints", repr(values))) from None


def require_ints(op: str, **values: object) -> None:
    """Refuse what does not count: floats, bools, None; the keywords are the arguments' names."""
    for name, value in values.items():
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise DTypeError(describe(op, name, "an int", repr(value)))
