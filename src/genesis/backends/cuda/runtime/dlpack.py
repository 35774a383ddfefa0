"""DLPack both ways, without copies: the exchange of memory with PyTorch, CuPy, JAX and NumPy; and CUDA's own, shown.

What is exchanged is a Region: array.py makes arrays of it. The C structures are written and read here with ctypes, so
that bfloat16 and the simulated device work too. The consumer names its stream, the producer makes that stream wait for
what it has launched.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import NamedTuple, NotRequired, Protocol, TypedDict

from genesis import dtypes
from genesis.backends.contract import SupportsDLPack
from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import capturing, streams
from genesis.backends.cuda.runtime.memory import OwnedStorage, Storage
from genesis.dtypes import DType
from genesis.errors import DeviceError, DTypeError, describe
from genesis.shapes import Shape, contiguous_strides, numel

_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6  # DLDataTypeCode
_CODES = {dtype: (_FLOAT if dtype.is_floating_point else _INT, 8 * dtype.itemsize) for dtype in dtypes.ALL}
_CODES |= {dtypes.bfloat16: (_BFLOAT, 16), dtypes.uint8: (_UINT, 8), dtypes.bool_: (_BOOL, 8)}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}
_TYPE_NAMES = {dtype: f"<{'f' if dtype.is_floating_point else 'i'}{dtype.itemsize}" for dtype in dtypes.ALL}
_TYPE_NAMES |= {dtypes.int8: "|i1", dtypes.uint8: "|u1", dtypes.bool_: "|b1"}
_TYPE_NAMES[dtypes.bfloat16] = "<V2"  # which numpy has not; PyTorch says it so
_DTYPES_BY_NAME = {name: dtype for dtype, name in _TYPE_NAMES.items()}
_LEGACY_STREAM = 1  # what DLPack calls the default stream, our 0


class Region(NamedTuple):
    """Memory and how to read it: what DeviceArray is made of, in its order."""

    storage: Storage
    shape: Shape
    strides: Shape
    offset: int
    dtype: DType

    @property
    def pointer(self) -> int:
        return self.storage.pointer + self.offset * self.dtype.itemsize


class ArrayInterface(TypedDict):
    """__cuda_array_interface__, version 3."""

    shape: Shape
    typestr: str
    data: tuple[int, bool]  # address, is it read-only
    version: int
    strides: NotRequired[Shape | None]  # in bytes
    stream: NotRequired[int | None]


class SupportsArrayInterface(Protocol):
    @property
    def __cuda_array_interface__(self) -> ArrayInterface: ...


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """Before DLPack 1.0."""

    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_LAYOUTS: dict[bytes, type[ctypes.Structure]] = {b"dltensor": _Managed, b"dltensor_versioned": _ManagedVersioned}
_USED = {name: b"used_" + name for name in _LAYOUTS}  # a capsule keeps the pointer to its name, so these stay
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _Destructor)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))

_lent: dict[int, tuple[object, ...]] = {}  # what consumers hold: the context's number → structure, shape, storage
_numbers = itertools.count(1)


@_Deleter
def _give_back(address: int) -> None:
    _lent.pop(_Managed.from_address(address).context)


@_Deleter
def _give_back_versioned(address: int) -> None:
    _lent.pop(_ManagedVersioned.from_address(address).context)


@_Destructor
def _drop_capsule(capsule: int) -> None:
    """A capsule that nobody has taken gives its memory back."""
    for name in _LAYOUTS:
        if _is_valid(capsule, name):
            _DELETERS[name](_pointer(capsule, name))


_DELETERS = {b"dltensor": _give_back, b"dltensor_versioned": _give_back_versioned}


def device_of(device_index: int) -> tuple[int, int]:
    """__dlpack_device__() of an array there: (device type, index)."""
    device_type = driver.get().dlpack_device_type
    return device_type, device_index if device_type == 2 else 0


def array_interface(x: Region) -> ArrayInterface:
    """The __cuda_array_interface__ of x, version 3: what the consumer launches must come after what is on `stream`."""
    if driver.get().dlpack_device_type != 2:
        raise AttributeError("__cuda_array_interface__: the memory of a simulated device is the host's")
    return {
        "shape": x.shape,
        "strides": tuple([step * x.dtype.itemsize for step in x.strides]),
        "typestr": _TYPE_NAMES[x.dtype],
        "data": (x.pointer if numel(x.shape) else 0, False),
        "stream": streams.current_handle(x.storage.device_index) or _LEGACY_STREAM,
        "version": 3,
    }


def export(x: Region, stream: int | None, max_version: tuple[int, int] | None) -> object:
    """Export x for __dlpack__(): a capsule that shows x's memory and keeps it alive."""
    device = x.storage.device_index
    if stream is None and driver.get().dlpack_device_type == 2:
        stream = _LEGACY_STREAM  # so the protocol has it
    if stream is not None and stream != -1:
        consumer = 0 if stream == _LEGACY_STREAM else stream
        if consumer != streams.current_handle(device):
            streams.Stream(device, handle=consumer).wait_stream(streams.current(device))
            x.storage.record_stream(consumer)
    name = next(iter(_LAYOUTS)) if max_version is None or max_version[0] < 1 else list(_LAYOUTS)[1]
    managed = _LAYOUTS[name]()
    sizes = (ctypes.c_int64 * max(len(x.shape), 1))(*x.shape)
    steps = (ctypes.c_int64 * max(len(x.shape), 1))(*x.strides)
    tensor = managed.tensor
    tensor.data, tensor.ndim, tensor.lanes = x.pointer, len(x.shape), 1
    tensor.device_type, tensor.device_id = device_of(device)
    tensor.code, tensor.bits = _CODES[x.dtype]
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64))
    if name == b"dltensor_versioned":
        managed.major, managed.minor = 1, 0
    managed.context, managed.deleter = next(_numbers), _DELETERS[name]
    _lent[managed.context] = managed, sizes, steps, x.storage
    return _new(ctypes.addressof(managed), name, _drop_capsule)


