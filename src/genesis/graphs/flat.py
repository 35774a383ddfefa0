"""Guards as one generated function: what was found to hold is compared again by identity, without a call per guard.

def holds(c0=…, c1=…, …):
    if c0["training"] is not c1: return False
    v0, v1, = c2.values()
    if v0 is not c3 or v1 is not c4: return False
    return True

It never finds that something has changed: where it does not hold, the guards themselves decide, and name what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType

from genesis.callsite import COMPILED

_MOST_LOOKUPS = 4  # by name; more are unpacked at once, which is faster then
_MOST_LINES = 20_000  # so that compiling it takes no longer than a capture


class Conditions:
    """Collects conditions on what guards watch, each as an expression or statement over named objects."""

    def __init__(self) -> None:
        self._objects: dict[str, object] = {}
        self._names: dict[int, str] = {}  # by id
        self._lines: list[str] = []

    def name(self, value: object) -> str:
        """A name for an object in expressions."""
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"c{len(self._objects)}"
            self._objects[name] = value
        return name

    def require(self, expression: str) -> None:
        self._lines.append(f"    if not ({expression}): return False")

    def require_same(self, expression: str, value: object) -> None:
        """It gives this object."""
        self._lines.append(f"    if {expression} is not {self._constant(value)}: return False")

    def require_parts(self, expression: str, values: Sequence[object]) -> None:
        """It gives an iterable of these objects, in this order."""
        if not values:
            self.require(f"not {expression}")
            return
        names = [f"v{index}" for index in range(len(values))]
        self._lines.append(f"    {', '.join(names)}, = {expression}")
        different = [f"{name} is not {self._constant(value)}" for name, value in zip(names, values, strict=True)]
        self._lines.append(f"    if {' or '.join(different)}: return False")

    def require_entries(self, mapping: str, values: Mapping[str, object]) -> None:
        """A dictionary has these objects, and no others."""
        if len(values) > _MOST_LOOKUPS:
            self.require_parts(f"{mapping}.values()", list(values.values()))
            return
        self.require(f"len({mapping}) == {len(values)}")
        self.require_items(mapping, values.items())

    def require_items(self, mapping: str, values: Iterable[tuple[str, object]]) -> None:
        """A dictionary has these objects under these names."""
        for name, value in values:
            self.require_same(f"{mapping}[{name!r}]", value)

    def _constant(self, value: object) -> str:
        return repr(value) if value is None or value is True or value is False else self.name(value)

    def compiled(self) -> Callable[[], bool] | None:
        """Whether all conditions hold; None: there are too many of them."""
        if len(self._lines) > _MOST_LINES:
            return None
        # Defaults of parameters are read faster than globals.
        head = f"def holds({', '.join(self._objects)}):"
        lines = [head, "  try:", *self._lines, f"    return True\n  except {_FAILURES}: return False"]
        namespace: dict[str, FunctionType] = {}
        exec(compile("\n".join(lines), COMPILED, "exec"), namespace)
        holds = namespace.pop("holds")  # in a cycle with its globals it would hold memory until the next collection
        holds.__defaults__ = tuple(self._objects.values())
        return holds


# A key or attribute is gone, a cell is empty; there are more or fewer parts.
_FAILURES = "(KeyError, AttributeError, ValueError, IndexError)"
