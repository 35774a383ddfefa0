"""The weight's gradient of a convolution of few channels in float32 (fma_weight_grad.cu); see fma_forward.py."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import numbers_in
from genesis.backends.cuda.ops.conv.candidates.patch import shape
from genesis.backends.cuda.ops.conv.candidates.patch.candidate import WeightGradCandidate, varied
from genesis.backends.cuda.ops.conv.candidates.patch.work import AnyTile, AnyWork, WeightGradWork
from genesis.backends.cuda.ops.conv.problem import ConvProblem
from genesis.shapes import Shape

NAME = "patch_fma_weight_grad"
_MOST_SUMS = 96  # that a thread keeps of a tile
_WHOLE, _MOST_TERMS = 28, 128  # that may be one chain of additions; of a part of more
_MOST_PARTS = 1 << 28  # bytes


@dataclasses.dataclass(frozen=True)
class Tile:
    """A block's share of the gradient's pixels and of the channels, and a thread's of these and of the taps."""

    rows: int
    columns: int
    outputs: int
    inputs: int
    thread_outputs: int
    thread_taps: int
    thread_inputs: int
    splits: int = 1  # threads that share the pixels
    blocks: int = 2  # of the grid, for each multiprocessor

    def __str__(self) -> str:
        thread = f"{self.thread_outputs}x{self.thread_taps}x{self.thread_inputs}"
        return f"{self.rows}x{self.columns} k{self.outputs} c{self.inputs} t{thread} s{self.splits} b{self.blocks}"

    @classmethod
    def named(cls, name: str) -> Tile | None:
        """The tile that is written so.

        >>> Tile.named(str(Tile(4, 56, 32, 24, 8, 3, 4, 2))) == Tile(4, 56, 32, 24, 8, 3, 4, 2)
        True
        """
        numbers = numbers_in(name, r"(\d+)x(\d+) k(\d+) c(\d+) t(\d+)x(\d+)x(\d+) s(\d+) b(\d+)", 1024)
        return cls(*numbers) if numbers else None


@dataclasses.dataclass(frozen=True)
class Work(WeightGradWork):
    tile: Tile

    def is_possible(self) -> bool:
        p, tile = self.problem, self.tile
        outputs, inputs, _, taps_x = p.weight_shape
        return (
            tile.thread_outputs % 4 == 0
            and (tile.thread_inputs % 4 == 0 or tile.thread_inputs == inputs < 4)
            and max(tile.thread_outputs, tile.thread_inputs) <= 16  # no more than SLACK beyond the last pixel
            and tile.thread_taps in (1, taps_x)
            and (tile.outputs % tile.thread_outputs == 0 or tile.outputs == outputs)
            and (tile.inputs % tile.thread_inputs == 0 or tile.inputs == inputs)
            and tile.columns % tile.splits == 0
            and self.chain <= max(_WHOLE, min(_MOST_TERMS, p.num_terms // 2))
            and self.sums <= _MOST_SUMS
            and self.num_threads <= 512
            and self.num_threads * (self.registers + shape.OTHER_REGISTERS) <= shape.REGISTERS
            and self.shared_memory <= driver.get().properties(p.device).max_shared_memory
            and self.workspace <= _MOST_PARTS
        )

    @property
    def chain(self) -> int:
        """Terms that a thread adds up one after the other, of a tile."""
        return min(self.tile.rows * self.tile.columns, self.problem.num_terms) // self.tile.splits

    @cached_property
    def sums(self) -> int:
        """The sums of a thread."""
        return self.tile.thread_outputs * self.tile.thread_taps * self.tile.thread_inputs

    @cached_property
    def registers(self) -> int:
        """Registers of a thread, for sums and what it reads."""
        return self.sums * (2 if self.iterations > 1 else 1) + self.tile.thread_outputs + self.tile.thread_inputs

    @cached_property
    def sharing(self) -> int:
        """Threads that share the results of a block."""
        taps = math.prod(self.problem.weight_shape[2:]) // self.tile.thread_taps
        outputs = -(-self.tile.outputs // self.tile.thread_outputs)
        return taps * outputs * -(-self.tile.inputs // self.tile.thread_inputs)

    @cached_property
    def num_threads(self) -> int:
        return -(-self.sharing * self.tile.splits // 32) * 32

    @cached_property
    def shared_memory(self) -> int:
        """Bytes."""
        return max(16 * self.units, 4 * self.sharing * self.sums if self.tile.splits > 1 else 0)

    @property
    def read_shape(self) -> Shape:
        return shape.in_a_row(self.problem, self.problem.input_shape)

    @property
    def images_shape(self) -> Shape:
        return shape.in_a_row(self.problem, self.problem.output_shape)

    @property
    def seconds(self) -> float:
        """A guess: the multiply-adds', shared memory's and the copies' time, and memory's beside it."""
        tile, sharing = self.tile, self.sharing
        pixels = tile.rows * tile.columns
        loads = tile.thread_outputs / 4 + tile.thread_taps * -(-tile.thread_inputs // 4)
        products = pixels * sharing * (self.sums + loads) / 128
        lines = pixels * sharing / 32 * loads * 2
        resident = shape.resident(self.problem, self.shared_memory, self.num_threads, self.registers, tile.blocks)
        if resident == 0:
            return math.inf
        work = self.num_tiles * self.num_slices * shape.clocks(lines, products, self.copies, resident)
        work += self.grid * (tile.splits - 1) * sharing * self.sums / 32
        return self.slowest(work, self.num_threads, resident)

    @property
    def macros(self) -> dict[str, int]:
        tile = self.tile
        return self.common_macros | {
            "THREAD_OUTPUTS": tile.thread_outputs, "THREAD_TAPS": tile.thread_taps, "THREAD_INPUTS": tile.thread_inputs,
            "SPLITS": tile.splits, "NUM_THREADS": self.num_threads,
        }  # fmt: skip


class PatchFmaWeightGrad(WeightGradCandidate):
    kernel, tile_type, work_type = NAME, Tile, Work

    @classmethod
    def computes(cls, problem: ConvProblem) -> bool:
        return super().computes(problem) and shape.supports_float32(problem)

    @classmethod
    def is_best_guess(cls, problem: ConvProblem) -> bool:
        """Is the kernel ahead of all others, as measured on an H100?"""
        outputs, inputs, *taps = problem.weight_shape
        return outputs * inputs <= (3500 if math.prod(taps) == 1 else 650) and math.prod(taps) <= 25

    @classmethod
    def tiles(cls, problem: ConvProblem) -> Iterator[Tile]:
        outputs, inputs, _, taps_x = problem.weight_shape
        inputs_of_thread = [4, 8] if inputs >= 4 else [inputs]
        blocks = itertools.product(
            shape.areas(problem, problem.output_shape), shape.shares(outputs, 96), shape.shares(inputs, 96)
        )
        for (rows, columns), of_outputs, of_inputs in blocks:
            threads = itertools.product((4, 8), {1, taps_x}, inputs_of_thread, (1, 2, 4, 8, 16), (1, 2, 3))
            for thread in threads:
                yield Tile(rows, columns, of_outputs, of_inputs, *thread)

    @classmethod
    def chosen(cls, ranked: Sequence[AnyWork]) -> list[AnyTile]:
        return varied(ranked, by_grid=False)
