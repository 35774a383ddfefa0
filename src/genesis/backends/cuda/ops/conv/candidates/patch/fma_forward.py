"""The forward and the input's gradient of a convolution of few channels in float32 (fma_forward.cu).

Tensor cores take float32 in three products of halves, and channels in multiples of 16 at least: with few channels, and
few results for each number that is loaded, plain multiply-adds are ahead of that, and need no padding.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, PLAIN, Candidate, Family, Launch, admissible, numbers_in
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.patch import shape
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import Shape

NAME = "patch_fma_forward"
_MOST_CHANNELS = 96  # that are summed: of more, tensor cores are ahead
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
class Work(shape.AnyForwardWork):
    """A tile of a problem: what it needs, and how much of it there is."""

    problem: ConvProblem
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
    def num_threads(self) -> int:
        return self.tile.rows * self.tile.columns // self.tile.pixels * self.tile.lanes

    @property
    def block_outputs(self) -> int:
        return self.tile.outputs * self.tile.lanes

    @property
    def num_slices(self) -> int:
        return -(-self.problem.result_shape[1] // self.block_outputs)

    @property
    def num_terms(self) -> int:
        return self.channels * math.prod(self.problem.weight_shape[2:])

    @property
    def chain(self) -> tuple[int, int]:
        """Taps and channels that are added up one after the other."""
        _, _, taps_y, taps_x = self.problem.weight_shape
        if self.tile.at_once > 1 or self.num_terms <= _WHOLE:
            return taps_y * taps_x, self.channels
        if taps_y > 1 and self.channels * taps_x <= _CHAIN:
            return taps_x, self.channels
        parts = max(-(-self.channels // _CHAIN), 2 if taps_y * taps_x == 1 else 1)
        return 1, -(-self.channels // parts // 4) * 4

    @property
    def registers(self) -> int:
        """Registers of a thread, for sums and what it reads."""
        taps, channels = self.chain
        is_whole = taps * channels >= self.num_terms
        return self.tile.pixels * (self.tile.outputs * (1 if is_whole else 2) + 4)

    @property
    def shared_memory(self) -> int:
        """Bytes."""
        of_tap = self.channels * (self.block_outputs // 4 | 1)
        pixels = math.prod(self.patch) * shape.pitch(self.problem, self.channels)
        return 16 * (math.prod(self.problem.weight_shape[2:]) * of_tap + pixels)

    @property
    def source_shape(self) -> Shape:
        return shape.in_a_row(self.problem, self.problem.first_shape)

    @property
    def images_shape(self) -> Shape:
        return shape.in_a_row(self.problem, self.problem.result_shape)

    @property
    def seconds(self) -> float:
        """A guess: the multiply-adds', shared memory's and the copies' time, and memory's beside it."""
        p, tile = self.problem, self.tile
        taps, pixels = math.prod(p.weight_shape[2:]), tile.rows * tile.columns
        fours = taps * -(-self.channels // 4)
        loads = (tile.pixels + tile.outputs) / (4 * tile.pixels * tile.outputs)  # of a multiply-add
        additions = fours if tile.at_once > 1 else 0
        products = pixels * self.block_outputs * (self.num_terms * (1 + loads) + additions) / 128
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
        p, tile, (taps, channels) = self.problem, self.tile, self.chain
        return {
            "CHANNELS": self.channels, "OUTPUTS": p.result_shape[1], "TILE_Y": tile.rows, "TILE_X": tile.columns,
            "LANE_PIXELS": tile.pixels, "LANE_OUTPUTS": tile.outputs, "OUTPUT_LANES": tile.lanes,
            "FOURS": int(tile.at_once == 4), "PART_TAPS": taps, "PART_CHANNELS": channels,
            "GRANULE": shape.granule(p, self.channels), "WIDTH": self._width, "BIAS": int(p.bias),
            "RESIDUAL": int(p.residual), "RELU": int(p.activation == "relu"), **self.convolution,
        }  # fmt: skip


class PatchFmaForwardFamily(Family[ConvProblem]):
    prefix = NAME

    def variants(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        return self.trials(problem) if _is_best_guess(problem) else ()

    def trials(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        if not _supports(problem):
            return ()
        found = [PatchFmaForward(tile) for tile in _promising(problem)]
        return [candidate for candidate in found if admissible(candidate, problem)]

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        tile = Tile.named(name.removeprefix(f"{self.prefix}/"))
        return None if tile is None else PatchFmaForward(tile)


class PatchFmaForward(Candidate[ConvProblem]):
    """One tile of the kernel."""

    arithmetic = FULL

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.name = f"{NAME}/{tile}"

    def supports(self, problem: ConvProblem) -> bool:
        return _supports(problem) and Work(problem, self.tile).is_possible()

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return PLAIN

    def program(self, problem: ConvProblem) -> tuple[str, dict[str, int]]:
        """The kernel's name, and what it is compiled with."""
        return NAME, Work(problem, self.tile).macros

    def prepare(self, problem: ConvProblem) -> Launch:
        work = Work(problem, self.tile)
        name, macros = self.program(problem)
        ready = programs.prepare(
            problem.device, name, macros, work.grid, work.num_threads, work.shared_memory, 5, **work.geometry
        )

        def run(stream: int, out: int, first: int, weight: int, bias: int, residual: int, workspace: int) -> None:
            ready(stream, first, weight, out, bias, residual)

        return run


@functools.lru_cache(maxsize=1024)
def _promising(problem: ConvProblem) -> list[Tile]:
    works = (Work(problem, tile) for tile in _tiles(problem))
    ranked = sorted((work for work in works if work.is_possible()), key=lambda work: work.seconds)
    ways = [[work for work in ranked if work.tile.at_once == at_once] for at_once in (1, 4)]
    most = shape.NUM_TILES // sum(map(bool, ways)) if ranked else 0
    found = [
        tile
        for way in ways
        for tile in shape.varied(
            (dataclasses.replace(work.tile, blocks=0), work.tile, work.tile.rows * work.tile.columns) for work in way
        )[:most]
    ]
    return sorted(found, key=lambda tile: Work(problem, tile).seconds)


driver.forget_on_switch(_promising.cache_clear)


def _tiles(problem: ConvProblem) -> list[Tile]:
    """All that might be worth trying."""
    shares = {-(-problem.result_shape[1] // n) for n in range(1, 9)}  # outputs of a block
    threads = {
        (pixels, of_lane, lanes)
        for pixels, share, lanes in itertools.product((1, 2, 4, 8), shares, (1, 2, 4, 8))
        if 8 <= pixels * (of_lane := -(-share // (4 * lanes)) * 4) <= _MOST_SUMS and of_lane * lanes < share + 4 * lanes
    }
    ways = itertools.product(shape.areas(problem), sorted(threads), (1, 4), (2, 4))
    return [Tile(*area, *thread, at_once, blocks) for area, thread, at_once, blocks in ways]


def _supports(problem: ConvProblem) -> bool:
    p = problem
    return (
        p.direction != WEIGHT_GRAD
        and (p.direction != INPUT_GRAD or p.stride == (1, 1))
        and shape.supports_float32(p)
        and p.first_shape[1] <= _MOST_CHANNELS
        and not p.statistics
    )


def _is_best_guess(problem: ConvProblem) -> bool:
    """Is it ahead of all other kernels, as measured on an H100?"""
    outputs, inputs, *taps = problem.weight_shape
    if math.prod(taps) == 1:
        return problem.first_shape[1] <= _MOST_CHANNELS and min(outputs, inputs) <= 48
    return outputs * inputs <= 32 * 32
