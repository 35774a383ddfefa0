"""The weight's gradient of a convolution of few channels in 16 bits (weight_grad.cu).

Each pixel is loaded once for all taps, where products of gathered matrices load it once for each. With few channels,
loading is what takes the time.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from functools import cached_property

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import numbers_in
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.patch import shape
from genesis.backends.cuda.ops.conv.candidates.patch.candidate import WeightGradCandidate
from genesis.backends.cuda.ops.conv.candidates.patch.work import WeightGradWork
from genesis.backends.cuda.ops.conv.problem import ConvProblem

NAME = "patch_weight_grad"
_MOST_CHANNELS = 256  # of input or output
_MOST_SUMS = 128  # that a thread keeps


@dataclasses.dataclass(frozen=True)
class Tile:
    """A block's share of the gradient's pixels, and of the channels."""

    rows: int
    columns: int
    outputs: int
    inputs: int
    splits: int = 1  # warps that share the pixels
    blocks: int = 2  # of the grid, for each multiprocessor

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns} k{self.outputs} c{self.inputs} s{self.splits} b{self.blocks}"

    @classmethod
    def named(cls, name: str) -> Tile | None:
        """The tile that is written so.

        >>> Tile.named(str(Tile(4, 56, 32, 24, 2))) == Tile(4, 56, 32, 24, 2)
        True
        """
        numbers = numbers_in(name, r"(\d+)x(\d+) k(\d+) c(\d+) s(\d+) b(\d+)", 256)
        return cls(*numbers) if numbers else None


@dataclasses.dataclass(frozen=True)
class Work(WeightGradWork):
    tile: Tile

    def is_possible(self) -> bool:
        tile = self.tile
        limit = driver.get().properties(self.problem.device).max_shared_memory
        return (
            tile.rows % 2 == 0
            and tile.columns % 8 == 0
            and (tile.outputs % 8 == 0 or tile.outputs == self.problem.weight_shape[0])
            and (tile.inputs % 8 == 0 or tile.inputs == self.problem.weight_shape[1])
            and self.chunks % tile.splits == 0
            and self.sums <= _MOST_SUMS
            and self.num_threads <= 512
            and self.num_threads * (self.sums + shape.OTHER_REGISTERS) <= shape.REGISTERS
            and self.shared_memory <= limit
        )

    @cached_property
    def _warps(self) -> tuple[int, int, int, int]:
        """(units of 16 outputs of a warp, warps beside each other; units of 8 inputs of a warp, warps)"""
        units = -(-self.tile.outputs // 16)
        warp_outputs = min(units, 2)
        most = max(1, _MOST_SUMS // (warp_outputs * self.problem.weight_shape[3] * 4))
        inputs = -(-self.tile.inputs // 8)
        warps_inputs = -(-inputs // most)
        return warp_outputs, -(-units // warp_outputs), -(-inputs // warps_inputs), warps_inputs

    @property
    def sums(self) -> int:
        """The sums of a thread."""
        warp_outputs, _, warp_inputs, _ = self._warps
        return warp_outputs * warp_inputs * self.problem.weight_shape[3] * 4

    @property
    def num_warps(self) -> int:
        """The warps of a split."""
        _, warps_outputs, _, warps_inputs = self._warps
        return self.problem.weight_shape[2] * warps_outputs * warps_inputs

    @property
    def num_threads(self) -> int:
        return 32 * self.num_warps * self.tile.splits

    @property
    def shared_memory(self) -> int:
        """Bytes."""
        others = self.num_warps * self.sums * 128 if self.tile.splits > 1 else 0
        return max(16 * self.units, others)

    @property
    def seconds(self) -> float:
        """A guess: the tensor cores', shared memory's and the copies' time, and memory's beside it."""
        p, taps = self.problem, self.problem.weight_shape[3]
        warp_outputs, _, warp_inputs, _ = self._warps
        of_chunk = self.chunks * self.num_warps
        products = of_chunk * warp_outputs * warp_inputs * taps
        lines = of_chunk * (4 * warp_outputs + 2 * warp_inputs * taps)
        resident = shape.resident(p, self.shared_memory, self.num_threads, self.sums, self.tile.blocks)
        if resident == 0:
            return math.inf
        work = self.num_tiles * self.num_slices * shape.clocks(lines, products, self.copies, resident)
        return self.slowest(work, self.num_threads, resident)

    @property
    def macros(self) -> dict[str, int]:
        warp_outputs, warps_outputs, warp_inputs, warps_inputs = self._warps
        return self.common_macros | {
            "DTYPE": programs.DTYPES.index(self.problem.dtype), "WARP_OUTPUTS": warp_outputs,
            "WARPS_OUTPUTS": warps_outputs, "WARP_INPUTS": warp_inputs, "WARPS_INPUTS": warps_inputs,
            "SPLITS": self.tile.splits,
        }  # fmt: skip


class PatchWeightGrad(WeightGradCandidate):
    kernel, tile_type, work_type = NAME, Tile, Work

    @classmethod
    def computes(cls, problem: ConvProblem) -> bool:
        is_small = max(problem.weight_shape[:2]) <= _MOST_CHANNELS
        return super().computes(problem) and is_small and shape.supports(problem)

    @classmethod
    def is_best_guess(cls, problem: ConvProblem) -> bool:
        return shape.is_best_guess(problem)

    @classmethod
    def tiles(cls, problem: ConvProblem) -> list[Tile]:
        outputs, inputs = (shape.shares(channels, 64) for channels in problem.weight_shape[:2])
        _, _, height, width = problem.output_shape
        rows = {min(n, -(-height // 2) * 2) for n in (2, 4, 8, 16)}
        options = (sorted(rows), sorted(shape.sizes(width, 64, 8)), outputs, inputs, (1, 2, 4), (1, 2, 3))
        return [Tile(*each) for each in itertools.product(*options)]
