"""Depthwise convolution with stride 1 in 16 bits on tensor cores (toeplitz.cu): forward and input gradient.

From 5×5 taps on, multiply-adds take longer than memory; as products with Toeplitz matrices they don't.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine.candidate import FULL, PLAIN, Candidate, Family, Launch, admissible, numbers_in
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.depthwise.shape import Work, promising
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.shapes import numel

NAME = "depthwise_toeplitz"
_MOST_TAPS = (31, 9)  # (rows, columns)
_LEAST_TAPS = 5  # in a row, for a guess
_NUM_SHAPES = 10  # worth trying
_SHIFTS = 22
_RESERVED = 1 << 10  # bytes of shared memory that a block takes for itself
_CLOCK, _BYTES_PER_SECOND = 1.3e9, 2.9e12  # of a large GPU; some clocks are lost


@dataclasses.dataclass(frozen=True)
class Patch:
    """A block's share of an image."""

    tiles_x: int  # of a warp, 16 columns × 8 rows
    tiles_y: int
    warps_x: int
    warps_y: int
    groups: int  # of eight channels, a warp each
    blocks: int = 8  # of the grid, for each multiprocessor

    @property
    def sizes(self) -> tuple[int, int]:
        """(rows, columns)"""
        return 8 * self.tiles_y * self.warps_y, 16 * self.tiles_x * self.warps_x

    @property
    def num_threads(self) -> int:
        return 32 * self.warps_x * self.warps_y * self.groups

    def shared_memory(self, tap_rows: int) -> int:
        """Bytes."""
        rows, columns = self.sizes
        pixel = (self.groups + 2) // 4 * 4 + 1
        return (rows + tap_rows - 1) * ((columns + 8) * pixel | 1) * 16 + self.groups * 8 * tap_rows * _SHIFTS * 4

    def __str__(self) -> str:
        tiles, warps = f"{self.tiles_x}x{self.tiles_y}", f"{self.warps_x}x{self.warps_y}"
        return f"{tiles} w{warps} g{self.groups} b{self.blocks}"

    @classmethod
    def named(cls, name: str) -> Patch | None:
        """The patch that is written so.

        >>> Patch.named(str(Patch(2, 1, 1, 1, 4))) == Patch(2, 1, 1, 1, 4)
        True
        """
        numbers = numbers_in(name, r"(\d+)x(\d+) w(\d+)x(\d+) g(\d+) b(\d+)", 64)
        return cls(*numbers) if numbers else None


_PATCHES = [
    Patch(*tiles, warps_x, warps_y, groups, blocks)
    for tiles in ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (4, 1))
    for warps_x in (1, 2)
    for warps_y in (1, 2, 4, 7)
    for groups in (1, 2, 3, 4, 6, 8)
    for blocks in (4, 12)
    if 4 <= warps_x * warps_y * groups <= 16
]


class ToeplitzFamily(Family[ConvProblem]):
    prefix = NAME

    def variants(self, problem: ConvProblem) -> Sequence[Candidate[ConvProblem]]:
        """Without being measured, those with many taps only, and if nothing speaks for multiply-adds."""
        if not problem.is_depthwise or problem.weight_shape[3] < _LEAST_TAPS:
            return ()
        found, others = self.trials(problem), promising(problem, 1)
        return found if found and found[0].seconds(problem) < Work(problem, others[0]).seconds else ()

    def trials(self, problem: ConvProblem) -> Sequence[Toeplitz]:
        if not _supports(problem):
            return ()
        found = (Toeplitz(patch) for patch in _PATCHES)
        ranked = sorted((c for c in found if admissible(c, problem)), key=lambda c: c.seconds(problem))
        by_launch = {
            (c.patch.tiles_x, c.patch.tiles_y, *c.patch.sizes, c.patch.groups, c.grid(problem)): c
            for c in reversed(ranked)
        }
        return list(reversed(by_launch.values()))[:_NUM_SHAPES]

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        patch = Patch.named(name.removeprefix(f"{self.prefix}/"))
        return None if patch is None else Toeplitz(patch)


