"""The table of ops: what computes a node, on tensors and on the host.

Sizes, and what is computed from them, are NumPy arrays on the host: `Shape` makes them, `Reshape` and the like want
them. An op has a function of tensors, a function of arrays for where all its operands are such, or both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from genesis.errors import GenesisError, describe
from genesis.export.graph import Array as Array
from genesis.tensor import Tensor

Value: TypeAlias = "Tensor | Array"
Function: TypeAlias = Callable[..., object]  # takes the Node, then an operand or None for each of its inputs
F = TypeVar("F", bound=Function)

MOST_ON_HOST = 2**20  # elements of an array on the host: sizes are few
MOST_ELEMENTS = 2**30  # of a tensor that a file's numbers alone make large


class NotImportableError(GenesisError, NotImplementedError):
    """A file uses ops, or options of them, that Genesis does not import; names all ops and their nodes."""


class Node(NamedTuple):
    """One node of a graph.

    Attributes:
        op: with its domain, unless that is ONNX' own.
        inputs: names; "" where an optional one is left out.
        attributes: numbers, strings, arrays, and tuples of them.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, object]
    opset: int

    def integer(self, name: str, default: int) -> int:
        found = self._of(name, (int,), default)
        assert isinstance(found, int)
        return found

    def floating(self, name: str, default: float) -> float:
        found = self._of(name, (int, float), default)
        assert isinstance(found, int | float)
        return float(found)

    def text(self, name: str, default: str) -> str:
        return str(self._of(name, (str,), default))

    def integers(self, name: str, default: Sequence[int] | None = None) -> tuple[int, ...] | None:
        """The numbers of an attribute, or default if the node does not say it."""
        found = self._of(name, (tuple,), None)
        if found is None:
            return None if default is None else tuple(default)
        assert isinstance(found, tuple)
        if not all(type(number) is int for number in found):
            raise self.refuse(f"{name}={found!r}")
        return found

    def refuse(self, what: str) -> NotImportableError:
        """The error that says that an option is not supported."""
        return NotImportableError(f"load_onnx: {self.op} with {what} is not supported ({self.name})")

    def _of(self, name: str, kinds: tuple[type, ...], default: object) -> object:
        found = self.attributes.get(name, default)
        if found is not default and not isinstance(found, kinds):
            raise self.refuse(f"{name}={found!r}")
        return found


class Entry(NamedTuple):
    """How an op is computed, and which of its inputs are wanted on the host."""

    function: Function | None
    on_host: Function | None
    host_inputs: frozenset[int]


_TABLE: dict[str, Entry] = {}


def computes(*ops: str, host: Sequence[int] = ()) -> Callable[[F], F]:
    """Enter the function of tensors of these ops.

    Args:
        host: the inputs that it takes as arrays on the host.
    """

    def enter(function: F) -> F:
        for op in ops:
            known = _TABLE.get(op)
            assert known is None or known.function is None, f"{op} has two functions"
            _TABLE[op] = Entry(function, None if known is None else known.on_host, frozenset(host))
        return function

    return enter


def on_host(*ops: str) -> Callable[[F], F]:
    """Enter what computes these ops where all operands are on the host."""

    def enter(function: F) -> F:
        for op in ops:
            known = _TABLE.get(op)
            assert known is None or known.on_host is None, f"{op} has two functions on the host"
            _TABLE[op] = Entry(None, function, frozenset()) if known is None else known._replace(on_host=function)
        return function

    return enter


def entry_of(op: str) -> Entry | None:
    return _TABLE.get(op)


def names() -> list[str]:
    """The ops that can be imported, by name."""
    return sorted(_TABLE)


def integers(array: Array | None) -> list[int]:
    """The numbers of a one-dimensional array of integers, or of a single one."""
    assert array is not None
    return [int(number) for number in array.reshape(-1)]


def require_room(node: Node, shape: Sequence[int], most: int = MOST_ELEMENTS) -> None:
    """Raises: ValueError: a file asks for more elements than any of its networks could need."""
    count = 1
    for size in shape:
        count *= max(int(size), 0)
    if count > most:
        raise ValueError(describe("load_onnx", node.name, f"at most {most:,} elements", f"shape {tuple(shape)}"))
