"""The interface between a launch and the library whose tensors it is given."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

HOST = object()  # the mark of a tensor on the CPU: no launch is prepared for it, so the checks refuse it each time


class Operand(NamedTuple):
    """A tensor as the checks of a launch see it."""

    framework: Framework
    dtype: str
    device: int | None  # index of the CUDA device; None: the CPU
    contiguous: bool
    strides: tuple[int, ...]
    numel: int
    pointer: int


class Framework(Protocol):
    """A library of tensors, as a launch sees it."""

    def read(self, tensor: Any) -> tuple[object, int]:
        """(a mark that is equal only for tensors which every check treats alike, the address)."""

    def describe(self, tensor: Any) -> Operand: ...
    def device_of(self, tensor: Any) -> int | None:
        """The index of its CUDA device; None for the CPU."""

    def current_stream(self, device: int) -> int: ...
    def use_on(self, tensor: Any, stream: int) -> None:
        """The tensor's memory is reused only after what this stream does with it."""

    def note_write(self, tensor: Any) -> None:
        """A kernel has changed the tensor: what autograd saved of it is no longer the same."""
