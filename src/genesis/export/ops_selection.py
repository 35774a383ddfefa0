"""Translations: selection by indices, order, and what is made of nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genesis import dtypes
from genesis.dtypes import DType, Number
from genesis.export.graph import Array, Emitter, Operand, numpy_dtype
from genesis.export.registry import translates
from genesis.export.sizes import Dim, Shape

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("IndexSelect", "index_select")
def index_select(e: Emitter, x: Operand, dim: int, index: Operand) -> ir.Value:
    places = e.op("Reshape", e.cast(index, dtypes.int64), e.ints([-1]))
    if not x.ndim:
        return e.op("Squeeze", e.op("Gather", e.op("Unsqueeze", x, e.ints([0])), places, axis=0), e.ints([0]))
    return e.op("Gather", x, places, axis=dim)


@translates("IndexAdd")
def index_add(e: Emitter, x: Operand, source: Operand, dim: int, index: Operand, alpha: Number) -> ir.Value:
    added = source.value if alpha == 1 else e.op("Mul", source, e.number(alpha, source.dtype))
    if not x.ndim:
        return e.op("Squeeze", index_add(e, _vector(e, x), _vector(e, source), 0, index, alpha), e.ints([0]))
    order = [dim, *[axis for axis in range(x.ndim) if axis != dim]]
    first = e.op("Transpose", x, perm=order)
    places = e.op("Reshape", e.cast(index, dtypes.int64), e.ints([-1, 1]))
    summed = e.op("ScatterND", first, places, e.op("Transpose", added, perm=order), reduction="add")
    return e.op("Transpose", summed, perm=sorted(range(x.ndim), key=order.__getitem__))


def _vector(e: Emitter, x: Operand) -> Operand:
    """x with a dimension, if it has none."""
    return x if x.ndim else x._replace(value=e.op("Unsqueeze", x, e.ints([0])), shape=(1,))


translates("index_add")(lambda e, x, dim, index, source: index_add(e, x, source, dim, index, 1))


@translates("Gather", "gather")
def gather(e: Emitter, x: Operand, dim: int, index: Operand) -> ir.Value:
    if not x.ndim:
        return e.op("Expand", x, e.op("Shape", index))
    if not index.ndim:
        return e.op("Squeeze", e.op("Gather", x, index, axis=0))
    return e.op("GatherElements", x, e.cast(index, dtypes.int64), axis=dim)


@translates("Scatter")
def scatter(e: Emitter, x: Operand, source: Operand | Number, dim: int, index: Operand) -> ir.Value:
    return _scattered(e, x, source, dim, index, "none")


@translates("ScatterAdd")
def scatter_add(e: Emitter, x: Operand, source: Operand, dim: int, index: Operand) -> ir.Value:
    return _scattered(e, x, source, dim, index, "add")


translates("scatter")(lambda e, x, dim, index, source: _scattered(e, x, source, dim, index, "none"))
translates("scatter_add")(lambda e, x, dim, index, source: _scattered(e, x, source, dim, index, "add"))


def _scattered(e: Emitter, x: Operand, source: Operand | Number, dim: int, index: Operand, reduction: str) -> ir.Value:
    if not x.ndim or not index.ndim:
        sources = _vector(e, source) if isinstance(source, Operand) else source
        y = _scattered(e, _vector(e, x), sources, 0, _vector(e, index), reduction)
        return y if x.ndim else e.op("Squeeze", y, e.ints([0]))
    updates = e.cast(source, x.dtype)
    if not isinstance(source, Operand):
        updates = e.op("Expand", updates, e.op("Shape", index))
    elif source.shape != index.shape:  # as much of it as index covers
        starts, axes = e.ints([0] * index.ndim), e.ints(range(index.ndim))
        updates = e.op("Slice", updates, starts, e.op("Shape", index), axes)
    return e.op("ScatterElements", x, index, updates, axis=dim, reduction=reduction)


@translates("NonZero", "nonzero")
def nonzero(e: Emitter, x: Operand) -> ir.Value:
    if x.ndim:
        return e.op("Transpose", e.op("NonZero", x), perm=[1, 0])
    found = e.op("Transpose", e.op("NonZero", _vector(e, x)), perm=[1, 0])
    return e.op("Slice", found, e.ints([0]), e.ints([0]), e.ints([1]))  # as many rows, of no places


# --- order ------------------------------------------------------------------------------------------------------------


@translates("Sort", "sort")
def sort(e: Emitter, x: Operand, dim: int, descending: bool, stable: bool) -> tuple[ir.Value, ...]:
    return topk(e, x, x.shape[dim] if x.ndim else 1, dim, descending)


@translates("TopK", "topk")
def topk(e: Emitter, x: Operand, k: Dim, dim: int, largest: bool) -> tuple[ir.Value, ...]:
    if not x.ndim:
        return e.op("Identity", x), e.number(0, dtypes.int64)
    return e.ops("TopK", 2, x, e.size(k), axis=dim, largest=int(largest), sorted=1)


# --- made of nothing --------------------------------------------------------------------------------------------------


@translates("full")
def full(e: Emitter, shape: Shape, value: Number, dtype: DType, device_index: int = 0) -> ir.Value:
    if not shape:
        return e.cast(value, dtype)
    return e.op("Expand", e.cast(value, dtype), e.sizes(shape))


@translates("empty")
def empty(
    e: Emitter, shape: Shape, strides: Shape | None = None, dtype: DType = dtypes.float32, device_index: int = 0
) -> ir.Value:
    return full(e, shape, 0, dtype)


@translates("arange")
def arange(e: Emitter, start: Number, step: Number, length: Dim, dtype: DType, device_index: int = 0) -> ir.Value:
    if isinstance(length, int):
        return e.array((start + step * np.arange(length)).astype(numpy_dtype(dtype)))
    count = e.op("Squeeze", e.size(length), e.ints([0]))
    counted = e.op("Range", e.number(0, dtypes.int64), count, e.number(1, dtypes.int64))
    scaled = e.op("Mul", e.convert(counted, dtype), e.cast(step, dtype))
    return e.op("Add", scaled, e.cast(start, dtype))


@translates("from_cpu")
def from_cpu(e: Emitter, array: Array, dtype: DType | None = None, *options: object) -> ir.Value:
    if e.dtype is dtypes.bfloat16:
        return e.array(array.view(numpy_dtype(e.dtype)))
    return e.array(np.array(array).astype(numpy_dtype(e.dtype)))
