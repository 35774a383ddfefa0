"""Logs that come with files: what they may ask for, measured by the tensors of the same file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from genesis.errors import GrowthError
from genesis.growth.history import Operation
from genesis.growth.log import checked
from genesis.tensor import Tensor

_TIMES = 16  # as large as what it became, a network may have been before it was pruned
_FREE_ELEMENTS, _FREE_CHANNELS = 1 << 20, 1 << 10  # what takes so little needs no reason
_MOST_OPERATIONS = 100_000


class Room(NamedTuple):
    """How many elements the tensors of a growing network may have together, and one dimension."""

    elements: float = math.inf
    size: float = math.inf

    @classmethod
    def of(cls, log: object, shapes: Iterable[Sequence[int]] | None) -> Room:
        """The room for a log that leads to tensors of these shapes; unlimited for None.

        Raises: GrowthError: it is no log of growth, or asks for more than that.
        """
        operations = [operation for step in checked(log) for operation in step["operations"]]
        if shapes is None:
            return cls()
        listed = [tuple(shape) for shape in shapes]
        elements = sum(map(math.prod, listed))
        largest = max((max(shape, default=1) for shape in listed), default=1)
        room = cls(_TIMES * elements + _FREE_ELEMENTS, _TIMES * largest + _FREE_CHANNELS)
        room._check_counts(operations, len(listed))
        return room

    def _check_counts(self, operations: Sequence[Operation], num_tensors: int) -> None:
        new = [operation for operation in operations if operation["operation"] in ("grow_depth", "grow_branches")]
        gone = sum(len(operation.get("which") or ()) for operation in operations)
        if len(operations) > _MOST_OPERATIONS or len(new) > num_tensors + _TIMES * (gone + 1):
            raise GrowthError(f"replay: argument 'log': {len(operations):,} operations for {num_tensors:,} tensors")
        for operation in operations:
            for name, size in (("channels", operation.get("channels")), ("kernel_size", operation.get("kernel_size"))):
                if size is not None and size > self.size:
                    self.refuse(operation["operation"], operation["where"], f"{name} of {size:,}")

    def check(self, op: str, where: str, elements: int) -> None:
        """Raise if a change at this place makes tensors of more elements than there is room for."""
        if elements > self.elements:
            self.refuse(op, where, f"{elements:,} elements")

    def refuse(self, op: str, where: str, what: str) -> None:
        raise GrowthError(f"replay: the log's {op} of {where} asks for {what}, far more than the file's tensors have")


def shapes_in(state: Mapping[str, object]) -> list[Sequence[int]]:
    """The shapes of the tensors in a state_dict."""
    return [value.shape for value in state.values() if isinstance(value, Tensor)]
