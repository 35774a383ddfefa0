"""Selection and arrangement: joining, padding, triangles, gather and scatter, indexing, the places of what is not zero.

Values that only move do so as bits, so one kernel serves all dtypes of a size. Sums over repeated indices are made with
atomics, 16-bit floats in float32: exact for integers, but the order of float additions changes from run to run.
An index out of range raises IndexError, later than the call on a GPU: see faults.py.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.strides import collapse, is_dense
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.launch.triton import TRITON_NAMES, launch
from genesis.backends.cuda.ops.indexing import kernels
from genesis.backends.cuda.ops.indexing.walk import Way, walk
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import Number, apply
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.ops.storage.launch import as_bits
from genesis.backends.cuda.runtime import array, capturing, faults, streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.shapes import (
    Shape,
    broadcast,
    broadcast_strides,
    channels_innermost,
    contiguous_strides,
    equivalent,
    is_contiguous,
    strides_in_order,
)

Pair = tuple[int, int]
Indices = tuple[DeviceArray | None, ...]
_BLOCK = 1024
_MOST_JOINED, _LONGEST_ROW = 8, 8192  # arrays of one launch, and elements that a program copies one block after another


# --- joining, turning, triangles ------------------------------------------------------------------------------------
def cat(arrays: Sequence[DeviceArray], dim: int) -> DeviceArray:
    rank = max(len(x.shape) for x in arrays)
    arrays = [x for x in arrays if len(x.shape) == rank]  # PyTorch lets empty vectors join anything
    first = arrays[0]
    length = sum(x.shape[dim] for x in arrays)
    out = _like(first, (*first.shape[:dim], length, *first.shape[dim + 1 :]))
    if _cat_rows(out, [x for x in arrays if x.size], dim):
        return out
    start = 0
    for x in arrays:
        if x.size:
            storage.copy_into(_narrow(out, dim, start, x.shape[dim]), x)
        start += x.shape[dim]
    return out


def _cat_rows(out: DeviceArray, arrays: Sequence[DeviceArray], dim: int) -> bool:
    """In one launch, where all are matrices of not too long rows that come side by side; False: they are not."""
    if not 2 <= len(arrays) <= _MOST_JOINED or out.size >= 2**31:
        return False
    order = sorted(range(len(out.shape)), key=lambda i: (-out.strides[i], i))
    place = order.index(dim)
    for x in arrays:
        if x.dtype is not out.dtype or not equivalent(x.shape, x.strides, strides_in_order(x.shape, order)):
            return False
    out_width, *widths = (math.prod([x.shape[i] for i in order[place:]]) for x in (out, *arrays))
    if max(widths) > _LONGEST_ROW:
        return False
    num_rows = out.size // out_width
    block_n = min(power_of_2(max(widths)), _BLOCK)
    block_m = 2 * _BLOCK // block_n
    absent = _MOST_JOINED - len(arrays)
    starts = [0, *itertools.accumulate(widths[:-1])]
    launch(
        kernels._cat_kernel, (-(-num_rows // block_m), len(arrays)), as_bits(out), *map(as_bits, arrays),
        *[None] * absent, num_rows, out_width, (*widths, *[0] * absent), (*starts, *[0] * absent),
        BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return True


def flip(x: DeviceArray, dims: Shape) -> DeviceArray:
    out = _like(x, x.shape)
    if x.size:
        ends = sum((x.shape[dim] - 1) * x.strides[dim] for dim in dims)
        backward = tuple(-stride if dim in dims else stride for dim, stride in enumerate(x.strides))
        storage.copy_into(out, x.view(x.shape, backward, x.offset + ends))
    return out


def tril(x: DeviceArray, diagonal: int) -> DeviceArray:
    return _triangle(x, diagonal, False)


def triu(x: DeviceArray, diagonal: int) -> DeviceArray:
    return _triangle(x, diagonal, True)


def _triangle(x: DeviceArray, diagonal: int, upper: bool) -> DeviceArray:
    x = _contiguous(x)
    out = array.empty(x.shape, x.dtype, x.device_index)
    constants = {"UPPER": upper, "BLOCK": _BLOCK}
    grid = (-(-x.size // _BLOCK),)
    launch(kernels._triangle_kernel, grid, as_bits(out), as_bits(x), x.size, *x.shape[-2:], diagonal, **constants)
    return out


# --- padding --------------------------------------------------------------------------------------------------------
def pad(x: DeviceArray, pads: tuple[Pair, ...], mode: str, value: Number) -> DeviceArray:
    if mode == "constant":
        return _pad_constant(x, pads, value)
    for dim, (before, after) in enumerate(pads):
        if before or after:
            x = index_select(x, dim, _source_index(x.shape[dim], before, after, mode, x))
    return x


def pad_backward(grad: DeviceArray, shape: Shape, pads: tuple[Pair, ...], mode: str) -> DeviceArray:
    if mode == "constant":
        return _pad_constant(grad, tuple((-before, -after) for before, after in pads), 0)
    for dim, (before, after) in reversed(tuple(enumerate(pads))):
        if before or after:
            index = _source_index(shape[dim], before, after, mode, grad)
            smaller = (*grad.shape[:dim], shape[dim], *grad.shape[dim + 1 :])
            grad = index_add(storage.full(smaller, 0, grad.dtype, grad.device_index), dim, index, grad)
    return grad


def _pad_constant(x: DeviceArray, pads: tuple[Pair, ...], value: Number) -> DeviceArray:
    out = _like(x, tuple(before + size + after for size, (before, after) in zip(x.shape, pads, strict=True)))
    storage.copy_into(out, value)
    inner, source = out, x
    for dim, (before, after) in enumerate(pads):
        length = x.shape[dim] + min(before, 0) + min(after, 0)
        inner = _narrow(inner, dim, max(before, 0), length)
        source = _narrow(source, dim, max(-before, 0), length)
    if source.size:
        storage.copy_into(inner, source)
    return out


def _source_index(size: int, before: int, after: int, mode: str, x: DeviceArray) -> DeviceArray:
    """For each position of the padded dimension, the position it repeats; on the device of x."""
    device = x.device_index
    return capturing.keep(device, _cached_index(size, before, after, mode, device, streams.current_handle(device)))


@functools.lru_cache(maxsize=256)
def _cached_index(size: int, before: int, after: int, mode: str, device: int, stream: int) -> DeviceArray:
    index = np.arange(-before, size + after, dtype=np.int64)
    if mode == "replicate":
        index = index.clip(0, size - 1)
    elif mode == "circular":  # what is left after cropping goes round
        start = max(-before, 0)
        index = start + (index - start) % (size - start - max(-after, 0))
    else:  # reflect, without the edge itself
        index = np.abs(index)
        index = np.where(index >= size, 2 * (size - 1) - index, index)
    return storage.table(index, device)


driver.forget_on_switch(_cached_index.cache_clear)


# --- along one dimension --------------------------------------------------------------------------------------------
def index_select(x: DeviceArray, dim: int, index: DeviceArray) -> DeviceArray:
    table = _at_least_1d(x)
    out = _like(table, (*table.shape[:dim], index.shape[0], *table.shape[dim + 1 :]))
    _indexed("gather", "index_select", table, out, index, _along(out.shape, dim, index.strides[0]), dim)
    return out if x.shape else out.view((), (), 0)


def index_select_each(
    arrays: Sequence[DeviceArray], dims: Sequence[int], index: DeviceArray, factors: Sequence[DeviceArray | None]
) -> tuple[DeviceArray, ...]:
    """One launch, whose programs each make one stretch of one result. In memory an array is outer × size × inner."""
    index, (length,) = _contiguous(index), index.shape
    kept = [x if is_dense(x) else storage.copy(x, _like(x, x.shape).strides) for x in arrays]
    scales = [None if factor is None else _contiguous(factor) for factor in factors]  # held until the launch
    made: list[DeviceArray] = []
    rows: list[tuple[int, ...]] = []
    stream = streams.current_handle(index.device_index)
    for x, dim, scale in zip(kept, dims, scales, strict=True):
        layout, inner = _selected(x.layout, dim, length)
        out = layout.new(stream)
        scale_pointer = 0 if scale is None else scale.data_pointer
        rows.append((out.data_pointer, x.data_pointer, scale_pointer, layout.size, x.shape[dim], inner))
        made.append(out)
    if not made:
        return ()
    table = np.array(rows)
    which, stretches = storage.share_out(-(-table[:, 3] // _BLOCK))
    told = storage.table(np.concatenate([table.ravel(), which, stretches]), index.device_index)
    dtype = kept[0].dtype
    launch(
        kernels._index_select_each_kernel, (len(which),), told, index, len(rows), length, len(which),
        DTYPE=tl.str_to_ty(TRITON_NAMES[dtype], None), COMPUTE=COMPUTE[dtype], BLOCK=_BLOCK,
    )  # fmt: skip
    return tuple(made)


@functools.lru_cache(maxsize=4096)
def _selected(x: Layout, dim: int, length: int) -> tuple[Layout, int]:
    """index_select's result in x's order of memory, and how many elements there are for each one of dim."""
    order = sorted(range(len(x.shape)), key=lambda place: -x.strides[place])
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    inner = math.prod([x.shape[place] for place in order[order.index(dim) + 1 :]])
    return layout_of(shape, x.dtype, x.device_index, strides_in_order(shape, order)), inner


def index_add(x: DeviceArray, dim: int, index: DeviceArray, source: DeviceArray) -> DeviceArray:
    index = _at_least_1d(index)
    sums, source = _sums(x), _at_least_1d(source)
    steps = _along(source.shape, dim, index.strides[0])
    _indexed("scatter_add", "index_add", _at_least_1d(sums), source, index, steps, dim)
    return _in_dtype(sums, x.dtype)


def gather(x: DeviceArray, dim: int, index: DeviceArray) -> DeviceArray:
    out = array.empty(index.shape, x.dtype, x.device_index)
    index = _at_least_1d(index)
    _indexed("gather", "gather", _at_least_1d(x), _at_least_1d(out), index, index.strides, dim)
    return out


def scatter(x: DeviceArray, dim: int, index: DeviceArray, source: DeviceArray | Number) -> DeviceArray:
    out, index = storage.copy(x, _like(x, x.shape).strides), _at_least_1d(index)
    given = _of_dtype(source, x.dtype, x.device_index)
    given = _first_of(_at_least_1d(given), index.shape) if given.shape else _expanded(given, index.shape)
    _indexed("scatter", "scatter", _at_least_1d(out), given, index, index.strides, dim)
    return out


def one_hot(index: DeviceArray, num_classes: int) -> DeviceArray:
    out, rank = storage.full((*index.shape, num_classes), 0, dtypes.int64, index.device_index), len(index.shape)
    index = index.view((*index.shape, 1), (*index.strides, 1), index.offset)
    one = storage.full((), 1, dtypes.int64, index.device_index)
    _indexed("scatter", "one_hot", out, _expanded(one, index.shape), index, index.strides, rank)
    return out


def scatter_add(x: DeviceArray, dim: int, index: DeviceArray, source: DeviceArray) -> DeviceArray:
    sums, index = _sums(x), _at_least_1d(index)
    source = _first_of(_at_least_1d(source), index.shape)
    _indexed("scatter_add", "scatter_add", _at_least_1d(sums), source, index, index.strides, dim)
    return _in_dtype(sums, x.dtype)


def refuse(wrong: DeviceArray, message: str) -> None:
    if wrong.size:  # 1 is no index into an array of one element
        index = storage.cast(reduction.any(wrong, tuple(range(len(wrong.shape)))), dtypes.int64)
        one = array.empty((1,), dtypes.uint8, wrong.device_index)
        _indexed("gather", message, one, one, _at_least_1d(index), (1,), 0)


def _along(shape: Shape, dim: int, step: int) -> Shape:
    """The steps of a vector that lies along dim."""
    return tuple(step if i == dim else 0 for i in range(len(shape)))


def _indexed(
    action: str, op: str, table: DeviceArray, other: DeviceArray, index: DeviceArray, index_steps: Shape, dim: int
) -> None:
    """Go through other's shape; at each element, index says where along dim of the table."""
    steps = tuple([0 if i == dim else stride for i, stride in enumerate(table.strides)])
    walk(table, other, index, action, op, Way(steps, index_steps, table.strides[dim], table.shape[dim], False))


