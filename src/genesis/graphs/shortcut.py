"""Finds the entry that was replayed last, for arguments like those of that call, without hashing their signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from genesis.autograd.modes import state
from genesis.backends import active
from genesis.graphs.guards import modes_of, present_modes
from genesis.graphs.values import OF_TENSORS
from genesis.ndarray import CPU
from genesis.ndarray.capturing import replays
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.graphs.compiled import Entry


class Shortcut:
    """The arguments of a replay on CUDA, by what their signature depends on.

    A tensor's is its layout, of which equal ones are one object; another argument's is itself.
    """

    def __init__(self, entry: Entry, args: Sequence[object], modes: tuple[object, ...]) -> None:
        self.entry, self._modes = entry, modes
        self._kinds: list[object] = [arg.array.handle.layout if type(arg) is Tensor else arg for arg in args]

    @classmethod
    def of(cls, entry: Entry, args: Sequence[object], tensors: Sequence[Tensor]) -> Shortcut | None:
        """None: the signature depends on more."""
        is_simple = all(type(arg) is Tensor or not isinstance(arg, list | tuple | dict | Tensor) for arg in args)
        own = [arg for arg in args if type(arg) is Tensor]
        if active.get("cuda") is not entry.backend or not is_simple or len(own) != len(tensors):
            return None
        is_aligned = all(tensor.array.handle.layout.aligned for tensor in tensors)
        return cls(entry, args, present_modes()) if is_aligned else None

    def tensors_of(self, args: Sequence[object]) -> list[Tensor] | None:
        """The tensors among the arguments of a call; None: its signature, or what is around it, may be another."""
        kinds = self._kinds
        if len(args) != len(kinds):
            return None
        tensors, handles = [], []
        for index, arg in enumerate(args):  # zip(strict=True) takes 0.2 µs
            kind = kinds[index]
            if type(arg) is Tensor:
                own = arg.__dict__
                array = own["array"]
                handle = array.handle
                if array.device is CPU or (handle._layout or handle.layout) is not kind or handle in handles:
                    return None
                if len(own) != 1 and (arg.requires_grad or not own.keys() <= OF_TENSORS):
                    return None
                tensors.append(arg)
                handles.append(handle)
            elif arg is not kind:
                return None
        if replays.captures or active["cuda"] is not self.entry.backend:
            return None
        thread = state.__dict__
        if thread["observer"] is not None or thread["watcher"] is not None or modes_of(thread) != self._modes:
            return None
        return tensors
