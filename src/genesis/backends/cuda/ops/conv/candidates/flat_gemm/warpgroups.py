"""1×1 convolutions in 16 bits of odd channels on Hopper (warpgroups.cu): forward and input gradient, larger weights.

Heads of 85, 91 or 255 classes: their weight fits a multiprocessor's shared memory, too, but warps that work by
themselves (candidate.py) are bound by their products, and by a bank of shared memory that all pixels begin in.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, Candidate, Family, Launch, admissible, numbers_in
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.flat_gemm.shape import (
    has_odd_channels,
    is_product_in_16_bits,
    num_pixels,
)
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.problem import INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

_COLUMNS = (64, 128, 192, 256)  # that the kernel has
_PIXELS, _UNIT = 64, 8  # the most pixels of a tile; of so many each, all begin at multiples of 16 bytes
_MOST_REGISTERS = 200  # with more, the compiler makes products wait for one another
_MOST_STAGES, _MOST_SLICES = 6, 8
_LEAST_WEIGHTS = 1 << 12  # of fewer, warps by themselves are faster
_LEAST_PIXELS = 1 << 10


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the kernel is compiled."""

    columns: int  # results of a block
    groups: int  # warpgroups
    stages: int  # tiles that are on their way
    outs: int  # tiles of results in shared memory

    def __str__(self) -> str:
        return f"{_PIXELS}x{self.columns} g{self.groups} s{self.stages} o{self.outs}"

    @classmethod
    def named(cls, name: str) -> Shape | None:
        """The shape that is written so.

        >>> Shape.named(str(Shape(256, 2, 3, 1)))
        Shape(columns=256, groups=2, stages=3, outs=1)
        """
        numbers = numbers_in(name, rf"{_PIXELS}x(\d+) g(\d+) s(\d+) o(\d+)", 256)
        return cls(*numbers) if numbers else None

    def is_possible(self, problem: ConvProblem) -> bool:
        """Has the kernel such a shape, and does it fit a multiprocessor?"""
        results = problem.result_shape[1]
        return (
            self.columns in _COLUMNS
            and self.groups in (1, 2)
            and self.groups <= self.stages <= _MOST_STAGES
            and self.outs in (1, self.groups)
            and self.fits_registers(problem)
            and (results <= self.columns or (results % self.columns == 0 and results <= _MOST_SLICES * self.columns))
            and self.shared_memory(problem) <= driver.get().properties(problem.device).max_shared_memory
        )

    def fits_registers(self, problem: ConvProblem) -> bool:
        """Have a thread's sums and terms room?"""
        return self.columns // 2 + -(-problem.first_shape[1] // 16) * 4 <= _MOST_REGISTERS

    def shared_memory(self, problem: ConvProblem) -> int:
        """Bytes: gap, weight, tiles, bias and barriers."""
        terms, results = problem.first_shape[1], min(problem.result_shape[1], self.columns)
        rows, columns = (-(-terms // 16) * 16, self.columns) if _is_transposed(problem) else (self.columns, terms)
        tiles = _PIXELS * 2 * (self.stages * terms + self.outs * results)
        barriers = (math.lcm(self.stages, self.groups) + 1 + -(-terms // 64)) * 8
        return 1024 + rows * -(-columns // 64) * 128 + tiles + self.columns * 4 + barriers

    def slices(self, problem: ConvProblem) -> int:
        return -(-problem.result_shape[1] // self.columns)

    def workers(self, problem: ConvProblem) -> int:
        """Blocks that share the pixels."""
        at_once = max(1, hopper.processors(problem) // self.slices(problem))
        return min(at_once, -(-num_pixels(problem) // _PIXELS))

    def tile_pixels(self, problem: ConvProblem) -> int:
        """Pixels of a tile: as few as give no block more tiles than it would have of whole ones."""
        workers, pixels = self.workers(problem), num_pixels(problem)
        turns = -(-pixels // (workers * _PIXELS))
        return -(-pixels // (workers * turns * _UNIT)) * _UNIT

    def macros(self, problem: ConvProblem) -> dict[str, int]:
        p = problem
        return {
            "DTYPE": programs.DTYPES.index(p.dtype), "DEPTH": p.first_shape[1], "RESULTS": p.result_shape[1],
            "COLUMNS": self.columns, "TRANSPOSED_WEIGHT": int(_is_transposed(p)), "GROUPS": self.groups,
            "STAGES": self.stages, "OUTS": self.outs, "BIAS": int(p.bias), "RELU": int(p.activation == "relu"),
        }  # fmt: skip


class WarpgroupsFamily(Family[ConvProblem]):
    prefix = "flat_gemm_warpgroups"

    def variants(self, problem: ConvProblem) -> Iterator[Candidate[ConvProblem]]:
        if not (_supports(problem) and has_odd_channels(problem)) or num_pixels(problem) < _LEAST_PIXELS:
            return
        if numel(problem.weight_shape) >= _LEAST_WEIGHTS:
            yield from (each for each in map(Warpgroups, _promising(problem)) if admissible(each, problem))

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        shape = Shape.named(name.removeprefix(f"{self.prefix}/"))
        return None if shape is None else Warpgroups(shape)


class Warpgroups(Candidate[ConvProblem]):
    """One shape of the kernel."""

    arithmetic = FULL

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.name = f"{WarpgroupsFamily.prefix}/{shape}"

    def supports(self, problem: ConvProblem) -> bool:
        return _supports(problem) and self.shape.is_possible(problem)

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return frozenset({"bias", "activation"})

    def prepare(self, problem: ConvProblem) -> Launch:
        p, shape = problem, self.shape
        ready = programs.prepare(
            p.device, "flat_gemm_warpgroups", shape.macros(p), shape.workers(p) * shape.slices(p), 128 * shape.groups,
            shape.shared_memory(p), 4, num_pixels=num_pixels(p), tile_pixels=shape.tile_pixels(p),
        )  # fmt: skip

        def run(stream: int, out: int, first: int, weight: int, bias: int, residual: int, workspace: int) -> None:
            ready(stream, first, weight, out, bias)

        return run


def _promising(problem: ConvProblem) -> list[Shape]:
    """Shapes worth trying: as few slices as possible, or twice as many, and as many tiles as there is room for."""
    wide = [columns for columns in _COLUMNS if columns >= problem.result_shape[1]][:1]
    whole = [columns for columns in reversed(_COLUMNS) if problem.result_shape[1] % columns == 0][:2]
    found = []
    for columns, groups in itertools.product(dict.fromkeys((*wide, *whole)), (2, 1)):
        tiles = itertools.product(range(_MOST_STAGES, 0, -1), (groups, 1))
        shapes = (Shape(columns, groups, stages, outs) for stages, outs in tiles)
        found += list(itertools.islice((shape for shape in shapes if shape.is_possible(problem)), 1))
    return found


def _is_transposed(problem: ConvProblem) -> bool:
    return problem.direction == INPUT_GRAD


def _supports(problem: ConvProblem) -> bool:
    p = problem
    return is_product_in_16_bits(p) and p.direction != WEIGHT_GRAD and hopper.is_available(p.device)
