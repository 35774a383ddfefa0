"""3×3 convolutions of 64 channels in 16 bits on Hopper (native/conv_patch.cu): forward and input gradient.

A pixel is loaded once for all nine taps, which read it where it lies, so that the matrix instructions are the limit and
not what feeds them.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterable
from typing import Any

from genesis import dtypes
from genesis.backends.cuda.conv import hopper
from genesis.backends.cuda.conv.candidate import Candidate, Family, Launch, Parts
from genesis.backends.cuda.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.dtypes import DType
from genesis.shapes import numel

_CHANNELS = 64  # of the first operand, and of a tile of the result
_TAPS = 3  # along an axis
_COLUMNS = 8  # of a tile
_THREADS = 384


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the kernel is compiled: the macros of its source."""

    rows: int  # of a tile
    stages: int

    def cubin(self, dtype: DType, transposed: bool = False, statistics: bool = False) -> bytes:
        """transposed: the weight lies in memory with the results' channels innermost."""
        macros = {
            "BR": self.rows, "STAGES": self.stages, "TRANSPOSED_WEIGHT": int(transposed),
            "KIND": '"bf16"' if dtype is dtypes.bfloat16 else '"f16"', "STATISTICS": int(statistics),
        }  # fmt: skip
        return hopper.cubin("conv_patch", tuple(macros.items()))

    @property
    def box(self) -> tuple[int, int, int, int]:
        """The pixels that a tile's taps meet: (1, height, width, channels)."""
        return (1, self.rows + _TAPS - 1, _COLUMNS + _TAPS - 1, _CHANNELS)

    @property
    def shared_memory(self) -> int:
        weight = 2 * _CHANNELS * _TAPS**2 * _CHANNELS
        return weight + self.stages * -(-2 * numel(self.box) // 1024) * 1024 + 1024  # all begin at multiples of 1024


_SHAPES = (Shape(32, 3), Shape(28, 4), Shape(16, 6))


class PatchFamily(Family):
    prefix = "patch"

    def variants(self, problem: ConvProblem) -> Iterable[Candidate]:
        choice = [Patch(shape) for shape in _SHAPES]
        return sorted(
            (candidate for candidate in choice if candidate.supports(problem)),
            key=lambda candidate: candidate.estimate(problem),
        )


class Patch(Candidate):
    """One shape of the kernel."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.name = f"{PatchFamily.prefix}/{shape.rows}x{_COLUMNS} stages {shape.stages}"

    def supports(self, problem: ConvProblem) -> bool:
        p = problem
        if p.statistics and (p.activation is not None or not self._has_whole_tiles(p)):
            return False
        return (
            p.direction in (FORWARD, INPUT_GRAD)
            and p.dtype in (dtypes.float16, dtypes.bfloat16)
            and p.weight_shape[2:] == (_TAPS, _TAPS)
            and p.stride == p.dilation == (1, 1)
            and p.groups == 1
            and p.first_shape[1] == _CHANNELS
            and p.result_shape[1] % _CHANNELS == 0
            and p.alignment == 16
            and not p.residual
            and numel(p.first_shape) > 0
            and 0 < numel(p.result_shape) < 2**31
            and hopper.is_available(p.device)
            and _num_blocks(p) <= hopper.processors(p)
        )

    def _has_whole_tiles(self, problem: ConvProblem) -> bool:
        """So that parts of the statistics have as many pixels as Parts says, if not the same ones."""
        height, width = problem.result_shape[2:]
        return height % self.shape.rows == 0 and width % _COLUMNS == 0

    def estimate(self, problem: ConvProblem) -> float:
        """A guess at the time, in the products of a row of a tile."""
        num_tiles = numel(self._tiles(problem)) * _num_blocks(problem)
        rounds = -(-num_tiles // hopper.processors(problem))
        return rounds * (self.shape.rows + 2) + self.shape.rows  # nothing is multiplied while the last tile is written

    def _tiles(self, problem: ConvProblem) -> tuple[int, int, int]:
        """(images, of an image's rows, of its columns)"""
        images, _, height, width = problem.result_shape
        return images, -(-height // self.shape.rows), -(-width // _COLUMNS)

    def _num_programs(self, problem: ConvProblem) -> int:
        """Those that share the tiles of a block of 64 of the result's channels."""
        return min(numel(self._tiles(problem)), hopper.processors(problem) // _num_blocks(problem))

    def parts(self, problem: ConvProblem) -> Parts:
        """One of each program."""
        return Parts(self._num_programs(problem), self.shape.rows * _COLUMNS)

    def workspace(self, problem: ConvProblem) -> int:
        return self.parts(problem).num_bytes(problem.result_shape[1]) if problem.statistics else 0

    def prepare(self, problem: ConvProblem) -> Launch:
        from genesis.backends.cuda.driver.tensor_maps import MapKernel

        p = problem
        cubin = self.shape.cubin(p.dtype, p.direction == INPUT_GRAD, p.statistics)
        kernel = MapKernel(p.device, "conv_patch", cubin, self.shape.shared_memory)
        num_addresses = 2 if p.statistics else 1
        maps, structure = self._geometry(p)
        launch = kernel.prepare(self._num_programs(p) * _num_blocks(p), _THREADS, maps, num_addresses, structure)

        def run(stream: int, out: int, first: int, second: int, bias: int, _: int, workspace: int) -> None:
            launch(stream, first, second, out, *(bias, workspace)[:num_addresses])

        return run

    def _geometry(self, problem: ConvProblem) -> tuple[tuple[Any, Any, Any], bytes]:
        """(maps of the first operand, the weight and the result; the kernel's structure Geometry)"""
        from genesis.backends.cuda.driver.tensor_maps import Box

        p = problem
        (images, inputs, height, width), (_, outputs, out_height, out_width) = p.first_shape, p.result_shape
        pixels = Box(p.dtype, (images, height, width, inputs), self.shape.box)
        result = Box(p.dtype, (images, out_height, out_width, outputs), (1, self.shape.rows, _COLUMNS, _CHANNELS))
        weight = Box(p.dtype, (p.weight_shape[0], _TAPS**2, p.weight_shape[1]), (_CHANNELS, 1, _CHANNELS))
        _, row_tiles, column_tiles = tiles = self._tiles(p)
        # The input's gradient meets the taps in reverse, the last one first.
        low = [-padding if p.direction == FORWARD else padding - (_TAPS - 1) for padding in p.padding]
        structure = struct.pack(
            "<7i", row_tiles, column_tiles, numel(tiles), *low, outputs, int(p.activation == "relu")
        )  # fmt: skip
        return (pixels, weight, result), structure


def _num_blocks(problem: ConvProblem) -> int:
    return problem.result_shape[1] // _CHANNELS
