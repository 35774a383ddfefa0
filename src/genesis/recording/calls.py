"""The entries of a recording: calls, and the regions of modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from genesis.backends.backend import Op
from genesis.nn import Module
from genesis.recording.values import Value


@dataclasses.dataclass(eq=False, slots=True)
class Call:
    """One call, with values in the places of arrays."""

    op: str  # of the contract, or the name of the Function
    function: Op  # the backend's, or the Function
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: Value | tuple[Value | None, ...] | None
    changed: tuple[Value, ...] = ()  # in place; as they were before
    line: str = ""  # the user's: file:line

    @property
    def operands(self) -> list[Value]:
        return values_in((self.args, *self.kwargs.values()))

    @property
    def outputs(self) -> list[Value]:
        return values_in((self.results,))


@dataclasses.dataclass(eq=False, slots=True)
class Region:
    """The call of a module, and what was called inside of it.

    with_hooks: it includes the module's own hooks; else it is what forward took, did and gave.
    """

    module: Module
    with_hooks: bool
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    results: object = None  # None too if the module raised
    calls: list[Call | Region] = dataclasses.field(default_factory=list)


def values_in(places: Iterable[object]) -> list[Value]:
    """The values among these places, and in lists and tuples among them."""
    found: list[Value] = []
    for place in places:
        if isinstance(place, Value):
            found.append(place)
        elif isinstance(place, list | tuple):
            found += values_in(place)
    return found


def regions_in(calls: Iterable[Call | Region]) -> Iterator[Region]:
    """All regions, the outer before the inner."""
    for each in calls:
        if isinstance(each, Region):
            yield each
            yield from regions_in(each.calls)
