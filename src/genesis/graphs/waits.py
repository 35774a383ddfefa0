"""Waits of a recorded step, which a replay makes as late as it can: what does not need their arrays goes on meanwhile.

So the last bucket of DistributedDataParallel is reduced while an optimizer updates the parameters of all the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from genesis.ndarray import NDArray
from genesis.recording import Call, Value


class Waits:
    """The waits among the calls of a recording, and which memory each call uses.

    A wait gives its arrays what has been sent to them. Nothing else depends on when it is made.
    """

    def __init__(self) -> None:
        self._roots: dict[int, int] = {}  # the first number of a memory by another one, which is declared too
        self._by_changes: dict[int, int] = {}  # by the id of arrays' changes, which views share
        self._uses: list[frozenset[int]] = []  # of each call
        self._waits: list[int] = []  # positions among the calls

    def declare(self, value: Value, array: NDArray) -> None:
        """An array from before the run, which may be a view of another."""
        if array._changes is not None:  # else nothing shows its memory but itself
            number = value.memory.number
            self._roots[number] = self._by_changes.setdefault(id(array._changes), number)

    def note(self, call: Call, is_wait: bool = False) -> None:
        """The next call."""
        if is_wait:
            self._waits.append(len(self._uses))
        self._uses.append(frozenset(map(self._root, (*call.operands, *call.outputs, *call.changed))))

    def are_due(self, values: Sequence[Value | None]) -> list[bool]:
        """For each array, whether the last wait gives it, so that a call which leaves it out would not wait."""
        if not self._waits:
            return [False] * len(values)
        last = self._waits[-1]
        given = self._uses[last]
        if not all(map(given.isdisjoint, self._uses[last + 1 :])):
            return [False] * len(values)
        return [value is not None and self._root(value) in given for value in values]

    def postponed(self, calls: Sequence[Call]) -> list[Call]:
        """The calls that were noted, each wait just before the first call that uses its arrays' memory."""
        waits, made, open_ones = set(self._waits), list[Call](), list[int]()
        for position, uses in enumerate(self._uses):
            due = [wait for wait in open_ones if not uses.isdisjoint(self._uses[wait])]
            made += [calls[wait] for wait in due]
            open_ones = [wait for wait in open_ones if wait not in due]
            if position in waits:
                open_ones.append(position)
            else:
                made.append(calls[position])
        return made + [calls[wait] for wait in open_ones]

    def _root(self, value: Value) -> int:
        number = value.memory.number
        return self._roots.get(number, number)