class Toeplitz(Candidate[ConvProblem]):
    """One patch of the kernel."""

    arithmetic = FULL

    def __init__(self, patch: Patch) -> None:
        self.patch = patch
        self.name = f"{ToeplitzFamily.prefix}/{patch}"

    def supports(self, problem: ConvProblem) -> bool:
        limit = driver.get().properties(problem.device).max_shared_memory
        return (
            _supports(problem)
            and self.patch.num_threads <= 512
            and self.patch.shared_memory(problem.weight_shape[2]) <= limit
        )

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return PLAIN

    def _cover(self, problem: ConvProblem) -> tuple[int, int, int, int]:
        """(slices of the channels, images, bands, strips)"""
        images, channels, *sizes = problem.result_shape
        bands, strips = (-(-size // step) for size, step in zip(sizes, self.patch.sizes, strict=True))
        return -(-channels // (8 * self.patch.groups)), images, bands, strips

    def _iterations(self, problem: ConvProblem) -> int:
        """Patches of a block."""
        slices, *units = self._cover(problem)
        processors = driver.get().properties(problem.device).multiprocessor_count
        return -(-math.prod(units) // max(1, self.patch.blocks * processors // slices))

    def grid(self, problem: ConvProblem) -> int:
        slices, *units = self._cover(problem)
        return slices * -(-math.prod(units) // self._iterations(problem))

    def seconds(self, problem: ConvProblem) -> float:
        """A guess: shared memory's, the instructions' and memory's time, of which some is at the same time."""
        p, patch, device = problem, self.patch, driver.get().properties(problem.device)
        (rows, columns), (taps, _) = patch.sizes, p.weight_shape[2:]
        slices, *units = self._cover(p)
        num_patches, warps = slices * math.prod(units), patch.num_threads // 32
        tiles = patch.tiles_x * patch.tiles_y
        loaded = (rows + taps - 1) * (columns + 8) * patch.groups  # of 16 bytes
        lines = 4 * (4 * patch.tiles_x + 2) * patch.tiles_y + 16  # of 128 bytes, of a warp, for a row of taps
        shared = warps * (taps * lines + 32 * tiles) + loaded / 8
        issued = warps * (taps * (16 + 30 * tiles + lines / 4) + 60 * tiles) + loaded / 32 * 25
        registers = min(255, 48 + 32 * tiles + 16 * patch.tiles_x + 24)
        resident = min(
            device.max_shared_memory // (patch.shared_memory(taps) + _RESERVED),
            65536 // (patch.num_threads * registers),
        )
        if resident == 0:
            return math.inf
        processors = max(1, device.multiprocessor_count)
        busy = min(1.0, self.grid(p) / processors) * min(1.0, resident * warps / 12)
        prologue = self.grid(p) * (patch.groups * 8 * taps / 32 * 60 / 4 + 1500 / resident)
        compute = (num_patches * max(shared, issued / 4) + prologue) / processors / _CLOCK / busy
        halo = loaded / (rows * columns * patch.groups)
        traffic = p.bytes / _BYTES_PER_SECOND * (0.8 + 0.2 * halo) * (1 + 0.4 / resident)
        return max(compute, traffic) + 0.4 * min(compute, traffic)

    def prepare(self, problem: ConvProblem) -> Launch:
        p, patch = problem, self.patch
        slices, images, bands, strips = self._cover(p)
        name, macros = self.program(p)
        ready = programs.prepare(
            p.device, name, macros, self.grid(p), patch.num_threads, patch.shared_memory(p.weight_shape[2]), 5,
            slices=slices, iterations=self._iterations(p), num_units=images * bands * strips, strips=strips,
            bands=bands,
            height=p.first_shape[2], width=p.first_shape[3], out_height=p.result_shape[2], out_width=p.result_shape[3],
        )  # fmt: skip

        def run(stream: int, out: int, first: int, weight: int, bias: int, residual: int, workspace: int) -> None:
            ready(stream, first, weight, out, bias, residual)

        return run

    def program(self, problem: ConvProblem) -> tuple[str, dict[str, int]]:
        """The kernel's name, and what it is compiled with."""
        p, patch = problem, self.patch
        return NAME, {
            "DTYPE": programs.DTYPES.index(p.dtype), "INPUT_GRAD": int(p.direction == INPUT_GRAD),
            "TAPS_Y": p.weight_shape[2], "TAPS_X": p.weight_shape[3], "PADDING_Y": p.padding[0],
            "PADDING_X": p.padding[1], "TILES_X": patch.tiles_x, "TILES_Y": patch.tiles_y, "WARPS_X": patch.warps_x,
            "WARPS_Y": patch.warps_y,
            "GROUPS": patch.groups, "CHANNELS": p.input_shape[1], "BIAS": int(p.bias), "RESIDUAL": int(p.residual),
            "RELU": int(p.activation == "relu"),
        }  # fmt: skip


def _supports(problem: ConvProblem) -> bool:
    p = problem
    return (
        p.is_depthwise
        and p.direction in (FORWARD, INPUT_GRAD)
        and p.dtype in (dtypes.float16, dtypes.bfloat16)
        and p.weight_shape[0] == p.groups
        and p.groups % 8 == 0
        and p.stride == p.dilation == (1, 1)
        and all(taps <= most for taps, most in zip(p.weight_shape[2:], _MOST_TAPS, strict=True))
        and p.alignment == 16
        and all(0 < numel(shape) < 2**31 for shape in (p.input_shape, p.output_shape))
        and programs.is_available(p.device)
    )
