"""Launch arguments of attention's kernels: tiles, and strides over the merged leading dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, NotRequired, TypedDict

from genesis.backends.cuda import driver
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.strides import collapse
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.runtime.array import Layout
from genesis.shapes import Shape, contiguous_strides

if TYPE_CHECKING:
    import triton.language as tl

# By bytes per element and padded head size: (rows that a program keeps, rows it walks over, num_warps, num_stages).
# "tma" stands for 16 bits where the copy engine of sm_90 can fetch the blocks. Measured on an H200: two or three small
# programs per multiprocessor hide each other's softmax; only heads of 128 in the backward need all of it for one.
Tiles = dict[int | str, dict[int, tuple[int, int, int, int]]]
FORWARD: Tiles = {
    "tma": {64: (64, 128, 4, 2), 128: (128, 64, 4, 2)},
    2: {64: (128, 64, 4, 4), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
    4: {64: (64, 64, 4, 1), 128: (64, 64, 4, 1), 256: (16, 16, 4, 1)},
    8: {64: (32, 32, 4, 2), 128: (32, 16, 4, 2), 256: (16, 16, 4, 1)},
}
KEY_VALUE_GRAD: Tiles = {
    "tma": {64: (64, 64, 4, 3), 128: (128, 64, 8, 3)},
    2: {64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (32, 32, 4, 1)},
    4: {64: (64, 32, 4, 1), 128: (64, 32, 4, 1), 256: (16, 16, 8, 1)},
    8: {64: (32, 32, 4, 1), 128: (16, 16, 4, 1), 256: (16, 16, 4, 1)},
}
QUERY_GRAD: Tiles = {**KEY_VALUE_GRAD, "tma": {64: (128, 64, 8, 3), 128: (128, 64, 8, 3)}}


class Constants(TypedDict):
    """Constants that the kernels share."""

    HEAD_SIZE: int
    COMPUTE: tl.dtype
    PRECISION: str
    TMA: bool
    BLOCK_M: int
    BLOCK_N: int
    BLOCK_E: int
    BLOCK_V: NotRequired[int]
    num_warps: int
    num_stages: int


def is_fetchable(*arrays: Layout) -> bool:
    """Can the copy engine of sm_90 fetch blocks of these? 16 bits, contiguous rows, all of them aligned to 16 bytes."""
    if driver.get().properties(arrays[0].device_index).compute_capability < 90:
        return False
    return all(
        x.dtype.itemsize == 2 and x.size > 0 and x.strides[-1] == 1 and x.strides[-2] > 0 and x.aligned
        and all(stride % 8 == 0 for stride in x.strides[:-1])
        for x in arrays
    )  # fmt: skip


def batch_strides(lead: Shape, *arrays: Layout | None) -> tuple[Shape, *tuple[Shape | None, ...]]:
    """The leading dimensions merged, the innermost first, and each array's strides over them."""
    walks = [x.strides[:-2] for x in arrays if x is not None]
    sizes, merged = collapse(lead, [contiguous_strides(lead), *walks])
    strides = iter(merged[1:])
    return sizes[::-1], *(None if x is None else next(strides)[::-1] for x in arrays)


def matrix_strides(*arrays: Layout | None) -> tuple[Shape | None, ...]:
    return tuple(None if x is None else x.strides[-2:] for x in arrays)


def constants(table: Tiles, sides: tuple[Layout, ...], num_kept: int, num_walked: int, fetchable: bool) -> Constants:
    """sides: query, and value where its columns count."""
    dtype, blocks = sides[0].dtype, [max(16, tiles.power_of_2(x.shape[-1])) for x in sides]
    padded = max(64, *blocks)
    tma = fetchable and padded in table["tma"]
    kept, walked, num_warps, num_stages = table["tma" if tma else dtype.itemsize][padded]
    found: Constants = {
        "HEAD_SIZE": sides[0].shape[-1],
        "COMPUTE": COMPUTE[dtype],
        "PRECISION": tiles.DOT_PRECISION[dtype],
        "TMA": tma,
        "BLOCK_M": min(kept, max(16, tiles.power_of_2(num_kept))),
        "BLOCK_N": min(walked, max(16, tiles.power_of_2(num_walked))),
        "BLOCK_E": blocks[0],
        "num_warps": num_warps,
        "num_stages": num_stages,
    }
    if len(blocks) > 1:
        found["BLOCK_V"] = blocks[1]
    return found
