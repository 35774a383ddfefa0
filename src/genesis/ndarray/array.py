"""The parts of an array: a backend's handle, and the changes that all views of one storage share."""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

from genesis.backends import Backend, active
from genesis.backends import contract as ops
from genesis.dtypes import OF_LIBRARIES, DType
from genesis.ndarray.device import Device
from genesis.shapes import Shape


class Array:
    """The base of arrays: the backend's handle, the device, and the changes that all views of one storage share."""

    __slots__ = ("_changes", "_strides", "device", "dtype", "handle", "shape")

    _strides: Shape | None

    def __init__(self, handle: Any, device: Device, changes: Changes | None = None) -> None:
        shape = handle.shape
        self.handle, self.device = handle, device
        self.shape: Shape = shape if type(shape) is tuple else tuple(shape)
        self._changes = changes  # None: nobody has asked for them yet, so that there is no view either
        dtype = handle.dtype
        if type(dtype) is DType:  # then asking the backend would tell the same, and take longer
            self.dtype, self._strides = dtype, handle.strides
        else:
            self.dtype, self._strides = OF_LIBRARIES[dtype], None

    @property
    def changes(self) -> Changes:
        changes = self._changes
        if changes is None:
            with _making_changes:
                changes = self._changes = self._changes or Changes()
        return changes

    @property
    def is_alone(self) -> bool:
        """Does nothing else show this storage? Then nobody is left behind if the array moves to another one."""
        return self._changes is None or not (self._changes.holders or _num_references(self) > _ALONE)

    def export(self) -> Any:
        """The handle, for another library, which may hold its memory from now on."""
        self.changes.export()
        return self.handle

    def is_view_of(self, other: Array) -> bool:
        """Do both show one storage?"""
        changes = self._changes
        return self is other or (changes is not None and changes is other._changes)

    @property
    def strides(self) -> Shape:
        """In elements; asked of the backend at first. (By __getattr__, every attribute would take its time.)"""
        strides = self._strides
        if strides is None:
            strides = self._strides = active[self.device.type].strides(self.handle)
        return strides

    @classmethod
    def full(cls, shape: Shape, value: bool | int | float, dtype: DType, device: Device) -> Self:
        return cls(backend_of(device).full(shape, value, dtype, device.index), device)

    def full_like(self, value: bool | int | float, shape: Shape | None = None, dtype: DType | None = None) -> Self:
        """A filled array on this device, with this shape and dtype unless told otherwise."""
        return self.full(self.shape if shape is None else shape, value, dtype or self.dtype, self.device)

    def to(self, dtype: DType) -> Self:
        """This array, or a copy in dtype if it has another."""
        return self if self.dtype is dtype else ops.cast(self, dtype)


class Replays:
    """Replays of CUDA graphs, which change storages without a call that counts them.

    Attributes:
        captures: how many captures are underway.
        count: how many replays there were.
    """

    __slots__ = ("captures", "count")

    def __init__(self) -> None:
        self.captures = self.count = 0


replays = Replays()


class Changes:
    """How often a storage was changed in place: by it, autograd notices that a saved value is no longer the same.

    Whoever keeps something that was computed from values asks for `version`, which knows of other libraries too: what
    they write into memory that they share is counted nowhere.
    """

    count = 0
    last_recorded = 0  # the count after the last change that a graph recorded
    _ended_exports = 0
    _by_replays = False  # does a CUDA graph change it in each replay?
    # For each export, what gives None once nobody else holds the memory. Another object with each change of it, so that
    # who has seen it needs no look inside.
    holders: Sequence[Callable[[], object]] = ()

    @property
    def version(self) -> int | None:
        """Another number after each change of the values; None while others hold the memory and may change them."""
        return self._version() if not self.holders else self._version_of_exported()

    def note(self) -> None:
        """Count a change in place."""
        self.count += 1
        if replays.captures:
            self._by_replays = True

    def _version(self) -> int:
        return self.count + self._ended_exports + (replays.count if self._by_replays else 0)

    def export(self, holder: object = None) -> None:
        """Others may write into this memory from now on: as long as holder lives, or for good.

        Args:
            holder: an object that lives as long as anything outside that shows the memory; None: not known.
        """
        with _making_changes:
            self._forget_ended()
            self.holders = [*self.holders, _forever if holder is None else weakref.ref(holder)]

    def _version_of_exported(self) -> int | None:
        with _making_changes:
            self._forget_ended()
            return None if self.holders else self._version()

    def _forget_ended(self) -> None:
        held = [holder for holder in self.holders if holder() is not None]
        if len(held) < len(self.holders):
            self._ended_exports += len(self.holders) - len(held)  # each of them may have written
            self.holders = held


def _forever() -> bool:
    return True


def _num_references(array: Array | types.SimpleNamespace) -> int:
    """To an array's changes, which each array that shows the storage holds; and a few of the call's own."""
    return sys.getrefcount(array._changes)


_ALONE = _num_references(types.SimpleNamespace(_changes=Changes()))
_making_changes = threading.Lock()  # all that share a storage share them


def backend_of(device: Device) -> Backend:
    """The backend in use for a device, with the tools around it; loaded when it is first asked for."""
    return active[device.type]
