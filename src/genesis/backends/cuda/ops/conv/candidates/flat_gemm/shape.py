"""How warps and blocks share out the pixels of a 1×1 convolution, and a guess at the time that takes."""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Iterable
from functools import cached_property
from typing import ClassVar, Self

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import numbers_in
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

_REGISTERS, _OTHER_REGISTERS, _MOST_REGISTERS = 65536, 44, 255  # of a multiprocessor; of a thread
_RESERVED = 1 << 10  # bytes of shared memory that a block takes for itself
_MOST_THREADS = 512
_MOST_SUMS = 128  # of a thread
_LONGEST_CHAIN = 1 << 16  # pixels: tensor cores' sums are cut off, and drift in one direction

# Of a large GPU, for the guess.
_CLOCK, _BYTES_PER_SECOND, _BYTES_OF_SUMS_PER_SECOND = 1.5e9, 2.9e12, 1.5e12
_IN_FLIGHT = 40e3  # bytes that a multiprocessor waits for at a time, so that memory is busy
_PRODUCT, _PIXEL, _LATENCY, _LAUNCH = 2.0, 4.0, 1000, 2e-6  # clocks of a product; of a pixel's copies; of a tile
_WARPS = 8  # keep a multiprocessor busy
_OF_WEIGHT = 8  # clocks of a number of the weight that a thread rearranges


@dataclasses.dataclass(frozen=True)
class Tile:
    """Pixels that come at a time, and how many there are of what works on them."""

    pixels: int  # of a warp; in a weight's gradient, of a block
    warps: int  # of a block; in a weight's gradient, that share the pixels for each part of the result
    stages: int
    blocks: int  # of a multiprocessor

    def __str__(self) -> str:
        return f"{self.pixels} w{self.warps} s{self.stages} b{self.blocks}"

    @classmethod
    def named(cls, name: str) -> Tile | None:
        """The tile that is written so.

        >>> Tile.named(str(Tile(16, 8, 3, 2))) == Tile(16, 8, 3, 2)
        True
        """
        numbers = numbers_in(name, r"(\d+) w(\d+) s(\d+) b(\d+)", 512)
        return cls(*numbers) if numbers else None


