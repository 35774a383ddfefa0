"""Arrays themselves: creation, views, copies in any order of memory, casts, the way to the host and back."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from genesis import dtypes
from genesis.backends.contract import Operand, SupportsDLPack
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.pointwise.launch import Number, apply_into, new_like
from genesis.backends.cuda.ops.storage import kernels
from genesis.backends.cuda.runtime import array, capturing, faults, memory, streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.backends.cuda.runtime.capture import outside
from genesis.dtypes import DType, HostArray
from genesis.shapes import Shape, channels_innermost, contiguous_strides, equivalent, is_contiguous

Integers: TypeAlias = "npt.NDArray[np.int64]"

_ALIGNMENT = 256  # of what copies() puts into one allocation, in bytes: as if each had its own
_CHUNK = 1 << 16  # bytes that one program copies
_BITS = {8: dtypes.int64, 4: dtypes.int32, 2: dtypes.int16, 1: dtypes.int8}


def dtype(x: DeviceArray) -> DType:
    return x.dtype


def strides(x: DeviceArray) -> Shape:
    return x.strides


def offset(x: DeviceArray) -> int:
    return x.offset


def data_pointer(x: DeviceArray) -> int:
    return x.data_pointer


def empty(
    shape: Shape, strides: Shape | None = None, dtype: DType = dtypes.float32, device_index: int = 0
) -> DeviceArray:
    return array.empty(shape, dtype, device_index, strides)


def full(shape: Shape, value: Number, dtype: DType, device_index: int = 0) -> DeviceArray:
    x = array.empty(shape, dtype, device_index)
    copy_into(x, value)
    return x


def arange(start: Number, step: Number, length: int, dtype: DType, device_index: int = 0) -> DeviceArray:
    x = array.empty((length,), dtype, device_index)
    number = float if dtype.is_floating_point else int
    op = kernels._arange_kernel if dtype.is_floating_point else kernels._arange_integer_kernel
    launch(op, (-(-length // 1024),), x, number(start), number(step), length, BLOCK=1024)
    return x


def view(x: DeviceArray, shape: Shape, strides: Shape, offset: int) -> DeviceArray:
    return DeviceArray(x.storage, shape, strides, offset, x.dtype)


def view_dtype(x: DeviceArray, dtype: DType, shape: Shape, strides: Shape, offset: int) -> DeviceArray:
    return DeviceArray(x.storage, shape, strides, offset, dtype)


def copy(x: DeviceArray, strides: Shape) -> DeviceArray:
    out = array.empty(x.shape, x.dtype, x.device_index, strides)
    copy_into(out, x)
    return out


def viewable(x: DeviceArray) -> DeviceArray:
    """x in an order that `view` can flatten, row-major or with its channels innermost; else a row-major copy.

    For the results of ops that are row-major in PyTorch, and here in the order that their operand has.
    """
    return x if is_viewable(x._layout or x.layout) else copy(x, contiguous_strides(x.shape))


@functools.cache
def is_viewable(x: Layout) -> bool:
    return equivalent(x.shape, x.strides, contiguous_strides(x.shape)) or channels_innermost(x.shape, x.strides)


def copies(arrays: Sequence[DeviceArray], strides: Sequence[Shape]) -> tuple[DeviceArray, ...]:
    """Copy arrays: those that keep their strides share one allocation, which one launch fills."""
    layouts = [x.layout for x in arrays]
    together = [
        i
        for i, (layout, its_strides) in enumerate(zip(layouts, strides, strict=True))
        if layout.strides == its_strides and layout.aligned and layout.num_bytes
    ]
    if not together:
        return tuple(map(copy, arrays, strides))
    device = arrays[0].device_index
    num_bytes = np.array([layouts[i].num_bytes for i in together])
    ends = np.cumsum(-(-num_bytes // _ALIGNMENT) * _ALIGNMENT)
    memory = array.empty((int(ends[-1]),), dtypes.int8, device).storage
    places = np.append(0, ends[:-1])
    made: dict[int, DeviceArray | None] = dict.fromkeys(range(len(arrays)))
    for i, place in zip(together, places.tolist(), strict=True):
        layout = layouts[i]
        made[i] = DeviceArray(memory, layout.shape, layout.strides, place // layout.dtype.itemsize, layout.dtype)
    sources = np.array([arrays[i].data_pointer for i in together])
    _copy_all_bytes(memory.pointer + places, sources, num_bytes, device)
    return tuple([copy(arrays[i], strides[i]) if x is None else x for i, x in made.items()])


def copy_into(target: DeviceArray, source: DeviceArray | Number) -> None:
    if not isinstance(source, DeviceArray):
        return _fill(target, source)
    if source.device_index != target.device_index:
        return _copy_across(target, source)
    if source.dtype is not target.dtype:
        wide = target.dtype if target.dtype.category > source.dtype.category else source.dtype
        return apply_into(target, kernels._copy_kernel, source, dtype=wide)
    if target.shape == source.shape and target.strides == source.strides and is_dense(target):
        return _copy_bytes(target, source)
    apply_into(as_bits(target), kernels._copy_kernel, as_bits(source))  # equal dtypes: bits move, whatever they mean


def add_into(target: DeviceArray, source: Operand) -> None:
    apply_into(target, kernels._add_into_kernel, target, source)


def cast(x: DeviceArray, dtype: DType) -> DeviceArray:
    out = new_like(x, dtype)
    copy_into(out, x)
    return out


def from_cpu(
    array: HostArray, dtype: DType | None = None, device_index: int = 0, non_blocking: bool = False
) -> DeviceArray:
    dtype = dtypes.of_array("from_cpu", array) if dtype is None else dtype
    assert array.itemsize == dtype.itemsize, f"from_cpu: {array.dtype} cannot hold {dtype.name}"
    array = np.ascontiguousarray(array).reshape(array.shape)
    if capturing.underway and capturing.here(device_index) is not None:
        return _captured_copy(array, dtype, device_index, non_blocking)
    x = empty(array.shape, None, dtype, device_index)
    stream = streams.current_handle(device_index)
    driver.get().copy(device_index, x.data_pointer, array.ctypes.data, array.nbytes, stream)
    if is_pinned(array):  # all other memory has been read by now
        if non_blocking:
            memory.keep_until(streams.current(device_index).record_event(), array)
        else:
            driver.get().synchronize_stream(device_index, stream)
    return x


def _captured_copy(array: HostArray, dtype: DType, device_index: int, non_blocking: bool) -> DeviceArray:
    """Each replay copies anew from the page-locked memory, which the graph keeps. Raises: CaptureError: from other."""
    if array.nbytes and not (non_blocking and is_pinned(array)):
        doing = "copies from host memory"
        capturing.refuse(device_index, doing, "create it before, or copy with non_blocking=True from pinned memory")
    x = empty(array.shape, None, dtype, device_index)
    stream = streams.current_handle(device_index)
    driver.get().copy(
        device_index, x.data_pointer, capturing.keep(device_index, array).ctypes.data, array.nbytes, stream
    )
    return x


def table(values: Integers, device_index: int) -> DeviceArray:
    """int64 numbers that kernels read and nobody changes; a graph that is captured keeps them, and copies nothing."""
    with outside(device_index):
        made = from_cpu(values, dtypes.int64, device_index)
    return capturing.keep(device_index, made)


def from_dlpack(source: SupportsDLPack) -> DeviceArray:
    return array.from_dlpack(source)


def to_cpu(x: DeviceArray) -> HostArray:
    if capturing.underway:
        capturing.refuse_waiting(x.device_index, streams.current_handle(x.device_index), "read it after replay()")
    if not is_contiguous(x.shape, x.strides):
        x = copy(x, contiguous_strides(x.shape))
    name = "uint16" if x.dtype is dtypes.bfloat16 else x.dtype.name
    out = np.empty(x.shape, name)
    stream = streams.current_handle(x.device_index)
    driver.get().copy(x.device_index, out.ctypes.data, x.data_pointer, out.nbytes, stream)
    driver.get().synchronize_stream(x.device_index, stream)
    faults.check(x.device_index)
    return out


def empty_pinned(shape: Shape, dtype: DType) -> HostArray:
    return memory.pinned_empty(shape, "uint16" if dtype is dtypes.bfloat16 else dtype.name)


def share_memory(x: DeviceArray) -> None:
    """Leave x where it is, as PyTorch does."""


def is_shared(x: DeviceArray) -> bool:
    return True


def is_pinned(array: HostArray) -> bool:
    return array.nbytes > 0 and driver.get().is_pinned(array.ctypes.data)


def _fill(target: DeviceArray, value: Number) -> None:
    number = converted(value, target.dtype)
    if number == 0 and str(number) != "-0.0" and is_dense(target):
        num_bytes = target.size * target.dtype.itemsize
        stream = streams.current_handle(target.device_index)
        driver.get().fill_bytes(target.device_index, target.data_pointer, 0, num_bytes, stream)
    else:
        apply_into(target, kernels._copy_kernel, number, dtype=target.dtype)


def converted(value: Number, dtype: DType) -> Number:
    """A number in the Python type of dtype."""
    if dtype is dtypes.bool_:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)


def _copy_bytes(target: DeviceArray, source: DeviceArray) -> None:
    stream = streams.current_handle(target.device_index)
    num_bytes = target.size * target.dtype.itemsize
    driver.get().copy(target.device_index, target.data_pointer, source.data_pointer, num_bytes, stream)


def share_out(counts: Integers) -> tuple[Integers, Integers]:
    """For programs of which each item gets so many: whose each program is, and the how-manieth of that item's.

    >>> share_out(np.array([2, 0, 1]))
    (array([0, 0, 2]), array([0, 1, 0]))
    """
    which = np.repeat(np.arange(len(counts)), counts)
    return which, np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)


def _copy_all_bytes(targets: Integers, sources: Integers, num_bytes: Integers, device: int) -> None:
    """Addresses, all aligned, and how many bytes lie there: one launch, of whose programs each copies one chunk."""
    which, chunks = share_out(-(-num_bytes // _CHUNK))
    first = _CHUNK * chunks
    columns = targets[which] + first, sources[which] + first, np.minimum(num_bytes[which] - first, _CHUNK)
    told = table(np.stack(columns, axis=1), device)
    launch(kernels._copies_kernel, (len(which),), told, CHUNK=_CHUNK, BLOCK=_CHUNK // 4, num_warps=8)


def _copy_across(target: DeviceArray, source: DeviceArray) -> None:
    """Between devices: to the target's dtype there, over, to the target's strides here."""
    if capturing.underway:
        capturing.refuse_waiting(target.device_index, streams.current_handle(target.device_index))
        capturing.refuse_waiting(source.device_index, streams.current_handle(source.device_index))
    whole = is_dense(target)
    received = target if whole else array.empty(target.shape, target.dtype, target.device_index)
    staged = source
    if (source.dtype, source.shape, source.strides) != (target.dtype, target.shape, received.strides):
        staged = array.empty(target.shape, target.dtype, source.device_index, received.strides)
        copy_into(staged, source)
    streams.current(target.device_index).wait_stream(streams.current(source.device_index))
    _copy_bytes(received, staged)
    streams.current(target.device_index).synchronize()  # the source's pool knows nothing of the target's stream
    if not whole:
        copy_into(target, received)


def as_bits(x: DeviceArray) -> DeviceArray:
    """x as integers of its size: for ops that only move values, whatever they mean."""
    return DeviceArray(x.storage, x.shape, x.strides, x.offset, _BITS[x.dtype.itemsize])


def bits_of(x: Layout) -> Layout:
    """The layout of as_bits()."""
    return layout_of(x.shape, _BITS[x.dtype.itemsize], x.device_index, x.strides, x.aligned)
