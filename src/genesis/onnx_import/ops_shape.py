"""Shapes: asking for them, changing them, and tensors made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import genesis
from genesis import functional as F
from genesis.errors import ShapeError, describe
from genesis.onnx_import.registry import Array, Node, computes, integers, on_host, require_room
from genesis.tensor import Tensor

# --- asking -----------------------------------------------------------------------------------------------------------


@computes("Shape")
def shape_of(node: Node, x: Tensor) -> Array:
    return _part(node, x.shape)


@on_host("Shape")
def shape_of_host(node: Node, x: Array) -> Array:
    return _part(node, x.shape)


def _part(node: Node, shape: Sequence[int]) -> Array:
    start, end = node.integer("start", 0), node.integer("end", len(shape))
    return np.array(shape[slice(start, end)], np.int64)


@computes("Size")
def size_of(node: Node, x: Tensor) -> Array:
    return np.array(x.numel(), np.int64)


@on_host("Size")
def size_of_host(node: Node, x: Array) -> Array:
    return np.array(x.size, np.int64)


# --- changing ---------------------------------------------------------------------------------------------------------


def _wanted(node: Node, shape: Sequence[int], wanted: Sequence[int]) -> list[int]:
    if node.integer("allowzero", 0):
        return list(wanted)
    return [shape[i] if size == 0 and i < len(shape) else size for i, size in enumerate(wanted)]


@computes("Reshape", host=(1,))
def reshape(node: Node, x: Tensor, shape: Array) -> Tensor:
    return F.reshape(x, _wanted(node, x.shape, integers(shape)))


@on_host("Reshape")
def reshape_on_host(node: Node, x: Array, shape: Array) -> Array:
    return x.reshape(_wanted(node, x.shape, integers(shape)))


@computes("Flatten")
def flatten(node: Node, x: Tensor) -> Tensor:
    axis = node.integer("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return F.reshape(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _squeezed(node: Node, shape: Sequence[int], axes: Array | None) -> list[int]:
    found = node.integers("axes") if axes is None else integers(axes)
    if found is None:
        return [size for size in shape if size != 1]
    dims = {axis % max(len(shape), 1) for axis in found}
    if any(shape[dim] != 1 for dim in dims):
        raise ShapeError(describe("Squeeze", "axes", f"dimensions of size 1 of {tuple(shape)}", found))
    return [size for dim, size in enumerate(shape) if dim not in dims]


@computes("Squeeze", host=(1,))
def squeeze(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
    return F.reshape(x, _squeezed(node, x.shape, axes))


@on_host("Squeeze")
def squeeze_on_host(node: Node, x: Array, axes: Array | None = None) -> Array:
    return x.reshape(_squeezed(node, x.shape, axes))


def _unsqueezed(node: Node, shape: Sequence[int], axes: Array | None) -> list[int]:
    found = node.integers("axes") if axes is None else integers(axes)
    ndim = len(shape) + len(found or ())
    dims, sizes = {axis % ndim for axis in found or ()}, iter(shape)
    if len(dims) != len(found or ()):
        raise ShapeError(describe("Unsqueeze", "axes", "different dimensions", found))
    return [1 if dim in dims else next(sizes) for dim in range(ndim)]


@computes("Unsqueeze", host=(1,))
def unsqueeze(node: Node, x: Tensor, axes: Array | None = None) -> Tensor:
    return F.reshape(x, _unsqueezed(node, x.shape, axes))


@on_host("Unsqueeze")
def unsqueeze_on_host(node: Node, x: Array, axes: Array | None = None) -> Array:
    return x.reshape(_unsqueezed(node, x.shape, axes))


@computes("Transpose")
def transpose(node: Node, x: Tensor) -> Tensor:
    return F.permute(x, node.integers("perm", range(x.ndim)[::-1]) or [])


@on_host("Transpose")
def transpose_on_host(node: Node, x: Array) -> Array:
    return x.transpose(node.integers("perm", range(x.ndim)[::-1]))


@computes("Expand", host=(1,))
def expand(node: Node, x: Tensor, shape: Array) -> Tensor:
    wanted = np.broadcast_shapes(x.shape, tuple(integers(shape)))
    require_room(node, wanted)
    return F.expand(x, wanted)


@on_host("Expand")
def expand_on_host(node: Node, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(integers(shape))))


@computes("Tile", host=(1,))
def tile(node: Node, x: Tensor, repeats: Array) -> Tensor:
    times = integers(repeats)
    require_room(node, [size * n for size, n in zip(x.shape, times, strict=True)])
    return F.repeat(x, times)


# --- made of sizes ----------------------------------------------------------------------------------------------------


@on_host("ConstantOfShape")
def constant_of_shape(node: Node, shape: Array) -> Array | Tensor:
    value = node.attributes.get("value", np.zeros(1, np.float32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise node.refuse(f"value={value!r}")
    sizes = integers(shape)
    require_room(node, sizes)
    return np.broadcast_to(value.reshape(()), sizes)


computes("ConstantOfShape", host=(0,))(constant_of_shape)


@on_host("Range")
def range_of(node: Node, start: Array, limit: Array, delta: Array) -> Array:
    first, end, step = (each.item() for each in (start, limit, delta))
    require_room(node, [max(0, math.ceil((end - first) / step)) if step else 2**62])
    return np.arange(first, end, step, dtype=start.dtype)


computes("Range", host=(0, 1, 2))(range_of)


@computes("OneHot", host=(1, 2))
def one_hot(node: Node, index: Tensor, depth: Array, values: Array) -> Tensor:
    (count,), axis = integers(depth), node.integer("axis", -1)
    require_room(node, (*index.shape, count))
    places = genesis.tensor(np.arange(count), device=index.device)
    off, on = (genesis.tensor(each, device=index.device) for each in values)
    wrapped = genesis.where(F.lt(index, 0), index + count, index)
    found = genesis.where(F.eq(wrapped.unsqueeze(-1), places), on, off)
    return found if axis in (-1, index.ndim) else F.movedim(found, -1, axis)
