"""Guards on names in dictionaries, contents of containers, cells and slots.

Each replay checks them, so places of one kind are compared by calls that run in C.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

from genesis.graphs.flat import Conditions
from genesis.graphs.pure import PLAIN

Get = Callable[[], object]
_MISSING = object()


class UnwatchableError(Exception):
    """The code reads what cannot be guarded; the message begins with a verb."""


def is_same(one: object, other: object) -> bool:
    """Whether a program cannot tell them apart: the same object, or equal plain values."""
    if one is other:
        return True
    if type(one) is not type(other) or type(one) not in PLAIN:
        return False
    if type(one) is float or type(one) is complex:
        return repr(one) == repr(other)  # 0.0 is not -0.0, and NaN is NaN
    return bool(one == other)


class Watch:
    """Places and what each held when it was added, with labels for messages."""

    def __init__(self) -> None:
        self._mappings: dict[int, _Names] = {}
        self._contents: list[_Contents] = []
        self._attributes: list[tuple[object, str, object, str]] = []
        self._kinds: list[tuple[object, type[object], str]] = []
        self._others: list[tuple[Get, object, str]] = []

    def name(self, mapping: Mapping[str, object], name: str, label: str) -> object:
        """Watch a name of a mapping, present or not; gives its value or MISSING."""
        known = self._mappings.get(id(mapping))
        if known is None:
            known = self._mappings[id(mapping)] = _Names(mapping)
        return known.add(name, label)

    def contents(self, container: Collection[object], label: str) -> None:
        self._contents.append(_Contents(container, label))

    def other(self, get: Get, label: str) -> None:
        self._others.append((get, get(), label))

    def attribute(self, owner: object, name: str, label: str) -> object:
        """Watch an attribute; gives its value, or MISSING."""
        self._attributes.append((owner, name, value := _attribute(owner, name), label))
        return value

    def kind(self, value: object, label: str) -> None:
        self._kinds.append((value, type(value), label))

    def describe(self, conditions: Conditions) -> None:
        """Everything is as it is now."""
        for names in self._mappings.values():
            names.describe(conditions)
        for contents in self._contents:
            contents.describe(conditions)
        for owner, name, value, _ in self._attributes:
            if value is _MISSING:
                conditions.require_same(f"{conditions.name(_attribute)}({conditions.name(owner)}, {name!r})", value)
            else:
                conditions.require_same(f"{conditions.name(owner)}.{name}", _attribute(owner, name))
        for owner, kind, _ in self._kinds:
            conditions.require_same(f"{conditions.name(type)}({conditions.name(owner)})", kind)
        for get, value, _ in self._others:
            if type(value) in PLAIN:
                conditions.require(f"{conditions.name(is_same)}({conditions.name(get)}(), {conditions.name(value)})")
            else:
                conditions.require_same(f"{conditions.name(get)}()", value)

    def changed(self) -> str | None:
        """The label of the first place whose contents have changed, or None."""
        for names in self._mappings.values():
            if not names.hold():
                label = names.changed()
                if label is not None:
                    return label
        for contents in self._contents:
            if not contents.hold():
                return contents.changed()
        for owner, name, value, label in self._attributes:
            if not is_same(_attribute(owner, name), value):
                return label
        for owner, kind, label in self._kinds:
            if type(owner) is not kind:
                return label
        for get, value, label in self._others:
            if get() is not value and not is_same(get(), value):
                return label
        return None


MISSING = _MISSING


def _attribute(owner: object, name: str) -> object:
    try:
        return getattr(owner, name)
    except (AttributeError, ValueError):  # of an empty cell
        return _MISSING


class _Names:
    """Some names of one mapping."""

    def __init__(self, mapping: Mapping[str, object]) -> None:
        self._mapping = mapping
        self._labels: dict[str, str] = {}
        self._values: dict[str, object] = {}
        self._absent: Set[str] = frozenset()
        self._get: Callable[[Mapping[str, object]], Sequence[object]] | None = None
        self._found: Sequence[object] = ()

    def add(self, name: str, label: str) -> object:
        if name in self._labels:
            return self._values.get(name, _MISSING)
        self._labels[name] = label
        value = self._mapping.get(name, _MISSING)
        if value is not _MISSING:
            self._values[name] = value
        self._get = None
        return value

    def _prepare(self) -> None:
        self._absent = self._labels.keys() - self._values.keys()
        names = tuple(self._values)
        # With one name alone, itemgetter would give no tuple.
        self._get = operator.itemgetter(*names, *names[:1]) if names else _nothing
        self._found = [*self._values.values(), *[self._values[name] for name in names[:1]]]

    def hold(self) -> bool:
        if self._get is None:
            self._prepare()
        try:
            found = self._get(self._mapping)  # type: ignore[misc]
        except KeyError:
            return False
        return all(map(operator.is_, found, self._found)) and self._mapping.keys().isdisjoint(self._absent)

    def describe(self, conditions: Conditions) -> None:
        mapping = conditions.name(self._mapping)
        conditions.require_items(mapping, self._values.items())
        absent = frozenset(self._labels.keys() - self._values.keys())
        if len(absent) == 1:
            conditions.require(f"{next(iter(absent))!r} not in {mapping}")
        elif absent:
            conditions.require(f"{mapping}.keys().isdisjoint({conditions.name(absent)})")

    def changed(self) -> str | None:
        for name, label in self._labels.items():
            if not is_same(self._mapping.get(name, _MISSING), self._values.get(name, _MISSING)):
                return label
        # Equal numbers: found at once from now on.
        self._values = {name: self._mapping[name] for name in self._values}
        self._get = None
        return None


def _nothing(mapping: object) -> tuple[object, ...]:
    return ()


class _Contents:
    """The contents of a list, set or dictionary, in order."""

    def __init__(self, container: Collection[object], label: str) -> None:
        self._label = label
        self._container = container
        self._mapping = container if isinstance(container, Mapping) else None
        self._items = list(container)
        self._values = [] if self._mapping is None else list(self._mapping.values())

    def hold(self) -> bool:
        container = self._container
        return (
            len(container) == len(self._items)
            and _are_same(container, self._items)
            and (self._mapping is None or _are_same(self._mapping.values(), self._values))
        )

    def changed(self) -> str:
        """The label of the first value that is another; that of the container, if it has other items."""
        mapping = self._mapping
        if mapping is not None and len(mapping) == len(self._items) and _are_same(mapping, self._items):
            for key, known in zip(self._items, self._values, strict=True):
                if not is_same(mapping[key], known):
                    return part_of(self._label, key)
        return self._label

    def describe(self, conditions: Conditions) -> None:
        container = conditions.name(self._container)
        conditions.require_parts(container, list(self._container))
        if self._mapping is not None and self._mapping:
            conditions.require_parts(f"{container}.values()", list(self._mapping.values()))


def part_of(label: str, key: object) -> str:
    """The label of what a container of this label has under a key; that of the container, unless the key is short."""
    if type(key) is str and len(key) < 40:
        return f'{label}["{key}"]'
    return f"{label}[{key}]" if type(key) is int else label


def _are_same(items: Iterable[object], others: Sequence[object]) -> bool:
    return all(map(operator.is_, items, others)) or all(map(is_same, items, others))
