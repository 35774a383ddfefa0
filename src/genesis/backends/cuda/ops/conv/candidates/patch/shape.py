"""Shared by the kernels of patches: what they are for, how a tile lies in shared memory, and parts of a guess."""

from __future__ import annotations

import abc
import collections
import math
from collections.abc import Iterable
from typing import Protocol, TypeVar

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import driver
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.shapes import Shape, numel

T = TypeVar("T")
SLACK = 8  # units of 16 bytes that are read beyond the last pixel
REGISTERS, OTHER_REGISTERS = 65536, 56  # of a multiprocessor; of a thread, beside its sums
CLOCK, BYTES_PER_SECOND = 1.5e9, 2.9e12  # of a large GPU
_RESERVED = 1 << 10  # bytes of shared memory that a block takes for itself
_MOST_TAPS = (7, 5)  # (rows, columns)
_MOST_CHANNELS = 48 * 48  # of input times output: beyond, others are ahead
_FEW_CHANNELS, _FEW_TAPS, _MANY_PIXELS = 32 * 32, 9, 1 << 14
_NUM_TILES, _OF_A_SIZE = 10, 4  # worth trying; with as many pixels
_WARPS = 10  # keep a multiprocessor busy
_LATENCY, _INSTRUCTIONS = 1500, 20  # clocks of a tile, from memory; of a copy


def supports(problem: ConvProblem) -> bool:
    """16 bits, no groups, several taps, few channels, pairs of which lie at multiples of four bytes."""
    p = problem
    outputs, inputs, *taps = p.weight_shape
    return (
        p.groups == 1
        and p.dtype in (dtypes.float16, dtypes.bfloat16)
        and outputs % 2 == inputs % 2 == 0
        and outputs * inputs <= _MOST_CHANNELS
        and math.prod(taps) > 1
        and all(number <= most for number, most in zip(taps, _MOST_TAPS, strict=True))
        and p.alignment >= 4
        and all(0 < numel(each) < 2**31 for each in (p.input_shape, p.weight_shape, p.output_shape))
        and programs.is_available(p.device)
    )


def is_best_guess(problem: ConvProblem) -> bool:
    """Are so few channels of so many pixels that all other kernels are behind? As measured on an H200."""
    outputs, inputs, *taps = problem.weight_shape
    images, _, height, width = problem.output_shape
    return (
        outputs * inputs <= _FEW_CHANNELS
        and math.prod(taps) <= _FEW_TAPS
        and problem.dilation == (1, 1)
        and images * height * width >= _MANY_PIXELS
    )


def pitch(channels: int) -> int:
    """The distance of pixels in shared memory, in units of 16 bytes."""
    return -(-channels // 8) | 1


def granule(problem: ConvProblem, *channels: int) -> int:
    """Bytes that are copied at once, of pixels and shares of them with so many channels."""
    return math.gcd(*(2 * n for n in channels), problem.alignment, 16)


def patch_of(problem: ConvProblem, rows: int, columns: int, stride: Pair) -> tuple[int, int]:
    """Rows and columns of the pixels that the taps of so many results meet."""
    p = problem
    height, width = (
        (size - 1) * step + (taps - 1) * dilation + 1
        for size, step, taps, dilation in zip((rows, columns), stride, p.weight_shape[2:], p.dilation, strict=True)
    )
    return height, width


def clocks(lines: float, products: float, copies: float, resident: int) -> float:
    """A guess at the clocks of a tile on a multiprocessor: of shared memory or the tensor cores, copies, waiting."""
    return max(lines, products) + copies / 32 * _INSTRUCTIONS / 4 + _LATENCY / resident


def resident(problem: ConvProblem, shared_memory: int, num_threads: int, sums: int, most: int) -> int:
    """Blocks that a multiprocessor has at a time."""
    device = driver.get().properties(problem.device)
    return min(
        device.max_shared_memory // (shared_memory + _RESERVED),
        REGISTERS // (num_threads * min(255, sums + OTHER_REGISTERS)),
        max(1, most),
    )


def busy(problem: ConvProblem, grid: int, num_threads: int, resident: int) -> float:
    """The share of the device that works."""
    processors = max(1, driver.get().properties(problem.device).multiprocessor_count)
    return processors * min(1.0, grid / processors) * min(1.0, resident * num_threads / 32 / _WARPS)


class AnyTile(Protocol):
    """A block's share of the pixels: rows × columns; and how many blocks the grid has for each multiprocessor."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def blocks(self) -> int: ...


class AnyWork(abc.ABC):
    """How the pixels of a problem are shared out in tiles."""

    problem: ConvProblem
    tile: AnyTile

    @property
    @abc.abstractmethod
    def images_shape(self) -> Shape:
        """(N, C, H, W) of the images whose pixels they are."""

    @property
    @abc.abstractmethod
    def num_slices(self) -> int:
        """Blocks side by side that have all channels."""

    @property
    def chunks(self) -> int:
        """Groups of 16 pixels of a tile."""
        return self.tile.rows // 2 * self.tile.columns // 8

    @property
    def cover(self) -> tuple[int, int, int]:
        """Images, tiles in a column and in a row."""
        images, _, height, width = self.images_shape
        return images, -(-height // self.tile.rows), -(-width // self.tile.columns)

    @property
    def num_tiles(self) -> int:
        return math.prod(self.cover)

    @property
    def iterations(self) -> int:
        """Tiles of a block, one after the other."""
        processors = driver.get().properties(self.problem.device).multiprocessor_count
        return -(-self.num_tiles // max(1, self.tile.blocks * processors // self.num_slices))

    @property
    def parts(self) -> int:
        """Blocks that share the tiles."""
        return -(-self.num_tiles // self.iterations)

    @property
    def grid(self) -> int:
        return self.parts * self.num_slices


def varied(ranked: Iterable[tuple[object, T, int]]) -> list[T]:
    """Return the tiles worth trying: the first of each launch, and a few of as many pixels.

    Args:
        ranked: the most promising first: what is launched, the tile, and its pixels.
    """
    launches: set[object] = set()
    found: collections.Counter[int] = collections.Counter()
    tiles = []
    for launch, tile, pixels in ranked:
        if launch not in launches and found[pixels] < _OF_A_SIZE:
            launches.add(launch)
            found[pixels] += 1
            tiles.append(tile)
    return tiles[:_NUM_TILES]


def sizes(length: int, most: int, unit: int) -> set[int]:
    """Multiples of a unit that divide a length into equal parts, or nearly."""
    return {min(-(-length // n // unit) * unit or unit, most) for n in range(1, 9)}
