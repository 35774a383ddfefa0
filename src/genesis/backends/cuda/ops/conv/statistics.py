"""How sums over the pixels of each channel, and passes over all of them, are shared out among programs.

Images are matrices here: a row per pixel, the channels side by side.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import RawLaunch
from genesis.backends.cuda.engine.candidate import Parts
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.conv.kernels import statistics as kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.runtime.array import Layout

if TYPE_CHECKING:
    import triton.language as tl

_MOST_PARTS, _LEAST_BLOCKS = 256, 6  # of a sum, each of so many blocks of rows; one program puts them together
_CHANNELS = 8  # of which it does so
STAGES = 4  # blocks of a sum on their way at a time


class Blocks(TypedDict):
    """The elements that a program holds at a time, as constants of a kernel.

    FOLD: so many rows are taken as one, lest a block of columns be larger than there are channels. EVEN: all blocks of
    rows are whole. VECTOR: a factor of the number of columns, at most 8.
    """

    BLOCK_M: int
    BLOCK_N: int
    FOLD: int
    EVEN: bool
    VECTOR: int
    num_warps: int


class TypedBlocks(Blocks):
    COMPUTE: tl.dtype


class PartBlocks(TypedDict):
    PARTS: int
    BLOCK: int


class _Tile(NamedTuple):
    """The tile of a program: so many columns at most, elements in all; and its warps."""

    columns: int
    elements: int
    warps: int

    def constants(self, num_rows: int, num_channels: int, folds: bool) -> Blocks:
        fold = math.gcd(self.columns // math.gcd(num_channels, self.columns), num_rows) if folds and num_rows else 1
        num_rows, num_columns = num_rows // fold, num_channels * fold
        block_n = min(max(tiles.power_of_2(num_columns), 8), self.columns)
        block_m = min(tiles.power_of_2(num_rows), self.elements // block_n)
        is_even = num_rows > 0 and num_rows % block_m == 0
        return {
            "BLOCK_M": block_m, "BLOCK_N": block_n, "FOLD": fold, "EVEN": is_even, "VECTOR": math.gcd(num_columns, 8),
            "num_warps": self.warps,
        }  # fmt: skip


_SUM, _PASS = _Tile(64, 4096, 4), _Tile(128, 2048, 4)  # as measured on an H200


class Sums(NamedTuple):
    """Sums over rows in parts: programs × blocks of columns. Part i has blocks i, i + number, … of BLOCK_M rows.

    Where rows are folded, each program has FOLD parts, whose sums lie side by side.
    """

    number: int  # of parts
    grid: tuple[int, int]
    constants: TypedBlocks

    @classmethod
    def over(cls, x: Layout, folds: bool = True) -> Sums:
        num_rows, num_channels = rows_and_channels(x)
        constants: TypedBlocks = {"COMPUTE": COMPUTE[x.dtype], **_SUM.constants(num_rows, num_channels, folds)}
        fold = constants["FOLD"]
        column_blocks = -(-num_channels * fold // constants["BLOCK_N"])
        wanted = 4 * driver.get().properties(x.device_index).multiprocessor_count // max(column_blocks, 1)
        blocks = -(-num_rows // (fold * constants["BLOCK_M"] * _LEAST_BLOCKS))
        programs = max(1, min(wanted, blocks, _MOST_PARTS // fold))
        return cls(programs * fold, (programs, column_blocks), constants)

    @property
    def parts(self) -> Parts:
        return Parts(self.number, self.constants["BLOCK_M"], self.constants["FOLD"])


class Joining(NamedTuple):
    """The programs that put the parts together."""

    grid: tuple[int]
    constants: PartBlocks

    @classmethod
    def of(cls, number: int, num_channels: int) -> Joining:
        constants: PartBlocks = {"PARTS": tiles.power_of_2(number), "BLOCK": _CHANNELS}
        return cls((-(-num_channels // _CHANNELS),), constants)


class Pass(NamedTuple):
    """The programs of an element-wise pass; at least one for each channel, which writes what there is one of."""

    grid: tuple[int, int]
    constants: TypedBlocks

    @classmethod
    def over(cls, x: Layout, folds: bool = True) -> Pass:
        num_rows, num_channels = rows_and_channels(x)
        constants: TypedBlocks = {"COMPUTE": COMPUTE[x.dtype], **_PASS.constants(num_rows, num_channels, folds)}
        fold = constants["FOLD"]
        row_blocks = max(1, -(-num_rows // (fold * constants["BLOCK_M"])))
        return cls((row_blocks, -(-num_channels * fold // constants["BLOCK_N"])), constants)


def rows_and_channels(x: Layout) -> tuple[int, int]:
    """Rows and channels of an array (N, C, H, W) that lies in memory as NHWC."""
    num_channels = x.shape[1]
    return x.size // max(num_channels, 1), num_channels


def statistics_pass(x: Layout, partial: Layout, sums: Sums) -> RawLaunch:
    """run(stream, partial, x): the statistics of x in parts, (3, part, channel)."""
    return prepare_raw(
        kernels._statistics_kernel, x.device_index, sums.grid, (partial, x), *rows_and_channels(x), STAGES=STAGES,
        **sums.constants,
    )  # fmt: skip
