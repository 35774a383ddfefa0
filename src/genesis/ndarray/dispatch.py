"""From an array to its backend: unwrap the arguments, call the op, wrap the results."""

from __future__ import annotations

import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

from genesis import backends
from genesis.backends import Backend
from genesis.dtypes import DType
from genesis.errors import DeviceError
from genesis.ndarray.device import Device
from genesis.ndarray.refusals import LIBRARY_ERRORS, refusal
from genesis.shapes import Shape


class Array:
    """What every array holds: the backend's handle, the device, and the changes that all views of one storage share."""

    __slots__ = ("_changes", "device", "dtype", "handle", "shape", "strides")

    dtype: DType
    strides: Shape  # in elements

    def __init__(self, handle: Any, device: Device, changes: Changes | None = None) -> None:
        shape = handle.shape
        self.handle, self.device = handle, device
        self.shape: Shape = shape if type(shape) is tuple else tuple(shape)
        self._changes = changes  # None: nobody has asked for them yet, so that there is no view either
        dtype = handle.dtype
        if type(dtype) is DType:  # then asking the backend would tell the same, and take longer
            self.dtype, self.strides = dtype, handle.strides

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

    def __getattr__(self, name: str) -> Any:
        """dtype or strides: asked of the backend when they are first looked at, and then at hand without a call."""
        if name not in ("dtype", "strides"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        backend = backends.active.get(self.device.type) or backend_of(self.device)
        value = getattr(backend, name)(self.handle)
        setattr(self, name, value)
        return value

    @classmethod
    def full(cls, shape: Shape, value: bool | int | float, dtype: DType, device: Device) -> Self:
        return cls(backend_of(device).full(shape, value, dtype, device.index), device)

    def full_like(self, value: bool | int | float, shape: Shape | None = None, dtype: DType | None = None) -> Self:
        """A filled array on this device, with this shape and dtype unless told otherwise."""
        return self.full(self.shape if shape is None else shape, value, dtype or self.dtype, self.device)

    def to(self, dtype: DType) -> Self:
        """This array, or a copy in dtype if it has another."""
        return self if self.dtype is dtype else call("cast", self, dtype)


class Changes:
    """How often a storage was changed in place: by it, autograd notices that a saved value is no longer the same.

    Whoever keeps something that was computed from values asks for `version`, which knows of other libraries too: what
    they write into memory that they share is counted nowhere.
    """

    count = 0
    last_recorded = 0  # the count after the last change that a graph recorded
    _ended_exports = 0
    # For each export, what gives None once nobody else holds the memory. Another object with each change of it, so that
    # who has seen it needs no look inside.
    holders: Sequence[Callable[[], Any]] = ()

    @property
    def version(self) -> int | None:
        """Another number after each change of the values; None while others hold the memory and may change them."""
        return self.count + self._ended_exports if not self.holders else self._version_of_exported()

    def export(self, holder: Any = None) -> None:
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
            return None if self.holders else self.count + self._ended_exports

    def _forget_ended(self) -> None:
        held = [holder for holder in self.holders if holder() is not None]
        if len(held) < len(self.holders):
            self._ended_exports += len(self.holders) - len(held)  # each of them may have written
            self.holders = held


def _forever() -> bool:
    return True


def _num_references(array: Any) -> int:
    """To an array's changes, which each array that shows the storage holds; and a few of the call's own."""
    return sys.getrefcount(array._changes)


_ALONE = _num_references(types.SimpleNamespace(_changes=Changes()))
_making_changes = threading.Lock()  # all that share a storage share them


def backend_of(device: Device) -> Backend:
    backend = backends.active.get(device.type)
    if backend is None:
        backends.get(device.type)  # loads it
        backend = backends.active[device.type]
    return backend


def call(op: str, first: Any, *args: Any) -> Any:
    """backend.op(first, *args) as a new array, or as a tuple of arrays (None stays None)."""
    # call_raw() written out: this is on the way of every op. (isinstance() takes its time where the answer is no.)
    device, array = first.device, type(first)
    handles = [
        arg if type(arg) is not array else arg.handle if arg.device is device else _handle(op, device, arg)
        for arg in args
    ]
    try:
        result = getattr(backends.active.get(device.type) or backend_of(device), op)(first.handle, *handles)
    except LIBRARY_ERRORS as error:
        raise refusal(op, (first, *args), error) from None
    if type(result) is tuple:
        return tuple([None if handle is None else array(handle, device) for handle in result])
    return array(result, device)


def call_raw(op: str, first: Any, *args: Any) -> Any:
    """backend.op(first, *args) with arrays replaced by their handles; the result as the backend gave it."""
    device = first.device
    handles = [_handle(op, device, arg) if isinstance(arg, Array) else arg for arg in args]
    try:
        return getattr(backend_of(device), op)(first.handle, *handles)
    except LIBRARY_ERRORS as error:
        raise refusal(op, (first, *args), error) from None


def handles(op: str, arrays: Any) -> list[Any]:
    """The handles of a list of arrays, which must live on one device."""
    device = arrays[0].device
    return [array.handle if array.device is device else _handle(op, device, array) for array in arrays]


def _handle(op: str, device: Device, array: Array) -> Any:
    if array.device is not device:
        raise DeviceError(
            f"{op}: expected all tensors on one device, got {device} and {array.device}; move one with .to()"
        )
    return array.handle
