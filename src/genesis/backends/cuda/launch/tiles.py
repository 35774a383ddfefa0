"""Tiles of matrix products: which block sizes a problem of a given size runs with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypedDict

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.dtypes import DType

# Of tl.dot in convolution and attention. Float32 operands are cut into three bfloat16 parts, which together hold all of
# their 24 bits, and multiplied on tensor cores, where few sums are rounded: closer to the exact result than float32
# multiply-adds, and up to 6 times as fast on an H200. (TF32, three times over, would drop the last two bits of each.)
DOT_PRECISION = {dtype: "bf16x6" if dtype is dtypes.float32 else "ieee" for dtype in dtypes.ALL}


class TileConstants(TypedDict):
    """A tile's sizes, as constants of a kernel."""

    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    num_warps: int
    num_stages: int


class Tile(NamedTuple):
    """One program computes block_m × block_n results, block_k terms at a time."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    def fitted(self, m: int, n: int, k: int) -> Tile:
        """No larger than the problem, no smaller than a tensor core takes."""
        blocks = (min(block, max(16, power_of_2(size))) for block, size in zip(self, (m, n, k), strict=False))
        block_m, block_n, block_k = blocks
        num_warps = min(self.num_warps, 4) if block_m * block_n <= 64 * 128 else self.num_warps
        return Tile(block_m, block_n, block_k, num_warps, self.num_stages)

    def num_tiles(self, m: int, n: int) -> int:
        return -(-m // self.block_m) * -(-n // self.block_n)

    @property
    def constants(self) -> TileConstants:
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


def power_of_2(n: int) -> int:
    """The smallest power of two not below n.

    >>> power_of_2(5), power_of_2(1), power_of_2(0)
    (8, 1, 1)
    """
    return 1 << max(n - 1, 0).bit_length()


def ranked(tiles: Sequence[Tile], m: int, n: int, k: int, batch: int, dtype: DType, device: int) -> list[Tile]:
    """The tiles that fit into shared memory, the most promising first.

    tiles go from large to small. The best is the largest that gives every multiprocessor a program; where none does,
    the smallest. Then come its neighbours.
    """
    properties = driver.get().properties(device)
    fitted = list(dict.fromkeys(tile.fitted(m, n, k) for tile in tiles))
    fitted = [tile for tile in fitted if _shared_memory(tile, dtype) <= properties.max_shared_memory] or fitted[-1:]
    enough = [i for i, tile in enumerate(fitted) if batch * tile.num_tiles(m, n) >= properties.multiprocessor_count]
    best = enough[0] if enough else len(fitted) - 1
    return sorted(fitted, key=lambda tile: abs(fitted.index(tile) - best))


def _shared_memory(tile: Tile, dtype: DType) -> int:
    return (tile.block_m + tile.block_n) * tile.block_k * dtype.itemsize * tile.num_stages
