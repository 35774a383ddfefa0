"""The forward and the input's gradient of a convolution of few channels in float32 (fma_forward.cu).

Tensor cores take float32 in three products of halves, and channels in multiples of 16 at least: with few channels, and
few results for each number that is loaded, plain multiply-adds are ahead of that, and need no padding.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from functools import cached_property

from genesis.backends.contract import Pair
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import numbers_in
from genesis.backends.cuda.ops.conv.candidates.patch import shape
from genesis.backends.cuda.ops.conv.candidates.patch.candidate import ForwardCandidate, varied
from genesis.backends.cuda.ops.conv.candidates.patch.work import AnyTile, AnyWork, ForwardWork
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem
from genesis.shapes import Shape

NAME = "patch_fma_forward"
_MOST_CHANNELS, _MOST_TERMS = 96, 864  # that are summed: of more, tensor cores are ahead; where there are phases
_WHOLE, _CHAIN = 28, 96  # terms that may be one chain of additions; of a part of more
_MOST_FOURS = 800  # terms: sums of four of them may be one chain
_MOST_SUMS = 64  # that a thread keeps


@dataclasses.dataclass(frozen=True)
class Tile:
    """A block's share of the result, and a thread's."""

    rows: int
    columns: int
    pixels: int  # of a thread
    outputs: int  # of a thread
    lanes: int  # threads that have the same pixels
    at_once: int = 1  # products that are added up before they are added to the sum: 1 or 4
    blocks: int = 2  # of the grid, for each multiprocessor

    def __str__(self) -> str:
        thread = f"m{self.pixels} n{self.outputs} l{self.lanes} a{self.at_once}"
        return f"{self.rows}x{self.columns} {thread} b{self.blocks}"

    @classmethod
    def named(cls, name: str) -> Tile | None:
        """The tile that is written so.

        >>> Tile.named(str(Tile(4, 32, 4, 16, 2, 4))) == Tile(4, 32, 4, 16, 2, 4)
        True
        """
        numbers = numbers_in(name, r"(\d+)x(\d+) m(\d+) n(\d+) l(\d+) a([14]) b(\d+)", 1024)
        return cls(*numbers) if numbers else None


@dataclasses.dataclass(frozen=True)
class Work(ForwardWork):
    tile: Tile

    def is_possible(self) -> bool:
        tile = self.tile
        return (
            tile.outputs % 4 == 0
            and (tile.at_once == 1 or _WHOLE < self.num_terms <= _MOST_FOURS)
            and 32 % tile.lanes == 0
            and tile.rows * tile.columns % tile.pixels == 0
            and self.num_threads % 32 == 0
            and self.num_threads <= 512
            and tile.pixels * tile.outputs <= _MOST_SUMS
            and self.num_threads * (self.registers + shape.OTHER_REGISTERS) <= shape.REGISTERS
            and self.shared_memory <= driver.get().properties(self.problem.device).max_shared_memory
        )

    @property
    def steps(self) -> Pair:
        """The distance between results of a phase, which meet the same taps."""
        return _steps(self.problem)

    @property
    def taps(self) -> Pair:
        return _taps(self.problem)

    @property
    def padding(self) -> Pair:
        return self.problem.padding

    @cached_property
    def cover(self) -> tuple[int, int, int]:
        """Images, and a phase's tiles in a column and in a row."""
        images, _, height, width = _phase_shape(self.problem, self.images_shape)
        return images, -(-height // self.tile.rows), -(-width // self.tile.columns)

    @cached_property
    def num_threads(self) -> int:
        return self.tile.rows * self.tile.columns // self.tile.pixels * self.tile.lanes

    @cached_property
    def block_outputs(self) -> int:
        return self.tile.outputs * self.tile.lanes

    @cached_property
    def num_slices(self) -> int:
        return -(-self.problem.result_shape[1] // self.block_outputs) * math.prod(self.steps)

    @cached_property
    def num_terms(self) -> int:
        """The terms of a sum, at most."""
        return self.channels * math.prod(self.taps)

    @cached_property
    def chain(self) -> tuple[int, int]:
        """Taps and channels that are added up one after the other."""
        taps_y, taps_x = self.taps
        if self.tile.at_once > 1 or self.num_terms <= _WHOLE:
            return taps_y * taps_x, self.channels
        if taps_y > 1 and self.channels * taps_x <= _CHAIN:
            return taps_x, self.channels
        parts = 2 if taps_y * taps_x == 1 else 1
        return 1, -(-self.channels // parts // 4) * 4

    @cached_property
    def registers(self) -> int:
        """Registers of a thread, for sums and what it reads."""
        taps, channels = self.chain
        is_whole = taps * channels >= self.num_terms
        return self.tile.pixels * (self.tile.outputs * (1 if is_whole else 2) + 4)

    @cached_property
    def shared_memory(self) -> int:
        """Bytes."""
        of_tap = self.channels * (self.block_outputs // 4 | 1)
        pixels = math.prod(self.patch) * shape.pitch(self.problem, self.channels)
        return 16 * (math.prod(self.taps) * of_tap + pixels)

    @property
    def read_shape(self) -> Shape:
        return shape.in_a_row(self.problem, self.problem.first_shape)

    @property
    def images_shape(self) -> Shape:
        return shape.in_a_row(self.problem, self.problem.result_shape)

    @property
    def seconds(self) -> float:
        """A guess: the multiply-adds', shared memory's and the copies' time, and memory's beside it."""
        p, tile = self.problem, self.tile
        taps, pixels = math.prod(p.weight_shape[2:]) / math.prod(self.steps), tile.rows * tile.columns
        fours = taps * -(-self.channels // 4)
        loads = (tile.pixels + tile.outputs) / (4 * tile.pixels * tile.outputs)  # of a multiply-add
        additions = fours if tile.at_once > 1 else 0
        products = pixels * self.block_outputs * (taps * self.channels * (1 + loads) + additions) / 128
        lines = self.num_threads / 32 * fours * (4 * tile.pixels / tile.lanes + tile.outputs * max(1, tile.lanes / 4))
        patch = math.prod(self.patch)
        copies = patch * self.channels * 4 / shape.granule(p, self.channels)
        copies += pixels * self.block_outputs / self._width
        resident = shape.resident(p, self.shared_memory, self.num_threads, self.registers, tile.blocks)
        if resident == 0:
            return math.inf
        work = self.num_tiles * self.num_slices * shape.clocks(lines, products, copies, resident)
        work += self.grid * taps * self.channels * self.block_outputs / 32 * 20 / 4  # the weight
        compute = work / shape.CLOCK / shape.busy(p, self.grid, self.num_threads, resident)
        halo = patch / (pixels * math.prod(self.stride))
        first, result = (4 * math.prod(each) for each in (p.first_shape, p.result_shape))
        return max(compute, (first * halo + result) / shape.BYTES_PER_SECOND) + 1e-6

    @property
    def _width(self) -> int:
        """Results that are stored at once."""
        return shape.granule(self.problem, self.problem.result_shape[1]) // 4

    @property
    def macros(self) -> dict[str, int]:
        tile, (taps, channels), steps = self.tile, self.chain, self.steps
        return self.common_macros | {
            "WEIGHT_TAPS_Y": self.problem.weight_shape[2], "WEIGHT_TAPS_X": self.problem.weight_shape[3],
            "STEP_Y": steps[0], "STEP_X": steps[1],
            "LANE_PIXELS": tile.pixels, "LANE_OUTPUTS": tile.outputs, "OUTPUT_LANES": tile.lanes,
            "FOURS": int(tile.at_once == 4), "PART_TAPS": taps, "PART_CHANNELS": channels, "WIDTH": self._width,
        }  # fmt: skip


def _steps(problem: ConvProblem) -> Pair:
    """The stride that the input's gradient has to undo."""
    return problem.stride if problem.direction == INPUT_GRAD else (1, 1)


def _taps(problem: ConvProblem) -> Pair:
    """Rows and columns of the taps that a result meets, at most."""
    y, x = (-(-n // step) for n, step in zip(problem.weight_shape[2:], _steps(problem), strict=True))
    return y, x


def _phase_shape(problem: ConvProblem, images: Shape) -> Shape:
    """(N, C, H, W) of a phase of those images."""
    number, channels, *sizes = images
    return (number, channels, *(-(-size // step) for size, step in zip(sizes, _steps(problem), strict=True)))


class PatchFmaForward(ForwardCandidate):
    kernel, tile_type, work_type = NAME, Tile, Work

    @classmethod
    def computes(cls, problem: ConvProblem) -> bool:
        p, channels, has_phases = problem, problem.first_shape[1], _steps(problem) != (1, 1)
        is_small = channels <= _MOST_CHANNELS or (has_phases and channels * math.prod(_taps(p)) <= _MOST_TERMS)
        is_regular = not has_phases or p.dilation == (1, 1)  # does a phase meet neighbours?
        return super().computes(p) and is_small and is_regular and shape.supports_float32(p)

    @classmethod
    def is_best_guess(cls, problem: ConvProblem) -> bool:
        """Is the kernel ahead of all others, as measured on an H100, and with a stride to undo, on an H200?"""
        outputs, inputs, *taps = problem.weight_shape
        if _steps(problem) != (1, 1) and (outputs % 4 or inputs % 4):
            return True  # Hopper's copy engine wants pixels at multiples of 16 bytes
        return min(outputs, inputs) <= 48 if math.prod(taps) == 1 else outputs * inputs <= 32 * 32

    @classmethod
    def tiles(cls, problem: ConvProblem) -> list[Tile]:
        shares = {-(-problem.result_shape[1] // n) for n in range(1, 9)}  # outputs of a block
        threads = {
            (pixels, of_lane, lanes)
            for pixels, share, lanes in itertools.product((1, 2, 4, 8), shares, (1, 2, 4, 8))
            if 8 <= pixels * (of_lane := -(-share // (4 * lanes)) * 4) <= _MOST_SUMS
            and of_lane * lanes < share + 4 * lanes
        }
        areas = shape.areas(problem, _phase_shape(problem, problem.result_shape))
        ways = itertools.product(areas, sorted(threads), (1, 4), (2, 4))
        return [Tile(*area, *thread, at_once, blocks) for area, thread, at_once, blocks in ways]

    @classmethod
    def chosen(cls, ranked: Sequence[AnyWork]) -> list[AnyTile]:
        """Half of them of each way to keep chains of additions short, if there are two."""
        ways = [[work for work in ranked if isinstance(work, Work) and work.tile.at_once == n] for n in (1, 4)]
        found = [tile for way in ways for tile in varied(way, 5 if all(ways) else 10, by_grid=False)]
        return sorted(found, key=[work.tile for work in ranked].index)