@dataclasses.dataclass(frozen=True)
class Work(abc.ABC):
    """A tile of a problem: what it needs, and how much of it there is."""

    problem: ConvProblem
    tile: Tile

    tiles: ClassVar[tuple[Tile, ...]]  # all that might be worth trying

    @classmethod
    def of_all(cls, problem: ConvProblem) -> Iterable[Self]:
        return (cls(problem, tile) for tile in cls.tiles)

    def is_possible(self) -> bool:
        """Has the kernel such a tile, and does it fit a multiprocessor?"""
        tile = self.tile
        return (
            tile.pixels % 16 == 0
            and tile.stages >= 2
            and self.num_threads <= _MOST_THREADS
            and self.sums <= _MOST_SUMS
            and self.resident == tile.blocks
        )

    @property
    @abc.abstractmethod
    def num_threads(self) -> int: ...

    @property
    @abc.abstractmethod
    def sums(self) -> int:
        """Sums of a thread."""

    @property
    @abc.abstractmethod
    def shared_memory(self) -> int:
        """Bytes."""

    @property
    def workspace(self) -> int:
        """Bytes of what the kernel leaves for another one."""
        return 0

    @property
    @abc.abstractmethod
    def macros(self) -> dict[str, int]:
        """Macros that the kernel is compiled with."""

    @property
    @abc.abstractmethod
    def seconds(self) -> float:
        """A guess at the time."""

    @property
    @abc.abstractmethod
    def block_pixels(self) -> int:
        """Pixels that a block has at a time."""

    @cached_property
    def resident(self) -> int:
        """Blocks that a multiprocessor has at a time, no more than are wanted."""
        most_shared = driver.get().properties(self.problem.device).max_shared_memory
        by_registers = _REGISTERS // (self.num_threads * min(_MOST_REGISTERS, self.sums + _OTHER_REGISTERS))
        return min(most_shared // (self.shared_memory + _RESERVED), by_registers, self.tile.blocks)

    @property
    def num_pixels(self) -> int:
        return num_pixels(self.problem)

    @cached_property
    def iterations(self) -> int:
        """Tiles of a warp or block, one after the other."""
        processors = driver.get().properties(self.problem.device).multiprocessor_count
        return -(-self.num_pixels // (self.block_pixels * max(1, processors * self.tile.blocks)))

    @cached_property
    def grid(self) -> int:
        return -(-self.num_pixels // (self.block_pixels * self.iterations))

    def _seconds(self, clocks_of_a_turn: float, bytes_of_a_pixel: int) -> float:
        """The time of all turns of a multiprocessor's blocks, or of memory."""
        processors = max(1, driver.get().properties(self.problem.device).multiprocessor_count)
        beside = min(self.tile.blocks, -(-self.grid // processors))
        waiting = _LATENCY / (self.tile.stages - 1)
        alone = _WARPS / min(_WARPS, beside * self.num_threads / 32)  # too few warps to keep the tensor cores busy
        clocks = self.iterations * max(beside * clocks_of_a_turn * alone, waiting) + _LATENCY
        in_flight = beside * self.block_pixels * (self.tile.stages - 1) * bytes_of_a_pixel
        busy = min(1.0, in_flight / _IN_FLIGHT) * min(1.0, self.grid / processors)
        return _LAUNCH + max(clocks / _CLOCK, self.problem.bytes / (_BYTES_PER_SECOND * busy))


class ForwardWork(Work):
    """The work of a forward, or of an input's gradient."""

    tiles = tuple(Tile(*each) for each in itertools.product((16, 32), (4, 8), (2, 3, 4), (1, 2, 3, 4)))

    @property
    def terms(self) -> int:
        return self.problem.first_shape[1]

    @property
    def results(self) -> int:
        return self.problem.result_shape[1]

    @property
    def num_threads(self) -> int:
        return 32 * self.tile.warps

    @property
    def sums(self) -> int:
        return self.tile.pixels // 16 * -(-self.results // 16) * 8

    @property
    def block_pixels(self) -> int:
        return self.tile.pixels * self.tile.warps

    @property
    def shared_memory(self) -> int:
        tile, weight = self.tile, -(-self.terms // 16) * -(-self.results // 16) * 512
        of_warp = tile.pixels * (tile.stages * pitch(self.terms) + pitch(self.results))
        return weight + -(-self.results // 16) * 64 + tile.warps * of_warp + 32  # beyond the last pixel is read, too

    @property
    def macros(self) -> dict[str, int]:
        p, tile = self.problem, self.tile
        return {
            "DTYPE": programs.DTYPES.index(p.dtype), "TERMS": self.terms, "RESULTS": self.results,
            "TRANSPOSED": int(p.direction == INPUT_GRAD), "ROWS": tile.pixels, "WARPS": tile.warps,
            "STAGES": tile.stages, "BLOCKS": tile.blocks, "BIAS": int(p.bias), "RELU": int(p.activation == "relu"),
        }  # fmt: skip

    @property
    def seconds(self) -> float:
        chunks = self.block_pixels // 16
        products = chunks * -(-self.terms // 16) * -(-self.results // 8)
        weight = numel(self.problem.weight_shape) / self.num_threads * _OF_WEIGHT / _CLOCK
        return weight + self._seconds(products * _PRODUCT + self.block_pixels * _PIXEL, self.terms * 2)


class WeightGradWork(Work):
    """The work of a weight's gradient: each block has a part of the result."""

    tiles = tuple(Tile(*each) for each in itertools.product((32, 64, 128), (1, 2, 4, 8), (2, 3, 4), (1, 2, 3)))

    def is_possible(self) -> bool:
        tile = self.tile
        return (
            tile.pixels % (16 * tile.warps) == 0
            and self.iterations * tile.pixels <= _LONGEST_CHAIN * tile.warps
            and super().is_possible()
        )

    @property
    def num_threads(self) -> int:
        return 32 * self.warps * self.tile.warps

    @cached_property
    def outputs(self) -> tuple[int, int]:
        """(units of 16 outputs of a warp, warps beside each other)"""
        units = -(-self.problem.weight_shape[0] // 16)
        warps = -(-units // 4)
        return -(-units // warps), warps

    @cached_property
    def inputs(self) -> tuple[int, int]:
        """(units of eight inputs of a warp, warps beside each other)"""
        units = -(-self.problem.weight_shape[1] // 8)
        warps = -(-units // max(1, _MOST_SUMS // (4 * self.outputs[0])))
        return -(-units // warps), warps

    @property
    def warps(self) -> int:
        """The number of warps that have a result together."""
        return self.outputs[1] * self.inputs[1]

    @property
    def sums(self) -> int:
        return self.outputs[0] * self.inputs[0] * 4

    @property
    def block_pixels(self) -> int:
        return self.tile.pixels

    @property
    def shared_memory(self) -> int:
        outputs, inputs = self.problem.weight_shape[:2]
        beyond = 32 + 2 * (8 * math.prod(self.inputs) - inputs)  # the last pixel
        tiles = self.tile.stages * self.tile.pixels * (pitch(outputs) + pitch(inputs)) + beyond
        others = self.warps * self.sums * 128 if self.tile.warps > 1 else 0
        return -(-max(tiles, others) // 16) * 16

    @property
    def workspace(self) -> int:
        """Bytes of the parts."""
        return self.grid * numel(self.problem.weight_shape) * 4

    @property
    def macros(self) -> dict[str, int]:
        p, tile, (outputs, inputs, *_) = self.problem, self.tile, self.problem.weight_shape
        return {
            "DTYPE": programs.DTYPES.index(p.dtype), "OUTPUTS": outputs, "INPUTS": inputs, "PIXELS": tile.pixels,
            "STAGES": tile.stages, "BLOCKS": tile.blocks, "WARP_OUTPUTS": self.outputs[0],
            "WARPS_OUTPUTS": self.outputs[1], "WARP_INPUTS": self.inputs[0], "WARPS_INPUTS": self.inputs[1],
            "SPLITS": tile.warps,
        }  # fmt: skip

    @property
    def seconds(self) -> float:
        (outputs, inputs, *_), chunks = self.problem.weight_shape, self.tile.pixels // 16
        products = chunks * -(-outputs // 16) * -(-inputs // 8)
        turn = products * _PRODUCT + self.tile.pixels * _PIXEL
        return self._seconds(turn, 2 * (outputs + inputs)) + 2 * self.workspace / _BYTES_OF_SUMS_PER_SECOND


def kind_of_work(problem: ConvProblem) -> type[Work]:
    return WeightGradWork if problem.direction == WEIGHT_GRAD else ForwardWork


def num_pixels(problem: ConvProblem) -> int:
    images, _, *sizes = problem.output_shape
    return images * math.prod(sizes)


def is_product_in_16_bits(problem: ConvProblem) -> bool:
    """Is it one product of matrices of 16 bits, of a size that these kernels count in 32?"""
    p = problem
    return (
        p.is_flat
        and p.groups == 1
        and p.dtype in (dtypes.float16, dtypes.bfloat16)
        and p.alignment == 16
        and num_pixels(p) < 2**30
        and all(0 < numel(each) < 2**31 for each in (p.input_shape, p.weight_shape, p.output_shape))
        and not p.statistics
    )


def has_odd_channels(problem: ConvProblem) -> bool:
    """Do rows not begin at multiples of 16 bytes?"""
    return any(channels % 8 for channels in problem.weight_shape[:2])


def pitch(channels: int) -> int:
    """The distance of pixels in shared memory, in bytes: an odd multiple of 16, or as in memory."""
    num_bytes = 2 * channels
    return num_bytes if num_bytes % 16 else (num_bytes // 16 | 1) * 16
