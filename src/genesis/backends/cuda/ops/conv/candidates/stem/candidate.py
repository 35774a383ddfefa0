"""A network's first convolution on Hopper in 16 bits (forward.cu, weight_grad.cu): an image with a few channels.

Its windows overlap, and each output has few terms: what counts is that the image is read and the result written once,
at the memory's speed.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from genesis import dtypes
from genesis.backends.cuda.driver import AddressLaunch
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch, Parts, admissible, numbers_in
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.candidates.stem.units import COLUMNS, Units
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem
from genesis.dtypes import DType
from genesis.shapes import numel

_FOLDER = Path(__file__).parent
_OUTPUTS = 64  # of a tile
_CONSUMERS, _THREADS = 2, 384
_ROWS = (32, 28, 24, 16)
_MOST_MEMORY = 224 << 10  # bytes of shared memory, beside barriers and the sums of statistics
_ALIGNMENT = 1024  # of tiles in it
_FAR = 1 << 30  # bytes, less than which the rows of a patch lie apart: units.cuh
_MOST_SUMS = 160  # of a thread
_ROWS_OF_TAPS = (3, 4, 5, 7)  # that a product of the weight's gradient takes: wgmma.cuh
_LONGEST_CHAIN = 1 << 16  # terms: see wgmma/weight_grad.py
_WAITED = 4  # rows of a tile: what a tile costs beside its products


class StemFamily(Family[ConvProblem]):
    prefix = "stem"
    finds_statistics = True

    def variants(self, problem: ConvProblem) -> Iterable[Candidate[ConvProblem]]:
        kind = _KINDS.get(problem.direction)
        choice = [kind(rows) for rows in _ROWS] if kind is not None else []
        return sorted(
            (candidate for candidate in choice if admissible(candidate, problem)),
            key=lambda candidate: candidate.estimate(problem),
        )

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        kind, numbers = _KINDS.get(problem.direction), numbers_in(name, rf"{self.prefix}/(\d+)x{COLUMNS}", max(_ROWS))
        return kind(*numbers) if kind is not None and numbers and numbers[0] in _ROWS else None


class _Stem(Candidate[ConvProblem], abc.ABC):
    """Tiles of so many rows by eight columns."""

    direction: ClassVar[str]
    kernel: ClassVar[str]
    source: ClassVar[Path]

    def __init__(self, rows: int) -> None:
        self.rows, self.name = rows, f"{StemFamily.prefix}/{rows}x{COLUMNS}"

    def supports(self, problem: ConvProblem) -> bool:
        p, units = problem, Units.of(problem)
        return (
            units is not None
            and p.direction == self.direction
            and p.dtype in (dtypes.float16, dtypes.bfloat16)
            and p.groups == 1
            and p.dilation == (1, 1)
            and p.weight_shape[2:] != (1, 1)
            and p.weight_shape[0] % 8 == 0
            and p.alignment == 16
            and 0 < numel(p.input_shape) < 2**31
            and 0 < numel(p.output_shape) < 2**31
            and units.patch_rows(self.rows) * p.input_shape[1] * p.input_shape[3] * 2 < _FAR
            and hopper.is_available(p.device)
            and _num_blocks(p) <= hopper.processors(p)
            and self.fits(units)
        )

    @abc.abstractmethod
    def shared_memory(self, units: Units) -> int:
        """Bytes."""

    def fits(self, units: Units) -> bool:
        """Has a multiprocessor enough memory for it?"""
        return self.shared_memory(units) <= _MOST_MEMORY

    def estimate(self, problem: ConvProblem) -> float:
        """A guess at the time, in rows of a tile."""
        return -(-_num_tiles(problem, self.rows) // self.programs(problem)) * (self.rows + _WAITED)

    def programs(self, problem: ConvProblem) -> int:
        """Programs that share the tiles of 64 outputs."""
        return min(_num_tiles(problem, self.rows), hopper.processors(problem) // _num_blocks(problem))

    def cubin(self, units: Units, dtype: DType, statistics: bool = False) -> bytes:
        macros = {
            **units.macros, "BR": self.rows, "STATISTICS": int(statistics),
            "KIND": '"bf16"' if dtype is dtypes.bfloat16 else '"f16"',
        }  # fmt: skip
        return hopper.cubin(self.kernel, self.source, tuple(macros.items()))

    def geometry(self, problem: ConvProblem) -> dict[str, int]:
        """The members of the kernel's Geometry."""
        images, _, height, width = problem.input_shape
        row_tiles, column_tiles = _tiles_of_an_image(problem, self.rows)
        return {
            "row_tiles": row_tiles, "column_tiles": column_tiles, "num_tiles": _num_tiles(problem, self.rows),
            "height": height, "width": width, "padding_y": problem.padding[0], "padding_x": problem.padding[1],
            "num_images": images, "num_outputs": problem.weight_shape[0],
        }  # fmt: skip

    def prepare_kernel(self, problem: ConvProblem, num_addresses: int) -> AddressLaunch:
        """run(stream, the convolution's result or its gradient, so many addresses more)"""
        from genesis.backends.cuda.driver.tensor_maps import Box, MapKernel

        p, units = problem, Units.of(problem)
        assert units is not None
        images, outputs, height, width = p.output_shape
        results = Box(p.dtype, (images, height, width, outputs), (1, self.rows, COLUMNS, _OUTPUTS))
        cubin, shared = self.cubin(units, p.dtype, p.statistics), self.shared_memory(units)
        kernel = MapKernel(p.device, self.kernel, cubin, shared)
        packed = hopper.geometry(self.source).pack(**self.geometry(p))
        return kernel.prepare(self.programs(p) * _num_blocks(p), _THREADS, [results], num_addresses, packed)


