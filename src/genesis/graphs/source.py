"""Recorded calls as the source of one Python function: nothing but the calls, and each array let go after its last use.

def replay(v0):
    v1 = f0(v0)
    del v0
    v2 = f1([v1, v1], c2)
    del v1
    return [v2]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from genesis.backends.backend import Op


class Slot(NamedTuple):
    """The place of an array that a replay computes or is given."""

    number: int


class Call(NamedTuple):
    """One call of the backend, with slots in the places of arrays that a replay gives."""

    function: Op
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any  # a slot, a tuple of slots and None, or None


class Recording:
    """The calls of one run in order, as one function of the inputs.

    `source` is its code; the names in it that are no arrays are the functions and constants of the recording.
    """

    def __init__(self, calls: Sequence[Call], inputs: Sequence[Slot], outputs: Sequence[Slot]) -> None:
        self.inputs = inputs
        self._constants: dict[str, Any] = {}
        lines = [f"def replay({', '.join(f'v{slot.number}' for slot in inputs)}):"]
        for call, ended in zip(calls, _ends(calls, outputs), strict=True):
            lines.append(f"    {_targets(call.results)}{self._call(call)}")
            if ended:
                lines.append(f"    del {', '.join(f'v{number}' for number in ended)}")
        lines.append(f"    return [{', '.join(f'v{slot.number}' for slot in outputs)}]")
        self.source = "\n".join(lines) + "\n"
        exec(compile(self.source, "<genesis.compile>", "exec"), self._constants)
        self._replay: Op = self._constants["replay"]

    def run(self, inputs: Iterable[Any]) -> list[Any]:
        """The handles of the outputs for these inputs, of the shapes and strides of the recording."""
        return self._replay(*inputs)

    def _call(self, call: Call) -> str:
        function = self._name("f", call.function)
        args = [self._value(arg) for arg in call.args]
        args += [f"{name}={self._value(arg)}" for name, arg in call.kwargs.items()]
        return f"{function}({', '.join(args)})"

    def _value(self, place: Any) -> str:
        if isinstance(place, Slot):
            return f"v{place.number}"
        if isinstance(place, list):
            return f"[{', '.join(map(self._value, place))}]"
        return self._name("c", place)

    def _name(self, letter: str, value: Any) -> str:
        name = f"{letter}{len(self._constants)}"
        self._constants[name] = value
        return name


def slots_in(places: Any) -> list[Slot]:
    """The slots among these places, and in lists among them."""
    found: list[Slot] = []
    for place in places:
        if isinstance(place, Slot):
            found.append(place)
        elif isinstance(place, list | tuple):
            found += slots_in(place)
    return found


def _ends(calls: Sequence[Call], outputs: Sequence[Slot]) -> list[list[int]]:
    """For each call, the slots that nobody reads after it."""
    last_use: dict[int, int] = {}
    for number, call in enumerate(calls):
        for slot in slots_in((call.args, tuple(call.kwargs.values()), call.results)):
            last_use[slot.number] = number
    ends: list[list[int]] = [[] for _ in calls]
    for slot_number, number in last_use.items():
        if Slot(slot_number) not in outputs:
            ends[number].append(slot_number)
    return ends


def _targets(results: Any) -> str:
    """The left side of the assignment of a call's results; "_" is for what is None."""
    if isinstance(results, Slot):
        return f"v{results.number} = "
    if not results:
        return ""
    return "".join("_, " if slot is None else f"v{slot.number}, " for slot in results) + "= "
