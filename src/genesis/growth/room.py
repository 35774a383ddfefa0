"""Logs that come with files: what they may ask for, measured by the tensors of the same file."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.errors import GrowthError, describe
from genesis.growth import structure, width

OPERATIONS: dict[str, Any] = {
    operation.__name__: operation
    for operation in (
        width.grow_width, width.prune_width, structure.grow_depth, structure.grow_branches, structure.prune_branches,
    )
}  # fmt: skip
_ARGUMENTS = {name: set(inspect.signature(operation).parameters) - {"model"} for name, operation in OPERATIONS.items()}

_TIMES = 16  # as large as what it became, a network may have been before it was pruned
_FREE_ELEMENTS, _FREE_CHANNELS = 1 << 20, 1 << 10  # what takes so little needs no reason
_LARGEST_EXAMPLE = 1 << 27  # elements
_MOST_OPERATIONS = 100_000


class Room(NamedTuple):
    """How many elements the tensors of a growing network may have together, and one dimension."""

    elements: float = math.inf
    size: float = math.inf

    @classmethod
    def of(cls, log: Any, shapes: Iterable[Sequence[int]] | None) -> Room:
        """That of a log which leads to tensors of these shapes (None: to whatever it says).

        Raises: GrowthError: it is no log of growth, or asks for more than that.
        """
        steps = log.get("steps") if isinstance(log, Mapping) else None
        if not isinstance(steps, list | tuple) or not all(map(_is_step, steps)):
            raise GrowthError(describe("replay", "log", "the state_dict of a network's history", _shown(log)))
        operations = [operation for step in steps for operation in step["operations"]]
        for operation in operations:
            _check(operation)
        if shapes is None:
            return cls()
        listed = [tuple(shape) for shape in shapes]
        elements = sum(map(math.prod, listed))
        largest = max((max(shape, default=1) for shape in listed), default=1)
        room = cls(_TIMES * elements + _FREE_ELEMENTS, _TIMES * largest + _FREE_CHANNELS)
        room._check_counts(operations, len(listed))
        for step in steps:
            for given in step["example"] or ():
                if is_shape_and_dtype(given) and math.prod(given[0]) > _LARGEST_EXAMPLE:
                    raise GrowthError(describe("replay", "log", "an example of a batch", f"one of shape {given[0]}"))
        return room

    def _check_counts(self, operations: Sequence[Mapping[str, Any]], num_tensors: int) -> None:
        new = [operation for operation in operations if operation["operation"] in ("grow_depth", "grow_branches")]
        gone = sum(len(operation.get("which") or ()) for operation in operations)
        if len(operations) > _MOST_OPERATIONS or len(new) > num_tensors + _TIMES * (gone + 1):
            raise GrowthError(f"replay: argument 'log': {len(operations):,} operations for {num_tensors:,} tensors")
        for operation in operations:
            for name in ("channels", "kernel_size"):
                if (operation.get(name) or 0) > self.size:
                    self.refuse(operation["operation"], operation["where"], f"{name} of {operation[name]:,}")

    def check(self, op: str, where: str, elements: int) -> None:
        """Raise if a change at this place makes tensors of more elements than there is room for."""
        if elements > self.elements:
            self.refuse(op, where, f"{elements:,} elements")

    def refuse(self, op: str, where: str, what: str) -> None:
        raise GrowthError(f"replay: the log's {op} of {where} asks for {what}, far more than the file's tensors have")


def is_shape_and_dtype(given: Any) -> bool:
    """Whether an entry of a step's example stands for a tensor."""
    return (
        isinstance(given, list | tuple)
        and len(given) == 2
        and isinstance(given[1], str)
        and given[1] in dtypes.BY_NAME
        and isinstance(given[0], list | tuple)
        and all(isinstance(size, int) and size >= 0 for size in given[0])
    )


def _is_step(step: Any) -> bool:
    if not isinstance(step, Mapping) or not {"operations", "example"} <= step.keys():
        return False
    operations, example = step["operations"], step["example"]
    return (
        isinstance(operations, list | tuple)
        and all(isinstance(operation, Mapping) for operation in operations)
        and (example is None or isinstance(example, list | tuple))
    )


def _check(operation: Mapping[str, Any]) -> None:
    name = operation.get("operation")
    if name not in OPERATIONS:
        raise GrowthError(describe("replay", "log", f"operations among {', '.join(OPERATIONS)}", name))
    unknown = operation.keys() - _ARGUMENTS[name] - {"operation"}
    sizes = [operation.get(size) for size in ("channels", "kernel_size")]
    fits = isinstance(operation.get("where"), str) and all(type(size) in (int, type(None)) for size in sizes)
    which = operation.get("which", [])
    fits &= isinstance(which, list | tuple) and all(type(index) is int for index in which)
    if unknown or "factor" in operation or not fits:
        raise GrowthError(describe("replay", "log", f"what {name} says of itself", _shown(dict(operation))))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