class StemForward(_Stem):
    direction, kernel, source = FORWARD, "conv_stem", _FOLDER / "forward.cu"

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        if problem.statistics and self._has_whole_tiles(problem):
            return frozenset({"bias", "statistics"})
        return frozenset({"bias", "activation"})

    def _has_whole_tiles(self, problem: ConvProblem) -> bool:
        """Whether tiles are whole: parts of the statistics then have as many pixels as Parts says, if not the same."""
        height, width = problem.output_shape[2:]
        return height % self.rows == 0 and width % COLUMNS == 0

    def geometry(self, problem: ConvProblem) -> dict[str, int]:
        return {**super().geometry(problem), "relu": int(problem.activation == "relu")}

    def shared_memory(self, units: Units) -> int:
        weight = -(-units.taps[0] * units.paired_chunks // 2) * 2 * _OUTPUTS * 16
        tiles = _CONSUMERS * self.rows * COLUMNS * _OUTPUTS * 2
        return tiles + weight + _CONSUMERS * units.patch_bytes(self.rows) + units.raw_bytes(self.rows) + _ALIGNMENT

    def parts(self, problem: ConvProblem) -> Parts:
        return Parts(self.programs(problem), self.rows * COLUMNS)

    def workspace(self, problem: ConvProblem) -> int:
        return self.parts(problem).num_bytes(problem.weight_shape[0]) if problem.statistics else 0

    def prepare(self, problem: ConvProblem) -> Launch:
        num_addresses = 4 if problem.statistics else 3
        launch = self.prepare_kernel(problem, num_addresses)

        def run(stream: int, out: int, input: int, weight: int, bias: int, _: int, workspace: int) -> None:
            launch(stream, out, *(input, weight, bias, workspace)[:num_addresses])

        return run


class StemWeightGrad(_Stem):
    direction, kernel, source = WEIGHT_GRAD, "conv_stem_weight_grad", _FOLDER / "weight_grad.cu"

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return frozenset()

    def fits(self, units: Units) -> bool:
        return super().fits(units) and units.taps[0] in _ROWS_OF_TAPS and self._num_sums(units) <= _MOST_SUMS

    def _num_sums(self, units: Units) -> int:
        """Sums that a thread keeps."""
        return units.row_chunks * 4 * units.taps[0]

    def shared_memory(self, units: Units) -> int:
        stage = self.rows * COLUMNS * _OUTPUTS * 2 + units.patch_bytes(self.rows)
        loaded = _CONSUMERS * stage + units.raw_bytes(self.rows)
        return max(loaded, self._num_sums(units) * 128 * 4) + _ALIGNMENT

    def programs(self, problem: ConvProblem) -> int:
        """Return more than that where chains of sums would be long: a program has two."""
        least = -(-problem.num_terms // (2 * _LONGEST_CHAIN))
        return min(_num_tiles(problem, self.rows), max(super().programs(problem), least))

    def workspace(self, problem: ConvProblem) -> int:
        return self.programs(problem) * 4 * numel(problem.weight_shape)

    def prepare(self, problem: ConvProblem) -> Launch:
        launch = self.prepare_kernel(problem, 2)
        finish = finisher(problem, self.programs(problem))

        def run(stream: int, out: int, grad: int, input: int, _: int, __: int, workspace: int) -> None:
            launch(stream, grad, input, workspace)
            finish(stream, out, workspace, 0, 0)

        return run


_KINDS: dict[str, type[StemForward | StemWeightGrad]] = {FORWARD: StemForward, WEIGHT_GRAD: StemWeightGrad}


def _num_blocks(problem: ConvProblem) -> int:
    """Blocks of 64 outputs."""
    return -(-problem.weight_shape[0] // _OUTPUTS)


def _tiles_of_an_image(problem: ConvProblem, rows: int) -> tuple[int, int]:
    """(along its rows, along its columns)"""
    height, width = problem.output_shape[2:]
    return -(-height // rows), -(-width // COLUMNS)


def _num_tiles(problem: ConvProblem, rows: int) -> int:
    return problem.output_shape[0] * numel(_tiles_of_an_image(problem, rows))
