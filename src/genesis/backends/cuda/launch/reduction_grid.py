"""How a reduction walks through memory: decided here once per combination of shape, strides and reduced dimensions.

The kept elements form rows of a tile, the reduced ones its columns, whichever of them lies contiguous. Reduced
dimensions that do not merge into one are walked by the loop over tiles (outer), so that only one is left inside a tile
(inner). Where the kept elements alone would not fill the device, the tiles of one row are split among programs; each
writes a partial result, and a second launch reduces those: no atomics, the same order of additions every time.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.strides import collapse
from genesis.backends.cuda.runtime.array import DeviceArray, Layout
from genesis.shapes import Shape, strides_in_order

_TILE = 4096  # elements of a tile: 32 in each thread of 4 warps
_KEPT = 128  # of those, kept ones that lie side by side: 512 bytes of float32
_FEW_KEPT = 32  # the same where too few are reduced for a second launch to pay: more programs instead
_LEAST_TILES = 2  # per program, for a split to pay
_WAVES = 8  # programs per multiprocessor


class Walk(NamedTuple):
    """The launch of a reduction, but for its arrays."""

    num_kept: int
    num_reduced: int
    grid: tuple[int, int]  # blocks of kept elements, splits
    args: tuple[tuple[int, ...], ...]  # counts, kept, outer, inner: as the kernels in ops/reduction/ take them
    constants: dict[str, int]
    kept_strides: Shape  # of a dense result, per dimension of the operand, in the operand's order of memory

    @property
    def num_splits(self) -> int:
        return self.grid[1]


def walk(
    x: DeviceArray | Layout, dims: Shape, one_split: bool = False, tile: int = _TILE, least_tiles: int = _LEAST_TILES
) -> Walk:
    """The walk that reduces dims of x.

    Args:
        one_split: no partial results.
        tile: elements of a tile; fewer for kernels that keep much per element.
        least_tiles: per program; more where partial results take longer to merge.
    """
    return _walk(x.shape, x.strides, dims, x.device_index, one_split, tile, least_tiles)


def programs(device: int) -> int:
    """Enough to fill the device."""
    return _WAVES * driver.get().properties(device).multiprocessor_count


def power_of_2(size: int) -> int:
    """The smallest that is not below size.

    >>> power_of_2(1), power_of_2(5), power_of_2(8)
    (1, 8, 8)
    """
    return 1 << max(size - 1, 0).bit_length()


@functools.lru_cache(maxsize=4096)
def _walk(shape: Shape, strides: Shape, dims: Shape, device: int, one_split: bool, tile: int, least_tiles: int) -> Walk:
    kept = [i for i in range(len(shape)) if i not in dims]
    order = sorted(range(len(shape)), key=lambda i: (-strides[i], i))
    kept_shape, (kept_steps,) = _merge(shape, strides, kept)
    shape_in, (steps_in,) = _merge(shape, strides, list(dims))
    num_kept, num_reduced = math.prod(kept_shape), math.prod(shape_in)
    if num_kept == 1:
        kept_steps = (0,) * len(kept_shape)  # a row offset that divides by 16, as vector loads need it to
    cut = 0 if len(shape_in) > 1 and shape_in[-1] < 16 else len(shape_in) - 1
    outer, outer_steps, inner, inner_steps = shape_in[:cut], steps_in[:cut], shape_in[cut:], steps_in[cut:]
    inner_size = math.prod(inner)
    if inner_steps[-1] > kept_steps[-1] > 0 and num_kept > 1:
        block_kept = min(power_of_2(num_kept), _KEPT)
        if -(-num_kept // _KEPT) < programs(device) // 4 and num_reduced * _FEW_KEPT < 2 * least_tiles * tile:
            block_kept = min(block_kept, _FEW_KEPT)
        block_inner = min(power_of_2(inner_size), tile // block_kept)
    else:
        block_inner = min(power_of_2(inner_size), tile)
        block_kept = min(power_of_2(num_kept), tile // block_inner)
    num_inner_blocks = -(-inner_size // block_inner)
    num_tiles = math.prod(outer) * num_inner_blocks
    kept_blocks = -(-num_kept // block_kept)
    num_splits = 1
    if not one_split and num_tiles >= 2 * least_tiles and 0 < kept_blocks < programs(device) // 4:
        num_splits = min(-(-programs(device) // kept_blocks), num_tiles // least_tiles)
    tiles_per_split = -(-num_tiles // num_splits)
    num_splits = max(-(-num_tiles // max(tiles_per_split, 1)), 1)
    reach = sum((size - 1) * abs(step) for size, step in zip(shape, strides, strict=True))
    return Walk(
        num_kept,
        num_reduced,
        (kept_blocks, num_splits),
        (
            (num_kept, num_tiles, tiles_per_split, num_inner_blocks, inner_size),
            _inner_first(kept_shape, kept_steps),
            _inner_first(outer, outer_steps) or (1, 0),  # a kernel takes no empty tuple
            _inner_first(inner, inner_steps),
        ),
        {
            "KEPT_RANK": len(kept_shape),
            "OUTER_RANK": len(outer),
            "INNER_RANK": len(inner),
            "WIDE": max(reach, num_kept * num_splits, inner_size) + tile >= 2**31,
            "BLOCK_KEPT": block_kept,
            "BLOCK_INNER": block_inner,
        },
        strides_in_order([1 if i in dims else size for i, size in enumerate(shape)], order),
    )


driver.forget_on_switch(_walk.cache_clear)


def _merge(shape: Shape, strides: Shape, dims: list[int]) -> tuple[Shape, list[Shape]]:
    return collapse(tuple(shape[i] for i in dims), [tuple(strides[i] for i in dims)])


def _inner_first(shape: Shape, steps: Shape) -> tuple[int, ...]:
    return (*shape[::-1], *steps[::-1])
