"""The weight's gradient of a convolution of few channels in float32 (fma_weight_grad.cu); see fma_forward.py."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, Candidate, Family, Launch, admissible, numbers_in
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.patch import shape
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.shapes import Shape, numel

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
class Work(shape.AnyWork):
    """A tile of a problem: what it needs, and how much of it there is."""

    problem: ConvProblem
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

    @property
    def sums(self) -> int:
        """The sums of a thread."""
        return self.tile.thread_outputs * self.tile.thread_taps * self.tile.thread_inputs

    @property
    def registers(self) -> int:
        """Registers of a thread, for sums and what it reads."""
        return self.sums * (2 if self.iterations > 1 else 1) + self.tile.thread_outputs + self.tile.thread_inputs

    @property
    def units(self) -> int:
        """Threads that share the results of a block."""
        taps = math.prod(self.problem.weight_shape[2:]) // self.tile.thread_taps
        outputs = -(-self.tile.outputs // self.tile.thread_outputs)
        return taps * outputs * -(-self.tile.inputs // self.tile.thread_inputs)

    @property
    def num_threads(self) -> int:
        return -(-self.units * self.tile.splits // 32) * 32

    @cached_property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of the input's pixels."""
        return shape.patch_of(self.problem, self.tile.rows, self.tile.columns, self.problem.stride)

    @property
    def shared_memory(self) -> int:
        """Bytes."""
        of_pixel, of_input = (shape.pitch(self.problem, n) for n in (self.tile.outputs, self.tile.inputs))
        pixels = self.tile.rows * self.tile.columns
        units = pixels * of_pixel + math.prod(self.patch) * of_input + 2 * shape.SLACK
        return max(16 * units, 4 * self.units * self.sums if self.tile.splits > 1 else 0)

    @property
    def workspace(self) -> int:
        """Bytes."""
        return self.parts * numel(self.problem.weight_shape) * 4

    @property
    def slices(self) -> tuple[int, int]:
        """Blocks side by side that have all outputs, and all inputs."""
        outputs, inputs = self.problem.weight_shape[:2]
        return -(-outputs // self.tile.outputs), -(-inputs // self.tile.inputs)

    @property
    def num_slices(self) -> int:
        return math.prod(self.slices)

    @property
    def images_shape(self) -> Shape:
        return shape.in_a_row(self.problem, self.problem.output_shape)

    @property
    def granules(self) -> tuple[int, int]:
        """Bytes that are copied at once: of the gradient, of the input."""
        (outputs, inputs, *_), tile = self.problem.weight_shape, self.tile
        of_pixel, of_input = (
            shape.granule(self.problem, *each) for each in ((outputs, tile.outputs), (inputs, tile.inputs))
        )
        return of_pixel, of_input

    @property
    def seconds(self) -> float:
        """A guess: the multiply-adds', shared memory's and the copies' time, and memory's beside it."""
        p, tile = self.problem, self.tile
        pixels, patch = tile.rows * tile.columns, math.prod(self.patch)
        loads = tile.thread_outputs / 4 + tile.thread_taps * -(-tile.thread_inputs // 4)
        products = pixels * self.units * (self.sums + loads) / 128
        lines = pixels * self.units / 32 * loads * 2
        copied = pixels * tile.outputs * 4 / self.granules[0] + patch * tile.inputs * 4 / self.granules[1]
        resident = shape.resident(p, self.shared_memory, self.num_threads, self.registers, tile.blocks)
        if resident == 0:
            return math.inf
        work = self.num_tiles * self.num_slices * shape.clocks(lines, products, copied, resident)
        work += self.grid * (tile.splits - 1) * self.units * self.sums / 32
        compute = work / shape.CLOCK / shape.busy(p, self.grid, self.num_threads, resident)
        halo = (pixels * tile.outputs + patch * tile.inputs) / (pixels * (tile.outputs + tile.inputs))
        joined = 8 * self.parts * numel(p.weight_shape) / shape.JOINED_PER_SECOND
        return max(compute, p.bytes * halo / shape.BYTES_PER_SECOND) + joined + 3e-6

    @property
    def macros(self) -> dict[str, int]:
        p, tile = self.problem, self.tile
        of_pixel, of_input = self.granules
        return {
            "OUTPUTS": p.weight_shape[0], "INPUTS": p.weight_shape[1], "BLOCK_OUTPUTS": tile.outputs,
            "BLOCK_INPUTS": tile.inputs, "TILE_Y": tile.rows, "TILE_X": tile.columns,
            "THREAD_OUTPUTS": tile.thread_outputs, "THREAD_TAPS": tile.thread_taps, "THREAD_INPUTS": tile.thread_inputs,
            "SPLITS": tile.splits, "NUM_THREADS": self.num_threads, "TAPS_Y": p.weight_shape[2],
            "TAPS_X": p.weight_shape[3], "STRIDE_Y": p.stride[0], "STRIDE_X": p.stride[1], "PADDING_Y": p.padding[0],
            "PADDING_X": p.padding[1], "DILATION_Y": p.dilation[0], "DILATION_X": p.dilation[1],
            "GRAD_GRANULE": of_pixel, "INPUT_GRANULE": of_input,
        }  # fmt: skip


class PatchFmaWeightGradFamily(Family[ConvProblem]):
    prefix = NAME

    def variants(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        return self.trials(problem) if _is_best_guess(problem) else ()

    def trials(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        if not _supports(problem):
            return ()
        found = [PatchFmaWeightGrad(tile) for tile in _promising(problem)]
        return [candidate for candidate in found if admissible(candidate, problem)]

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        tile = Tile.named(name.removeprefix(f"{self.prefix}/"))
        return None if tile is None else PatchFmaWeightGrad(tile)


class PatchFmaWeightGrad(Candidate[ConvProblem]):
    """One tile of the kernel."""

    arithmetic = FULL

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.name = f"{NAME}/{tile}"

    def supports(self, problem: ConvProblem) -> bool:
        return _supports(problem) and Work(problem, self.tile).is_possible()

    def workspace(self, problem: ConvProblem) -> int:
        return Work(problem, self.tile).workspace

    def program(self, problem: ConvProblem) -> tuple[str, dict[str, int]]:
        """The kernel's name, and what it is compiled with."""
        return NAME, Work(problem, self.tile).macros

    def prepare(self, problem: ConvProblem) -> Launch:
        p, work = problem, Work(problem, self.tile)
        name, macros = self.program(p)
        (_, bands, strips), (slices_outputs, slices_inputs) = work.cover, work.slices
        _, _, height, width = shape.in_a_row(p, p.input_shape)
        _, _, out_height, out_width = work.images_shape
        ready = programs.prepare(
            p.device, name, macros, work.grid, work.num_threads, work.shared_memory, 3,
            slices_outputs=slices_outputs, slices_inputs=slices_inputs, iterations=work.iterations,
            num_units=work.num_tiles, strips=strips, bands=bands, height=height, width=width, out_height=out_height,
            out_width=out_width,
        )  # fmt: skip
        finish = finisher(p, work.parts)

        def run(stream: int, out: int, grad: int, x: int, _: int, __: int, workspace: int) -> None:
            ready(stream, grad, x, workspace)
            finish(stream, out, workspace, 0, 0)

        return run


@functools.lru_cache(maxsize=1024)
def _promising(problem: ConvProblem) -> list[Tile]:
    works = (Work(problem, tile) for tile in _tiles(problem))
    ranked = sorted((work for work in works if work.is_possible()), key=lambda work: work.seconds)
    return shape.varied(
        (dataclasses.replace(work.tile, blocks=0), work.tile, work.tile.rows * work.tile.columns) for work in ranked
    )


driver.forget_on_switch(_promising.cache_clear)


def _tiles(problem: ConvProblem) -> Iterator[Tile]:
    """All that might be worth trying."""
    outputs, inputs, _, taps_x = problem.weight_shape
    inputs_of_thread = [4, 8] if inputs >= 4 else [inputs]
    for (rows, columns), k, c in itertools.product(shape.areas(problem), _shares(outputs), _shares(inputs)):
        threads = itertools.product((4, 8), {1, taps_x}, inputs_of_thread, (1, 2, 4, 8, 16), (1, 2, 3))
        for of_outputs, of_taps, of_inputs, splits, blocks in threads:
            yield Tile(rows, columns, k, c, of_outputs, of_taps, of_inputs, splits, blocks)


def _shares(channels: int) -> list[int]:
    """Channels of a block: all of them, if they are few, or a multiple of eight."""
    return sorted({*(n for n in (32, 64) if n < channels), *([channels] if channels <= 96 else [])})


def _supports(problem: ConvProblem) -> bool:
    return problem.direction == WEIGHT_GRAD and shape.supports_float32(problem)


def _is_best_guess(problem: ConvProblem) -> bool:
    """Is it ahead of all other kernels, as measured on an H100?"""
    outputs, inputs, *taps = problem.weight_shape
    return outputs * inputs <= (3500 if math.prod(taps) == 1 else 650) and math.prod(taps) <= 25
