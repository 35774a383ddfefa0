"""Parts of tensors: joined, split, cut, gathered, written, padded, rearranged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

import genesis
from genesis import functional as F
from genesis.onnx_import.registry import Array, Node, computes, integers, on_host, require_room
from genesis.tensor import Tensor


@computes("Concat")
def concat(node: Node, *parts: Tensor) -> Tensor:
    return F.cat(parts, node.integer("axis", 0))


@on_host("Concat")
def concat_on_host(node: Node, *parts: Array) -> Array:
    return np.concatenate(parts, node.integer("axis", 0))


def _sections(node: Node, size: int, sections: Array | None) -> Sequence[int]:
    found = node.integers("split") if sections is None else integers(sections)
    if found is not None:
        return found
    count = node.integer("num_outputs", len(node.outputs))
    each = -(-size // count)
    return [max(min(each, size - each * index), 0) for index in range(count)]


@computes("Split", host=(1,))
def split(node: Node, x: Tensor, sections: Array | None = None) -> tuple[Tensor, ...]:
    axis = node.integer("axis", 0)
    return F.split(x, list(_sections(node, x.shape[axis], sections)), axis)


@on_host("Split")
def split_on_host(node: Node, x: Array, sections: Array | None = None) -> tuple[Array, ...]:
    axis = node.integer("axis", 0)
    return tuple(np.split(x, np.cumsum(_sections(node, x.shape[axis], sections))[:-1], axis))


# --- cutting ----------------------------------------------------------------------------------------------------------

_Cuts: TypeAlias = "dict[int, slice[int, int, int]]"


def _cuts(shape: Sequence[int], starts: Array, ends: Array, axes: Array | None, steps: Array | None) -> _Cuts:
    first, last = integers(starts), integers(ends)
    dims = list(range(len(first))) if axes is None else integers(axes)
    strides = [1] * len(first) if steps is None else integers(steps)
    return {
        dim % len(shape): slice(*slice(a, b, s).indices(shape[dim]))
        for dim, a, b, s in zip(dims, first, last, strides, strict=True)
    }


@computes("Slice", host=(1, 2, 3, 4))
def cut(
    node: Node, x: Tensor, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Tensor:
    for dim, span in _cuts(x.shape, starts, ends, axes, steps).items():
        index = [slice(None)] * dim
        places = range(span.start, span.stop, span.step)
        if span.step > 0:
            x = x[(*index, slice(span.start, max(span.stop, span.start), span.step))]
        elif not places:
            x = x[(*index, slice(0, 0))]
        else:
            x = x[(*index, slice(places[-1], places[0] + 1, -span.step))].flip(dim)
    return x


@on_host("Slice")
def cut_on_host(
    node: Node, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    for dim, span in _cuts(x.shape, starts, ends, axes, steps).items():
        x = np.take(x, range(span.start, span.stop, span.step), dim)
    return x


# --- by indices -------------------------------------------------------------------------------------------------------


@computes("Gather")
def gather(node: Node, x: Tensor, index: Tensor) -> Tensor:
    axis = node.integer("axis", 0) % max(x.ndim, 1)
    size = x.shape[axis]
    places = genesis.where(F.lt(index, 0), index + size, index).to(genesis.int64)
    if axis == 0 and x.ndim == 2:
        return F.embedding(places, x)
    found = F.index_select(x, axis, places.reshape(-1))
    return F.reshape(found, (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


@on_host("Gather")
def gather_on_host(node: Node, x: Array, index: Array) -> Array:
    return np.asarray(np.take(x, index.astype(np.int64), node.integer("axis", 0)))


@computes("GatherElements")
def gather_elements(node: Node, x: Tensor, index: Tensor) -> Tensor:
    axis = node.integer("axis", 0)
    return F.gather(x, axis, genesis.where(F.lt(index, 0), index + x.shape[axis], index))


@computes("ScatterElements")
def scatter_elements(node: Node, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    axis, reduction = node.integer("axis", 0), node.text("reduction", "none")
    places = genesis.where(F.lt(index, 0), index + x.shape[axis], index)
    if reduction not in ("none", "add"):
        raise node.refuse(f"reduction={reduction!r}")
    return (F.scatter if reduction == "none" else F.scatter_add)(x, axis, places, updates)


def _coordinates(index: Tensor) -> tuple[Tensor, ...]:
    return F.unbind(index, -1)


@computes("GatherND")
def gather_nd(node: Node, x: Tensor, index: Tensor) -> Tensor:
    if node.integer("batch_dims", 0):
        raise node.refuse("batch_dims")
    return x[_coordinates(index)]


@computes("ScatterND")
def scatter_nd(node: Node, x: Tensor, index: Tensor, updates: Tensor) -> Tensor:
    reduction = node.text("reduction", "none")
    if reduction not in ("none", "add"):
        raise node.refuse(f"reduction={reduction!r}")
    return F.index_put(x, _coordinates(index), updates, reduction == "add")


@on_host("ScatterND")
def scatter_nd_on_host(node: Node, x: Array, index: Array, updates: Array) -> Array:
    if node.text("reduction", "none") != "none":
        raise node.refuse("a reduction")
    written = np.array(x)
    written[tuple(np.moveaxis(index, -1, 0))] = updates
    return written


@computes("Trilu", host=(1,))
def triangle(node: Node, x: Tensor, k: Array | None = None) -> Tensor:
    return (F.triu if node.integer("upper", 1) else F.tril)(x, 0 if k is None else integers(k)[0])


# --- padding and rearranging ------------------------------------------------------------------------------------------

_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@computes("Pad", host=(1, 2, 3))
def pad(node: Node, x: Tensor, pads: Array, value: Array | None = None, axes: Array | None = None) -> Tensor:
    amounts, mode = integers(pads), node.text("mode", "constant")
    dims = [dim % max(x.ndim, 1) for dim in (range(x.ndim) if axes is None else integers(axes))]
    if mode not in _MODES or len(amounts) != 2 * len(dims):
        raise node.refuse(f"mode={mode!r} and pads={amounts}")
    sides = dict(zip(dims, zip(amounts[: len(dims)], amounts[len(dims) :], strict=True), strict=True))
    require_room(node, [size + sum(sides.get(dim, (0, 0))) for dim, size in enumerate(x.shape)])
    order = [amount for dim in reversed(range(x.ndim)) for amount in sides.get(dim, (0, 0))]
    while order and order[-2:] == [0, 0]:
        order = order[:-2]
    if not order:
        return x
    fill = value.item() if value is not None and value.size and mode == "constant" else None
    return F.pad(x, order, _MODES[mode], fill)


@computes("DepthToSpace")
def depth_to_space(node: Node, x: Tensor) -> Tensor:
    factor = node.integer("blocksize", 1)
    if node.text("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, factor)
    n, channels, height, width = x.shape
    planes = x.reshape(n, factor, factor, channels // factor**2, height, width)
    return planes.permute(0, 3, 4, 1, 5, 2).reshape(n, channels // factor**2, height * factor, width * factor)


@computes("SpaceToDepth")
def space_to_depth(node: Node, x: Tensor) -> Tensor:
    factor = node.integer("blocksize", 1)
    n, channels, height, width = x.shape
    planes = x.reshape(n, channels, height // factor, factor, width // factor, factor)
    return planes.permute(0, 3, 5, 1, 2, 4).reshape(n, channels * factor**2, height // factor, width // factor)
