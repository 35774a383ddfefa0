"""The weight's gradient of a convolution of few channels in 16 bits (weight_grad.cu).

Each pixel is loaded once for all taps, where products of gathered matrices load it once for each. With few channels,
loading is what takes the time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from functools import cached_property

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, Candidate, Family, Launch, admissible, numbers_in
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.patch import shape
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.shapes import Shape, numel

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
class Work(shape.AnyWork):
    """A tile of a problem: what it needs, and how much of it there is."""

    problem: ConvProblem
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

    @cached_property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of the input's pixels."""
        return shape.patch_of(self.problem, self.tile.rows, self.tile.columns, self.problem.stride)

    @property
    def shared_memory(self) -> int:
        """Bytes."""
        pixels, patch = self.tile.rows * self.tile.columns, math.prod(self.patch)
        of_pixel, of_input = (shape.pitch(self.problem, n) for n in (self.tile.outputs, self.tile.inputs))
        units = pixels * of_pixel + patch * of_input + 2 * shape.SLACK
        others = self.num_warps * self.sums * 128 if self.tile.splits > 1 else 0
        return max(16 * units, others)

    @property
    def slices(self) -> tuple[int, int]:
        """Blocks side by side that have all outputs, and all inputs."""
        outputs, inputs = self.problem.weight_shape[:2]
        return -(-outputs // self.tile.outputs), -(-inputs // self.tile.inputs)

    @property
    def images_shape(self) -> Shape:
        return self.problem.output_shape

    @property
    def num_slices(self) -> int:
        return math.prod(self.slices)

    @property
    def granules(self) -> tuple[int, int]:
        """Bytes that are copied at once: of the gradient, of the input."""
        outputs, inputs = self.problem.weight_shape[:2]
        found = [
            shape.granule(self.problem, *each) for each in ((outputs, self.tile.outputs), (inputs, self.tile.inputs))
        ]
        return found[0], found[1]

    @property
    def seconds(self) -> float:
        """A guess: the tensor cores', shared memory's and the copies' time, and memory's beside it."""
        p, tile = self.problem, self.tile
        warp_outputs, _, warp_inputs, _ = self._warps
        pixels, patch = tile.rows * tile.columns, math.prod(self.patch)
        of_chunk = self.chunks * self.num_warps
        products = of_chunk * warp_outputs * warp_inputs * p.weight_shape[3]
        lines = of_chunk * (4 * warp_outputs + 2 * warp_inputs * p.weight_shape[3])
        copied = pixels * tile.outputs * 2 / self.granules[0] + patch * tile.inputs * 2 / self.granules[1]
        resident = shape.resident(p, self.shared_memory, self.num_threads, self.sums, tile.blocks)
        if resident == 0:
            return math.inf
        work = self.num_tiles * self.num_slices * shape.clocks(lines, products, copied, resident)
        compute = work / shape.CLOCK / shape.busy(p, self.grid, self.num_threads, resident)
        halo = (pixels * tile.outputs + patch * tile.inputs) / (pixels * (tile.outputs + tile.inputs))
        joined = 8 * self.parts * numel(p.weight_shape) / shape.JOINED_PER_SECOND
        return max(compute, p.bytes * halo / shape.BYTES_PER_SECOND) + joined + 3e-6

    @property
    def macros(self) -> dict[str, int]:
        p, tile = self.problem, self.tile
        warp_outputs, warps_outputs, warp_inputs, warps_inputs = self._warps
        grad_granule, input_granule = self.granules
        return {
            "DTYPE": programs.DTYPES.index(p.dtype), "OUTPUTS": p.weight_shape[0], "INPUTS": p.weight_shape[1],
            "BLOCK_OUTPUTS": tile.outputs, "BLOCK_INPUTS": tile.inputs, "TILE_Y": tile.rows, "TILE_X": tile.columns,
            "WARP_OUTPUTS": warp_outputs, "WARPS_OUTPUTS": warps_outputs, "WARP_INPUTS": warp_inputs,
            "WARPS_INPUTS": warps_inputs, "SPLITS": tile.splits, "TAPS_Y": p.weight_shape[2],
            "TAPS_X": p.weight_shape[3], "STRIDE_Y": p.stride[0], "STRIDE_X": p.stride[1], "PADDING_Y": p.padding[0],
            "PADDING_X": p.padding[1], "DILATION_Y": p.dilation[0], "DILATION_X": p.dilation[1],
            "GRAD_GRANULE": grad_granule, "INPUT_GRANULE": input_granule,
        }  # fmt: skip


class PatchWeightGradFamily(Family[ConvProblem]):
    prefix = NAME

    def variants(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        return self.trials(problem) if shape.is_best_guess(problem) else ()

    def trials(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        if not _supports(problem):
            return ()
        found = [PatchWeightGrad(tile) for tile in _promising(problem)]
        return [candidate for candidate in found if admissible(candidate, problem)]

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        tile = Tile.named(name.removeprefix(f"{self.prefix}/"))
        return None if tile is None else PatchWeightGrad(tile)


class PatchWeightGrad(Candidate[ConvProblem]):
    """One tile of the kernel."""

    arithmetic = FULL

    def __init__(self, tile: Tile) -> None:
        self.tile = tile
        self.name = f"{NAME}/{tile}"

    def supports(self, problem: ConvProblem) -> bool:
        return _supports(problem) and Work(problem, self.tile).is_possible()

    def workspace(self, problem: ConvProblem) -> int:
        return Work(problem, self.tile).parts * numel(problem.weight_shape) * 4

    def program(self, problem: ConvProblem) -> tuple[str, dict[str, int]]:
        """The kernel's name, and what it is compiled with."""
        return NAME, Work(problem, self.tile).macros

    def prepare(self, problem: ConvProblem) -> Launch:
        p, work = problem, Work(problem, self.tile)
        name, macros = self.program(p)
        _, bands, strips = work.cover
        slices_outputs, slices_inputs = work.slices
        ready = programs.prepare(
            p.device, name, macros, work.grid, work.num_threads, work.shared_memory, 3,
            slices_outputs=slices_outputs, slices_inputs=slices_inputs, iterations=work.iterations,
            num_units=work.num_tiles, strips=strips, bands=bands, height=p.input_shape[2],
            width=p.input_shape[3], out_height=p.output_shape[2], out_width=p.output_shape[3],
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
        (dataclasses.replace(work.tile, blocks=work.grid), work.tile, work.tile.rows * work.tile.columns)
        for work in ranked
    )


driver.forget_on_switch(_promising.cache_clear)


def _tiles(problem: ConvProblem) -> list[Tile]:
    """All that might be worth trying."""
    outputs, inputs, *_ = problem.weight_shape
    _, _, height, width = problem.output_shape
    rows = {min(n, -(-height // 2) * 2) for n in (2, 4, 8, 16)}
    return [
        Tile(*each)
        for each in itertools.product(
            sorted(rows), sorted(shape.sizes(width, 64, 8)), _shares(outputs), _shares(inputs), (1, 2, 4), (1, 2, 3)
        )
    ]


def _shares(channels: int) -> list[int]:
    """Channels of a block: all of them, if they are few, or a multiple of eight."""
    return sorted({*(n for n in (32, 64) if n < channels), *([channels] if channels <= 64 else [])})


def _supports(problem: ConvProblem) -> bool:
    outputs, inputs = problem.weight_shape[:2]
    return problem.direction == WEIGHT_GRAD and max(outputs, inputs) <= _MOST_CHANNELS and shape.supports(problem)
