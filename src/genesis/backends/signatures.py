"""The types in the signatures of the contract."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, TypeVar

from genesis.backends.dispatch import OnDevice
from genesis.records import Pair as Pair

Handle = TypeVar("Handle", bound=OnDevice)  # an array: from above an NDArray, below a backend's own
NewHandle: TypeAlias = Any  # one that is made of nothing: by a backend, which is asked for it
Opaque: TypeAlias = Any  # a value of the backend's own
Number = bool | int | float
Operand: TypeAlias = Any  # in a backend, what is `Handle | Number` here
Shape = tuple[int, ...]


class SupportsDLPack(Protocol):
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> object: ...