def region_from_dlpack(source: SupportsDLPack) -> Region:
    """The memory of anything with __dlpack__."""
    device_type, index = source.__dlpack_device__()
    capturing.refuse(index, "takes another library's memory", "import it before the capture begins")
    expected = driver.get().dlpack_device_type
    if device_type != expected:
        raise DeviceError(describe("from_dlpack", "source", f"device type {expected}", f"device type {device_type}"))
    stream = streams.current_handle(index)
    handed = (stream or _LEGACY_STREAM) if device_type == 2 else None
    try:
        capsule = source.__dlpack__(stream=handed, max_version=(1, 0))
    except TypeError:  # a producer from before DLPack 1.0
        capsule = source.__dlpack__(stream=handed)
    name = next(name for name in _LAYOUTS if _is_valid(id(capsule), name))
    address = _pointer(id(capsule), name)
    _set_name(capsule, _USED[name])
    return _Borrowed(address, _LAYOUTS[name]).region(index, stream)


class _Borrowed:
    """Memory of a producer, given back when nobody shows it any more."""

    def __init__(self, address: int, layout: type[ctypes.Structure]) -> None:
        self._address = address
        self._managed = layout.from_address(address)

    def __del__(self) -> None:
        if self._managed.deleter:
            self._managed.deleter(self._address)

    def region(self, device_index: int, stream: int) -> Region:
        tensor = self._managed.tensor
        dtype: DType | None = _DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
        if dtype is None:
            found = f"DLPack type code {tensor.code} of {tensor.bits} bits"
            raise DTypeError(describe("from_dlpack", "source", "a dtype that Genesis has", found))
        shape = tuple(tensor.shape[: tensor.ndim])
        strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else contiguous_strides(shape)
        reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 0
        pointer = (tensor.data or 0) + tensor.byte_offset
        storage = OwnedStorage(pointer, reach * dtype.itemsize, device_index, stream, self)
        return Region(storage, shape, strides, 0, dtype)


def region_from_array_interface(source: SupportsArrayInterface) -> Region:
    """The memory of anything with __cuda_array_interface__; our stream waits for the one that it names."""
    found = source.__cuda_array_interface__
    dtype = _DTYPES_BY_NAME.get(found["typestr"])
    if dtype is None:
        raise DTypeError(describe("from_array_interface", "source", "a dtype that Genesis has", found["typestr"]))
    pointer, shape = found["data"][0], tuple(found["shape"])
    index = driver.get().device_of(pointer) if pointer else 0
    stream = streams.current_handle(index)
    theirs = found.get("stream")
    producer = 0 if theirs in (None, _LEGACY_STREAM) else theirs
    if producer != stream and theirs is not None:
        streams.current(index).wait_stream(streams.Stream(index, handle=producer))
    steps = found.get("strides")
    strides = contiguous_strides(shape) if steps is None else tuple([step // dtype.itemsize for step in steps])
    reach = sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1 if 0 not in shape else 0
    storage = OwnedStorage(pointer, reach * dtype.itemsize, index, stream, source)
    return Region(storage, shape, strides, 0, dtype)
