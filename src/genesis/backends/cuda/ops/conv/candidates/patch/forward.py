"""The forward and the input's gradient of a convolution of few channels in 16 bits (forward.cu).

Each pixel is loaded once for all taps and outputs. Libraries pad few channels, and load a pixel for each tap.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import numbers_in
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.patch import shape
from genesis.backends.cuda.ops.conv.candidates.patch.candidate import ForwardCandidate
from genesis.backends.cuda.ops.conv.candidates.patch.work import ForwardWork
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, ConvProblem

NAME = "patch_forward"
_MOST_CHANNELS, _MOST_OUTPUTS = 64, 256  # that are summed, as the weight of all taps lies in shared memory
_MOST_SUMS = 64  # that a thread keeps


@dataclasses.dataclass(frozen=True)
class Tile:
    """A block's share of the result."""

    rows: int
    columns: int
    outputs: int
    warps: int
    at_once: int  # groups of 16 pixels, of a warp
    blocks: int = 2  # of the grid, for each multiprocessor

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} k{self.outputs} w{self.warps} x{self.at_once} b{self.blocks}"

    @classmethod
    def named(cls, name: str) -> Tile | None:
        """The tile that is written so.

        >>> Tile.named(str(Tile(4, 56, 32, 4, 2))) == Tile(4, 56, 32, 4, 2)
        True
        """
        numbers = numbers_in(name, r"(\d+)x(\d+) k(\d+) w(\d+) x(\d+) b(\d+)", 256)
        return cls(*numbers) if numbers else None


@dataclasses.dataclass(frozen=True)
class Work(ForwardWork):
    tile: Tile

    def is_possible(self) -> bool:
        tile = self.tile
        return (
            tile.rows % 2 == 0
            and tile.columns % 8 == 0
            and (tile.outputs % 8 == 0 or tile.outputs == self.problem.result_shape[1])
            and self.chunks % (tile.warps * tile.at_once) == 0
            and self.sums <= _MOST_SUMS
            and self.num_threads <= 512
            and self.shared_memory <= driver.get().properties(self.problem.device).max_shared_memory
        )

    @property
    def sums(self) -> int:
        """The sums of a thread."""
        return self.tile.at_once * -(-self.tile.outputs // 8) * 4

    @property
    def num_threads(self) -> int:
        return 32 * self.tile.warps

    @property
    def shared_memory(self) -> int:
        """Bytes."""
        taps = math.prod(self.problem.weight_shape[2:])
        rows = taps * -(-self.tile.outputs // 8) * 8 + math.prod(self.patch)
        return 16 * (rows * shape.pitch(self.problem, self.channels) + shape.SLACK)

    @property
    def num_slices(self) -> int:
        return -(-self.problem.result_shape[1] // self.tile.outputs)

    @property
    def seconds(self) -> float:
        """A guess: the tensor cores', shared memory's and the copies' time, and memory's beside it."""
        p, tile = self.problem, self.tile
        taps, steps = math.prod(p.weight_shape[2:]), -(-self.channels // 16)
        outputs = -(-tile.outputs // 8)
        products = self.chunks * taps * steps * outputs
        lines = self.chunks * taps * steps * (4 + 2 * outputs / tile.at_once)
        patch = math.prod(self.patch)
        copies = patch * -(-self.channels // 8) * 16 / shape.granule(p, self.channels)
        copies += tile.rows * tile.columns * outputs * 4  # the result's stores
        resident = shape.resident(p, self.shared_memory, self.num_threads, self.sums, tile.blocks)
        if resident == 0:
            return math.inf
        work = self.num_tiles * self.num_slices * shape.clocks(lines, products, copies, resident)
        work += self.grid * taps * outputs * 8 * -(-self.channels // 8) * 8 / 32 * 30 / 4  # the weight
        compute = work / shape.CLOCK / shape.busy(p, self.grid, self.num_threads, resident)
        halo = patch * self.num_slices / (tile.rows * tile.columns * math.prod(self.stride))
        first, result = (2 * math.prod(each) for each in (p.first_shape, p.result_shape))
        return max(compute, (first * halo + result) / shape.BYTES_PER_SECOND) + 1e-6

    @property
    def macros(self) -> dict[str, int]:
        p, tile = self.problem, self.tile
        return self.common_macros | {
            "DTYPE": programs.DTYPES.index(p.dtype), "BLOCK_OUTPUTS": tile.outputs, "WARPS": tile.warps,
            "CHUNKS_AT_ONCE": tile.at_once,
        }  # fmt: skip


class PatchForward(ForwardCandidate):
    kernel, tile_type, work_type = NAME, Tile, Work

    @classmethod
    def computes(cls, problem: ConvProblem) -> bool:
        p = problem
        is_small = p.first_shape[1] <= _MOST_CHANNELS and p.result_shape[1] <= _MOST_OUTPUTS
        undoes_stride = p.direction == INPUT_GRAD and p.stride != (1, 1)
        return super().computes(p) and is_small and not undoes_stride and shape.supports(p)

    @classmethod
    def is_best_guess(cls, problem: ConvProblem) -> bool:
        return problem.stride == (1, 1) and shape.is_best_guess(problem)

    @classmethod
    def tiles(cls, problem: ConvProblem) -> list[Tile]:
        _, outputs, height, width = problem.result_shape
        rows = {min(n, -(-height // 2) * 2) for n in (2, 4, 8, 16)}
        shares = {*(n for n in (32, 64) if n < outputs), *([outputs] if outputs <= 64 else [])}
        options = (sorted(rows), sorted(shape.sizes(width, 64, 8)), sorted(shares), (2, 4, 7, 8), (1, 2, 4), (2, 3, 4))
        return [Tile(*each) for each in itertools.product(*options)]
