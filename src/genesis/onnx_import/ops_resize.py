"""Resize: F.interpolate where it computes the same, else by positions and weights along each dimension."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

import genesis
from genesis import functional as F
from genesis.onnx_import.registry import Array, Node, computes, integers, require_room
from genesis.tensor import Tensor

Kind = type[np.float32] | type[np.float64]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.float32 | np.float64]]


class Resizing(NamedTuple):
    """The new size of each spatial dimension, how often larger it is, and where its samples come from."""

    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    are_scales_given: bool
    positions: str  # coordinate_transformation_mode


@computes("Resize", host=(1, 2, 3))
def resize(
    node: Node, x: Tensor, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None
) -> Tensor:
    asked = _asked(node, x, scales, sizes)
    require_room(node, (*x.shape[:2], *asked.sizes))
    if asked.sizes == tuple(x.shape[2:]):
        return x
    mode, spatial = node.text("mode", "nearest"), len(asked.sizes)
    known = _known_mode(node, mode, asked, spatial)
    if known is not None:
        name, corners = known
        if asked.are_scales_given and not corners:
            return F.interpolate(x, scale_factor=asked.scales, mode=name, align_corners=corners)
        return F.interpolate(x, asked.sizes, mode=name, align_corners=corners)
    for dim in range(spatial):
        x = _along(node, mode, x, dim + 2, asked)
    return x


def _asked(node: Node, x: Tensor, scales: Array | None, sizes: Array | None) -> Resizing:
    positions = node.text("coordinate_transformation_mode", "half_pixel")
    for name, plain in (("antialias", 0), ("exclude_outside", 0)):
        if node.integer(name, plain) != plain:
            raise node.refuse(f"{name}={node.integer(name, plain)}")
    if positions == "tf_crop_and_resize" or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise node.refuse(f"{positions} or keep_aspect_ratio_policy")
    axes = [axis % x.ndim for axis in node.integers("axes", range(x.ndim)) or []]
    if sizes is not None and sizes.size:
        wanted = dict(zip(axes, integers(sizes), strict=True))
        factors = {axis: size / max(x.shape[axis], 1) for axis, size in wanted.items()}
    elif scales is not None and scales.size:
        factors = {axis: float(number) for axis, number in zip(axes, scales.reshape(-1).tolist(), strict=True)}
        if not all(math.isfinite(factor) and 0 < factor < 2**20 for factor in factors.values()):
            raise node.refuse(f"scales={list(factors.values())}")
        wanted = {axis: math.floor(x.shape[axis] * factor) for axis, factor in factors.items()}
    else:
        raise node.refuse("neither scales nor sizes")
    if any(wanted.get(axis, x.shape[axis]) != x.shape[axis] for axis in (0, 1)) or x.ndim < 3:
        raise node.refuse("other sizes of batch or channels")
    spatial = range(2, x.ndim)
    given = not (sizes is not None and sizes.size)
    return Resizing(
        tuple([wanted.get(axis, x.shape[axis]) for axis in spatial]),
        tuple([factors.get(axis, 1.0) for axis in spatial]), given, positions,
    )  # fmt: skip


def _known_mode(node: Node, mode: str, asked: Resizing, spatial: int) -> tuple[str, bool | None] | None:
    """The mode of F.interpolate that computes the same, and its align_corners."""
    positions, rounding = asked.positions, node.text("nearest_mode", "round_prefer_floor")
    is_half = positions == "half_pixel" or (positions == "pytorch_half_pixel" and min(asked.sizes) > 1)
    if mode == "nearest" and spatial in (1, 2) and all(scale == int(scale) for scale in asked.scales):
        if positions == "asymmetric" and rounding == "floor":
            return "nearest", None
        return ("nearest-exact", None) if is_half and rounding == "round_prefer_ceil" else None
    if mode == "linear" and spatial in (1, 2, 3) and (is_half or positions == "align_corners"):
        return ("linear", "bilinear", "trilinear")[spatial - 1], positions == "align_corners"
    is_cubic = mode == "cubic" and spatial == 2 and node.floating("cubic_coeff_a", -0.75) == -0.75
    return ("bicubic", positions == "align_corners") if is_cubic and (is_half or positions == "align_corners") else None


def _along(node: Node, mode: str, x: Tensor, dim: int, asked: Resizing) -> Tensor:
    size, new, scale = x.shape[dim], asked.sizes[dim - 2], asked.scales[dim - 2]
    if new == size and scale == 1:
        return x
    if mode == "nearest":
        where = _positions(node, asked.positions, size, new, scale, np.float32)  # float32 decides ties, as elsewhere
        places = np.clip(_rounded(node, where), 0, size - 1).astype(np.int64)
        return F.index_select(x, dim, genesis.tensor(places, device=x.device))
    matrix = _weights(node, mode, _positions(node, asked.positions, size, new, scale, np.float64), size)
    moved = F.matmul(F.movedim(x, dim, -1), genesis.tensor(matrix.T.copy(), dtype=x.dtype, device=x.device))
    return F.movedim(moved, -1, dim)


def _positions(node: Node, kind: str, size: int, new: int, scale: float, dtype: Kind) -> Numbers:
    """The place of each new sample in the old dimension."""
    index: Numbers = np.arange(new, dtype=dtype)
    if kind == "asymmetric":
        return index / scale
    if kind == "align_corners":
        return index * (size - 1) / (new - 1) if new > 1 else index
    if kind == "pytorch_half_pixel" and new == 1:
        return index
    if kind == "half_pixel_symmetric":
        centre = size / 2 * (1 - new / (scale * size))
        return centre + (index + 0.5) / scale - 0.5
    if kind in ("half_pixel", "pytorch_half_pixel"):
        return (index + 0.5) / scale - 0.5
    raise node.refuse(f"coordinate_transformation_mode={kind!r}")


def _rounded(node: Node, where: Numbers) -> Numbers:
    kind = node.text("nearest_mode", "round_prefer_floor")
    if kind == "round_prefer_floor":
        return np.ceil(where - 0.5)
    if kind == "round_prefer_ceil":
        return np.floor(where + 0.5)
    if kind in ("floor", "ceil"):
        return np.asarray((np.floor if kind == "floor" else np.ceil)(where))
    raise node.refuse(f"nearest_mode={kind!r}")


def _weights(node: Node, mode: str, where: Numbers, size: int) -> Numbers:
    """(new, old): what each old sample gives to each new one; the outermost stand for those beyond."""
    below = np.floor(where)
    part = where - below
    if mode == "linear":
        taps = {0: 1 - part, 1: part}
    elif mode == "cubic":
        a = node.floating("cubic_coeff_a", -0.75)
        near = [((a + 2) * t - (a + 3)) * t * t + 1 for t in (part, 1 - part)]
        far = [((a * t - 5 * a) * t + 8 * a) * t - 4 * a for t in (1 + part, 2 - part)]
        taps = {-1: far[0], 0: near[0], 1: near[1], 2: far[1]}
    else:
        raise node.refuse(f"mode={mode!r}")
    matrix = np.zeros((len(where), size))
    for offset, weight in taps.items():
        places = np.clip(below + offset, 0, size - 1).astype(np.int64)
        np.add.at(matrix, (np.arange(len(where)), places), weight)
    return matrix
