"""From an array to its backend: unwrap the arguments, call the op, wrap the results."""

from __future__ import annotations

from typing import Any

from genesis import backends
from genesis.backends import Backend
from genesis.errors import DeviceError
from genesis.ndarray.device import Device


class Array:
    """What every array holds: the backend's handle, the device, and the changes that all views of one storage share."""

    __slots__ = ("changes", "device", "handle")

    def __init__(self, handle: Any, device: Device, changes: Changes | None = None) -> None:
        self.handle = handle
        self.device = device
        self.changes = Changes() if changes is None else changes


class Changes:
    """How often a storage was changed in place. Autograd compares it to notice that a saved value is no longer the same."""

    __slots__ = ("count", "last_recorded")

    def __init__(self) -> None:
        self.count = 0
        self.last_recorded = 0  # the count after the last change that a graph recorded


def backend_of(device: Device) -> Backend:
    backend = backends.active.get(device.type)
    if backend is None:
        backends.get(device.type)  # loads it
        backend = backends.active[device.type]
    return backend


def call_raw(op: str, first: Any, *args: Any) -> Any:
    """backend.op(first, *args) with arrays replaced by their handles; the result as the backend gave it."""
    device = first.device
    handles = [_handle(op, device, arg) if isinstance(arg, Array) else arg for arg in args]
    return getattr(backend_of(device), op)(first.handle, *handles)


def call(op: str, first: Any, *args: Any) -> Any:
    """backend.op(first, *args) as a new array, or as a tuple of arrays (None stays None)."""
    result = call_raw(op, first, *args)
    array, device = type(first), first.device
    if isinstance(result, tuple):
        return tuple([None if handle is None else array(handle, device) for handle in result])
    return array(result, device)


def handles(op: str, arrays: Any) -> list[Any]:
    """The handles of a list of arrays, which must live on one device."""
    device = arrays[0].device
    return [_handle(op, device, array) for array in arrays]


def _handle(op: str, device: Device, array: Array) -> Any:
    if array.device is not device:
        raise DeviceError(
            f"{op}: expected all tensors on one device, got {device} and {array.device}; move one with .to()"
        )
    return array.handle
