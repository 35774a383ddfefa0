"""The table of translations: from the name of a Function, or of an op of the contract, to ONNX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, TypeVar

from genesis.errors import GenesisError
from genesis.recording import Call

# Takes what it writes with (graph.Emitter), then the arguments of the Function's forward or of the op, with Operands
# in the places of arrays; gives an ONNX value, or a tuple of them, one for each result.
Translation: TypeAlias = Callable[..., object]


class NamedOp(Protocol):
    """An op of the contract as an argument of a Function: all that counts is which."""

    __name__: str


T = TypeVar("T", bound=Translation)

_TABLE: dict[str, Translation] = {}


class NotExportableError(GenesisError, NotImplementedError):
    """A model does what the file's format, or Genesis' export to it, cannot say; names the op and the user's line."""


def translates(*names: str) -> Callable[[T], T]:
    """Enter a translation for these Functions (CamelCase) and ops (snake_case)."""

    def enter(translation: T) -> T:
        for name in names:
            assert name not in _TABLE, f"{name} has two translations"
            _TABLE[name] = translation
        return translation

    return enter


def translation_of(call: Call) -> Translation | None:
    """How to say a call in ONNX; a Function of a user's own says it by its static method `symbolic`."""
    own = getattr(call.function, "symbolic", None)
    if callable(own):
        return own
    if isinstance(call.function, type) and not call.function.__module__.startswith("genesis.functional."):
        return None
    return _TABLE.get(call.op)


def names() -> list[str]:
    return sorted(_TABLE)