# --- NumPy's x[i, j] --------------------------------------------------------------------------------------------------
def take(x: DeviceArray, indices: Indices) -> DeviceArray:
    shape, positions, way = _positions("index", x, indices)
    out = array.empty(shape, x.dtype, x.device_index)
    walk(x, out, positions, "gather", "index", way)
    return out


def put(x: DeviceArray, indices: Indices, values: DeviceArray | Number, accumulate: bool) -> None:
    shape, positions, way = _positions("index_put", x, indices)
    source = _expanded(_of_dtype(values, x.dtype, x.device_index), shape)
    if not accumulate:
        return walk(x, source, positions, "scatter", "index_put", way)
    if _SUM_DTYPES.get(x.dtype, x.dtype) is x.dtype:
        return walk(x, source, positions, "scatter_add", "index_put", way)
    sums = _sums(x, x.strides if is_dense(x) else None)
    if sums.strides != x.strides:  # the positions count in x's strides
        shape, positions, way = _positions("index_put", sums, indices)
    walk(sums, source, positions, "scatter_add", "index_put", way)
    storage.copy_into(x, sums)


def _positions(op: str, x: DeviceArray, indices: Indices) -> tuple[Shape, DeviceArray, Way]:
    """The shape of x[indices], an array of positions, and how they lead through x."""
    indexed = [i for i, index in enumerate(indices) if index is not None]
    arrays = [index for index in indices if index is not None]
    common = broadcast(op, *(index.shape for index in arrays))
    kept = [i for i in range(len(x.shape)) if i not in indexed]
    together = indexed[-1] - indexed[0] == len(indexed) - 1
    lead = [i for i in kept if together and i < indexed[0]]  # dimensions of x before those of the indices
    rest = kept[len(lead) :]
    shape = (*(x.shape[i] for i in lead), *common, *(x.shape[i] for i in rest))
    steps = (*(x.strides[i] for i in lead), *(0 for _ in common), *(x.strides[i] for i in rest))
    if len(arrays) == 1:
        positions, step, size = arrays[0], x.strides[indexed[0]], x.shape[indexed[0]]
    else:
        positions, step, size = array.empty(common, dtypes.int64, x.device_index), 1, None
        for i, index in zip(indexed, arrays, strict=True):
            _add_positions(op, positions, index, x.strides[i], x.shape[i], i == indexed[0])
    index_steps = (*(0 for _ in lead), *positions.strides, *(0 for _ in rest))
    return shape, positions, Way(steps, index_steps, step, size, True)


