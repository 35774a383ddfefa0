"""Options of optimizers: what all of them take, and checks."""

from __future__ import annotations

import math
import numbers
from typing import Any, TypedDict

from genesis.errors import DTypeError, describe
from genesis.tensor import Tensor

Entries = dict[str, Any]  # tensors, numbers and flags by name
Group = Entries  # "params", and the options for them


class Settings(TypedDict, total=False):
    """Options that every optimizer takes, as PyTorch's do."""

    maximize: bool  # negate the gradients
    foreach: bool | None  # how PyTorch computes; Genesis has one way, whose results are the same
    fused: bool | None
    capturable: bool
    differentiable: bool  # gradients of the step itself, which Genesis does not have: False


def require_number(
    op: str, group: Group, name: str, low: float = 0.0, below: float = float("inf"), most: float = float("inf")
) -> None:
    """Raise unless group[name] is a number in [low, below) and at most `most`."""
    value = group[name]
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise DTypeError(describe(op, name, "a number", type(value).__name__))
    if not (low <= float(value) < below and value <= most):
        limits = [
            f"{sign} {limit:g}" for sign, limit in ((">=", low), ("<", below), ("<=", most)) if abs(limit) != math.inf
        ]
        expected = " and ".join([f"a number {limits[0]}", *limits[1:]]) if limits else "a number"
        raise ValueError(describe(op, name, expected, value))


def maximizing(op: str, settings: Settings) -> bool:
    """settings["maximize"], after a look at the others: those that choose how PyTorch computes change nothing here."""
    for name in settings:
        if name not in Settings.__annotations__:
            raise DTypeError(describe(op, name, "an argument of that name", "one that does not exist"))
    if settings.get("differentiable"):
        raise ValueError(describe(op, "differentiable", "False, as steps have no gradient", True))
    if settings.get("fused") and settings.get("foreach"):
        raise ValueError(describe(op, "fused", "foreach not to be True beside it", True))
    return bool(settings.get("maximize", False))


def as_number(value: object) -> object:
    """An option as a number where it is a tensor of one element, as PyTorch's learning rates may be."""
    return value.item() if hasattr(value, "item") else value
