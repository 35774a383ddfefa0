"""What kernels are called with: tensors of Genesis, of PyTorch, of anything with DLPack or __cuda_array_interface__.

Each kind of tensor has a Framework that says where its memory is, on which stream its own work runs, and what must be
noted when a kernel writes into it. read() is on the way of every launch: its mark stands for all that was checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from genesis import dtypes
from genesis.autograd import Variable
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import dlpack as interop
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, OwnedStorage
from genesis.errors import DTypeError
from genesis.shapes import is_contiguous

_HOST = object()  # the mark of a tensor on the CPU: no launch is prepared for it, so the checks refuse it each time
Read = Callable[[Any], tuple[Any, Any]]


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
    """What a launch asks of the library whose tensors it is given."""

    def read(self, tensor: Any) -> tuple[Any, Any]:
        """(a mark that is equal only for tensors which every check treats alike, the address)."""

    def describe(self, tensor: Any) -> Operand: ...
    def device_of(self, tensor: Any) -> int | None:
        """The index of its CUDA device; None for the CPU."""

    def current_stream(self, device: int) -> int: ...
    def use_on(self, tensor: Any, stream: int) -> None:
        """The tensor's memory is reused only after what this stream does with it."""

    def note_write(self, tensor: Any) -> None:
        """A kernel has changed the tensor: what autograd saved of it is no longer the same."""


class GenesisTensors:
    current_stream = staticmethod(streams.current_handle)

    def read(self, tensor: Any) -> tuple[Any, Any]:
        handle = tensor.array.handle
        if type(handle) is DeviceArray:
            return handle.layout, handle.data_pointer
        return _HOST, 0

    def describe(self, tensor: Any) -> Operand:
        array, device = tensor.array, self.device_of(tensor)
        return Operand(
            self, array.dtype.name, device, array.is_contiguous, array.strides, array.numel, array.data_pointer
        )

    def device_of(self, tensor: Any) -> int | None:
        handle = tensor.array.handle
        return handle.device_index if type(handle) is DeviceArray else None

    def use_on(self, tensor: Any, stream: int) -> None:
        tensor.array.handle.storage.record_stream(stream)

    def note_write(self, tensor: Any) -> None:
        tensor.array.changes.count += 1


class ForeignArrays:
    """Arrays of other libraries: shown to Genesis at each launch, and used on its current stream."""

    current_stream = staticmethod(streams.current_handle)

    def read(self, tensor: Any) -> tuple[Any, Any]:
        array = _import(tensor)
        return (_HOST, 0) if array is None else ((self, array.layout), array.data_pointer)

    def describe(self, tensor: Any) -> Operand:
        array = _import(tensor)
        if array is None:
            return Operand(self, "unknown", None, True, (), 0, 0)
        dense = is_contiguous(array.shape, array.strides)
        where = (array.dtype.name, array.device_index, dense, array.strides)
        return Operand(self, *where, array.size, array.data_pointer)

    def device_of(self, tensor: Any) -> int | None:
        return self.describe(tensor).device

    def use_on(self, tensor: Any, stream: int) -> None:
        """Its owner cannot be told; the caller keeps it until the stream is done."""

    def note_write(self, tensor: Any) -> None:
        """Other libraries' arrays have no graph."""


def _import(source: Any) -> DeviceArray | None:
    """An array on the memory of source; None where that is the host's."""
    if hasattr(source, "__dlpack__"):
        return interop.from_dlpack(source) if source.__dlpack_device__()[0] == driver.get().dlpack_device_type else None
    return interop.from_array_interface(source)


def array_of(tensor: Any) -> DeviceArray:
    """A tensor on a CUDA device as the backend's array, on the same memory."""
    framework = framework_of(type(tensor))
    if framework is GENESIS:
        return tensor.array.handle
    if framework is FOREIGN:
        found = _import(tensor)
        assert found is not None, "the checks have let pass an array of the host"
        return found
    assert framework is not None, "the checks have let pass what is no tensor"
    operand = framework.describe(tensor)
    assert operand.device is not None, "the checks have let pass a tensor on the CPU"
    if operand.dtype not in dtypes.BY_NAME:
        raise DTypeError(f"kernel: expected one of {', '.join(dtypes.BY_NAME)}, got a tensor of {operand.dtype}")
    dtype, shape, strides = dtypes.BY_NAME[operand.dtype], tuple(tensor.shape), operand.strides
    stream = framework.current_stream(operand.device)
    storage = OwnedStorage(operand.pointer, operand.numel * dtype.itemsize, operand.device, stream, tensor)
    return DeviceArray(storage, shape, strides, 0, dtype)


GENESIS, FOREIGN = GenesisTensors(), ForeignArrays()
_frameworks: dict[type, Framework | None] = {}
readers: dict[type, Read] = {}  # by the type of an argument


def framework_of(kind: type) -> Framework | None:
    """The framework of a type of tensors; None for numbers and all else."""
    try:
        return _frameworks[kind]
    except KeyError:
        found = _frameworks[kind] = _find_framework(kind)
        return found


def _find_framework(kind: type) -> Framework | None:
    if issubclass(kind, Variable):
        return GENESIS
    if any(base.__name__ == "Tensor" and base.__module__.partition(".")[0] == "torch" for base in kind.__mro__):
        from genesis.torch.tensors import TORCH

        return TORCH
    if hasattr(kind, "__dlpack__") or hasattr(kind, "__cuda_array_interface__"):
        return FOREIGN
    return None


def reader_of(kind: type) -> Read:
    """What gives (a mark, what is packed for the kernel) of a tensor, a number or None of this type."""
    framework = framework_of(kind)
    if framework is not None:
        reader: Read = framework.read
    elif kind is type(None):
        reader = _read_none
    else:
        reader = _read_number
    readers[kind] = reader
    return reader


def _read_number(value: Any) -> tuple[Any, Any]:
    return type(value), value


def _read_none(value: None) -> tuple[Any, Any]:
    return None, 0