def _add_positions(op: str, positions: DeviceArray, index: DeviceArray, step: int, size: int, first: bool) -> None:
    walk = broadcast_strides(op, index.shape, index.strides, positions.shape)
    shape, (_, steps) = collapse(positions.shape, [positions.strides, walk])
    device = positions.device_index
    launch(
        kernels._add_positions_kernel, (-(-positions.size // _BLOCK),), positions, index, faults.report(device),
        positions.size, shape[::-1], (0, *steps[::-1]), step, size, faults.code_of(op),
        RANK=len(shape), FIRST=first, BLOCK=_BLOCK,
    )  # fmt: skip
    faults.check(device)


# --- masks ------------------------------------------------------------------------------------------------------------
def masked_fill(x: DeviceArray, mask: DeviceArray, value: Number) -> DeviceArray:
    return storage.viewable(apply(kernels._masked_fill_kernel, x, mask, storage.converted(value, x.dtype)))


def nonzero(x: DeviceArray) -> DeviceArray:
    x, device, compute = _contiguous(x), x.device_index, COMPUTE[x.dtype]
    num_blocks = -(-x.size // _BLOCK)
    counts = array.empty((num_blocks,), dtypes.int64, device)
    sums = array.empty((num_blocks + 1,), dtypes.int64, device)
    launch(kernels._count_kernel, (num_blocks,), counts, x, x.size, COMPUTE=compute, BLOCK=_BLOCK)
    launch(kernels._running_sum_kernel, (1,), sums, counts, num_blocks, BLOCK=_BLOCK)
    total = int(storage.to_cpu(sums.view((), (), num_blocks)))
    out = array.empty((total, len(x.shape)), dtypes.int64, device)
    if out.size:
        shape = x.shape[::-1]
        constants = {"RANK": len(shape), "COMPUTE": compute, "BLOCK": _BLOCK}
        launch(kernels._nonzero_kernel, (num_blocks,), out, x, sums, x.size, shape, **constants)
    return out


# --- what they share --------------------------------------------------------------------------------------------------
_SUM_DTYPES = {  # what repeated indices add up in; others: themselves
    dtypes.float16: dtypes.float32,
    dtypes.bfloat16: dtypes.float32,
    dtypes.int16: dtypes.int32,
    dtypes.int8: dtypes.int32,
    dtypes.uint8: dtypes.int32,
    dtypes.bool_: dtypes.int32,
}


def _sums(x: DeviceArray, strides: Shape | None = None) -> DeviceArray:
    """A copy of x to add to."""
    out = array.empty(x.shape, _SUM_DTYPES.get(x.dtype, x.dtype), x.device_index, strides)
    storage.copy_into(out, x)
    return out


def _in_dtype(x: DeviceArray, dtype: DType) -> DeviceArray:
    return x if x.dtype is dtype else storage.cast(x, dtype)


def _of_dtype(source: DeviceArray | Number, dtype: DType, device: int) -> DeviceArray:
    if isinstance(source, DeviceArray):
        return _in_dtype(source, dtype)
    return storage.full((), source, dtype, device)


def _like(x: DeviceArray, shape: Shape) -> DeviceArray:
    """A new array of this shape: with the channels last in memory where x has them there, else row-major."""
    if not channels_innermost(x.shape, x.strides):
        return array.empty(shape, x.dtype, x.device_index)
    order = sorted(range(len(shape)), key=lambda dim: -x.strides[dim])
    strides = strides_in_order(shape, order)
    return array.empty(shape, x.dtype, x.device_index, strides if channels_innermost(shape, strides) else None)


def _contiguous(x: DeviceArray) -> DeviceArray:
    strides = contiguous_strides(x.shape)
    return x if is_contiguous(x.shape, x.strides) else storage.copy(x, strides)


def _at_least_1d(x: DeviceArray) -> DeviceArray:
    return x if x.shape else x.view((1,), (1,), x.offset)


def _expanded(x: DeviceArray, shape: Shape) -> DeviceArray:
    return x.view(shape, broadcast_strides("expand", x.shape, x.strides, shape), x.offset)


def _first_of(x: DeviceArray, shape: Shape) -> DeviceArray:
    """The first elements of x in each dimension."""
    return x.view(shape, x.strides, x.offset)


def _narrow(x: DeviceArray, dim: int, start: int, length: int) -> DeviceArray:
    length = max(length, 0)
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return x.view(shape, x.strides, x.offset + (start * x.strides[dim] if length else 0))
