"""Values: arrays by number, with the memory that each shows."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import weakref
from collections.abc import Callable, Hashable
from typing import NamedTuple

from genesis import shapes
from genesis.autograd import Variable
from genesis.ndarray import NDArray
from genesis.shapes import Shape


class Kind(enum.Enum):
    """The origin of a memory's contents."""

    INPUT = "input"  # another one in each run
    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"  # of a parameter, from before the run
    CONSTANT = "constant"  # from before the run, and none of the above
    INTERMEDIATE = "intermediate"  # made by the run


@dataclasses.dataclass(eq=False, slots=True)
class Memory:
    """Storage, which several values may show.

    Attributes:
        number: that of the first value that showed it.
        version: how often it has been changed in place so far.
    """

    kind: Kind
    number: int
    version: int = 0


class Value(NamedTuple):
    """An array: its number, the memory that it shows, and the version of that memory when it was looked up."""

    number: int
    memory: Memory
    version: int = 0
    shape: Shape = ()  # () too for what is no array, such as a weight in a backend's own form

    @property
    def contents(self) -> tuple[int, int]:
        """Equal for equal contents: the array, and how often its memory had been changed."""
        return self.number, self.version

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        return shapes.numel(self.shape)


class Values:
    """The values of handles, arrays and tensors, found by identity."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Value, Callable[[], object]]] = {}
        self._memories: dict[int, Memory] = {}  # of arrays, by the id of their changes, which views share
        self._num_values = 0

    def find(self, thing: object) -> Value | None:
        """The value of thing as it is now, if it has one."""
        if isinstance(thing, Variable):
            node = thing._node
            if node is not None:
                value = self._at((id(node), thing._output_index), node)
                if value is not None:
                    return value
            thing = thing.array
        value = self._at(id(thing), thing)
        if value is None and isinstance(thing, NDArray):
            value = self._at(id(thing.handle), thing.handle)
        return value

    def _at(self, key: Hashable, holder: object) -> Value | None:
        known = self._known.get(key)
        if known is None or known[1]() is not holder:
            return None
        value, held = known
        memory = value.memory
        if type(holder) is NDArray:
            memory.version = holder.changes.count
        if value.version != memory.version:
            value = value._replace(version=memory.version)
            self._known[key] = value, held
        return value

    def add(self, thing: object, kind: Kind = Kind.INTERMEDIATE, base: Value | None = None) -> Value:
        """A new value for thing; base: the value whose memory it shows."""
        number = self._num_values
        self._num_values += 1
        memory = Memory(kind, number) if base is None else base.memory
        array = thing.array if isinstance(thing, Variable) else thing
        if isinstance(array, NDArray):
            changes = array.changes
            memory = self._memories.setdefault(id(changes), memory)
            memory.version, shape = changes.count, array.shape
        else:
            shape = tuple(getattr(array, "shape", ()))
        return self.bind(thing, Value(number, memory, memory.version, shape))

    def bind(self, thing: object, value: Value) -> Value:
        """thing is this value from now on."""
        if isinstance(thing, Variable):
            if thing._node is not None:
                self._known[id(thing._node), thing._output_index] = value, weakref.ref(thing._node)
            thing = thing.array
        self._known[id(thing)] = value, _holding(thing)
        return value


def _holding(holder: object) -> Callable[[], object]:
    """Return an object that keeps holder alive for its lifetime; an object without weak references is kept."""
    if type(holder) is not NDArray:
        with contextlib.suppress(TypeError):
            return weakref.ref(holder)
    return lambda: holder
