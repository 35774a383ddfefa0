"""3×3 convolutions of few channels on Hopper (halo_tile.cu): forward and input gradient.

A pixel is loaded once for all nine taps, which read it where it lies, so that the matrix instructions are the limit and
not what feeds them. Its channels are one or two slabs of 128 bytes: 64 or 128 in 16 bits, 32 or 64 in float32 where
rounding to 11 bits is allowed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import FULL, Candidate, Family, Launch, Parts, admissible
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.dtypes import DType
from genesis.shapes import numel

if TYPE_CHECKING:
    from genesis.backends.cuda.driver.tensor_maps import Box

_SOURCE = Path(__file__).with_suffix(".cu")
_OUTPUTS = 64  # of a tile
_SLAB = 128  # bytes
_TAPS = 3  # along an axis
_COLUMNS = 8  # of a tile
_THREADS = 384


@dataclasses.dataclass(frozen=True)
class Shape:
    """How the kernel is compiled: the macros of its source."""

    rows: int  # of a tile
    stages: int  # slabs' patches on the way
    slabs: int = 1  # of a pixel

    def cubin(self, dtype: DType, transposed: bool = False, statistics: bool = False) -> bytes:
        """transposed: the weight lies in memory with the results' channels innermost."""
        macros = {
            "BR": self.rows, "STAGES": self.stages, "SLABS": self.slabs, "TRANSPOSED_WEIGHT": int(transposed),
            "TF32": int(dtype is dtypes.float32), "KIND": '"bf16"' if dtype is dtypes.bfloat16 else '"f16"',
            "STATISTICS": int(statistics),
        }  # fmt: skip
        return hopper.cubin("conv_patch", _SOURCE, tuple(macros.items()))

    @property
    def patch(self) -> tuple[int, int]:
        """(height, width) of the pixels that a tile's taps meet."""
        return self.rows + _TAPS - 1, _COLUMNS + _TAPS - 1

    @property
    def shared_memory(self) -> int:
        weight = self.slabs * _TAPS**2 * _OUTPUTS * _SLAB
        return weight + self.stages * -(-numel(self.patch) * _SLAB // 1024) * 1024 + 1024  # at multiples of 1024


_SHAPES = (Shape(32, 3), Shape(28, 4), Shape(16, 6), Shape(28, 2, slabs=2), Shape(16, 3, slabs=2))


class HaloTileFamily(Family[ConvProblem]):
    prefix = "halo_tile"
    finds_statistics = True

    def variants(self, problem: ConvProblem) -> Iterable[Candidate[ConvProblem]]:
        choice = [HaloTile(shape, hopper.arithmetic(problem)) for shape in _SHAPES]
        return sorted(
            (candidate for candidate in choice if admissible(candidate, problem)),
            key=lambda candidate: candidate.estimate(problem),
        )


class HaloTile(Candidate[ConvProblem]):
    """One shape of the kernel."""

    def __init__(self, shape: Shape, arithmetic: str = FULL) -> None:
        """arithmetic: TF32 for float32, which it is rounded to."""
        self.shape, self.arithmetic = shape, arithmetic
        self.name = f"{HaloTileFamily.prefix}/{shape.rows}x{_COLUMNS} stages {shape.stages}"

    def supports(self, problem: ConvProblem) -> bool:
        p = problem
        return (
            p.direction in (FORWARD, INPUT_GRAD)
            and p.dtype in ((dtypes.float16, dtypes.bfloat16) if self.arithmetic == FULL else (dtypes.float32,))
            and p.weight_shape[2:] == (_TAPS, _TAPS)
            and p.stride == p.dilation == (1, 1)
            and p.groups == 1
            and p.first_shape[1] * p.dtype.itemsize == self.shape.slabs * _SLAB
            and p.result_shape[1] % _OUTPUTS == 0
            and p.alignment == 16
            and numel(p.first_shape) > 0
            and 0 < numel(p.result_shape) < 2**31
            and hopper.is_available(p.device)
            and _num_blocks(p) <= hopper.processors(p)
        )

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        if problem.statistics and self.arithmetic == FULL and self._has_whole_tiles(problem):
            return frozenset({"bias", "statistics"})
        return frozenset({"bias", "activation"})

    def _has_whole_tiles(self, problem: ConvProblem) -> bool:
        """Whether tiles are whole: parts of the statistics then have as many pixels as Parts says, if not the same."""
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
        """Programs that share the tiles of a block of 64 of the result's channels."""
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
        maps, geometry = self._geometry(p)
        num_addresses = 3 if p.dtype is dtypes.float32 else 2 if p.statistics else 1
        packed = hopper.geometry(_SOURCE).pack(**geometry)
        launch = kernel.prepare(self._num_programs(p) * _num_blocks(p), _THREADS, maps, num_addresses, packed)

        def run(stream: int, out: int, first: int, second: int, bias: int, _: int, workspace: int) -> None:
            launch(stream, first, second, out, *(bias, workspace)[:num_addresses])

        def run_tf32(stream: int, out: int, first: int, second: int, bias: int, _: int, workspace: int) -> None:
            launch(stream, first, second, bias, second, out)

        return run_tf32 if p.dtype is dtypes.float32 else run

    def _geometry(self, problem: ConvProblem) -> tuple[list[Box], dict[str, int]]:
        """(maps of the first operand, the weight and, in 16 bits, the result; the members of the kernel's Geometry)"""
        from genesis.backends.cuda.driver.tensor_maps import Box

        p = problem
        (images, inputs, height, width), (_, outputs, out_height, out_width) = p.first_shape, p.result_shape
        tf32, channels = p.dtype is dtypes.float32, _SLAB // p.dtype.itemsize
        pixels = Box(p.dtype, (images, height, width, inputs), (1, *self.shape.patch, channels), tf32)
        weight = Box(p.dtype, (p.weight_shape[0], _TAPS**2, p.weight_shape[1]), (_OUTPUTS, 1, channels), tf32)
        result = Box(p.dtype, (images, out_height, out_width, outputs), (1, self.shape.rows, _COLUMNS, _OUTPUTS))
        _, row_tiles, column_tiles = tiles = self._tiles(p)
        # The input's gradient meets the taps in reverse, the last one first.
        low_y, low_x = [-padding if p.direction == FORWARD else padding - (_TAPS - 1) for padding in p.padding]
        geometry = {
            "row_tiles": row_tiles, "column_tiles": column_tiles, "num_tiles": numel(tiles), "low_y": low_y,
            "low_x": low_x, "num_outputs": outputs, "relu": int(p.activation == "relu"), "height": out_height,
            "width": out_width,
        }  # fmt: skip
        return [pixels, weight] if tf32 else [pixels, weight, result], geometry


def _num_blocks(problem: ConvProblem) -> int:
    return problem.result_shape[1] // _OUTPUTS
