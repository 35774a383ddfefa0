"""Channels that are no multiple of 16 bytes: rows are copied with zeros behind them, and results without theirs.

The copy engine takes no such rows, and the libraries' kernels for them take two or four bytes at a time. The copies
cost less than that, but for few channels (patch/, flat_gemm/).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator

from genesis import dtypes
from genesis.backends.cuda.driver import AddressLaunch
from genesis.backends.cuda.engine.candidate import Candidate, Family, Launch, admissible
from genesis.backends.cuda.launch.binding import Pointer, bind
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.ops.conv.candidates.padded.kernels import _cut_kernel, _pad_kernel
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.shapes import numel

PREFIX = "padded"
_LEAST_CHANNELS = 16
_MANY_WEIGHTS, _MANY_WEIGHTS_FLOAT32, _MANY_PIXELS = 1 << 14, 1 << 12, 1 << 10  # of the guess: of fewer, others lead
_TILE, _MOST_COLUMNS = 4096, 256  # of a copy
_MOST_ELEMENTS = (1 << 31) - (1 << 20)  # of activations
_RESULT = 4  # among _matrices()


def pad(problem: ConvProblem) -> ConvProblem | None:
    """The same problem with channels that are multiples of 16 bytes; None: they are already, or few, or of groups.

    Example:
        >>> head = ConvProblem("forward", (8, 256, 80, 80), (255, 256, 1, 1), bias=True, dtype=genesis.bfloat16)
        >>> pad(head).weight_shape, pad(head).input_shape
        ((256, 256, 1, 1), (8, 256, 80, 80))
    """
    p = problem
    outputs, inputs, *taps = p.weight_shape
    unit = 16 // p.dtype.itemsize
    wide_outputs, wide_inputs = (-(-channels // unit) * unit for channels in (outputs, inputs))
    is_wide = (wide_outputs, wide_inputs) == (outputs, inputs)
    if is_wide or p.groups > 1 or min(outputs, inputs) < _LEAST_CHANNELS or p.dtype is dtypes.float64 or p.statistics:
        return None
    images, _, *sizes = p.input_shape
    wide = dataclasses.replace(
        p, input_shape=(images, wide_inputs, *sizes), weight_shape=(wide_outputs, wide_inputs, *taps)
    )
    return wide if all(numel(each) < _MOST_ELEMENTS for each in (wide.input_shape, wide.output_shape)) else None


class PaddedFamily(Family[ConvProblem]):
    """The candidates of a family for the padded problem."""

    def __init__(self, inner: Family[ConvProblem]) -> None:
        self._inner = inner
        self.prefix, self.per_turn = f"{PREFIX}/{inner.prefix}", inner.per_turn

    def variants(self, problem: ConvProblem) -> Iterable[Candidate[ConvProblem]]:
        return self._around(problem, self._inner.variants) if _is_best_guess(problem) else ()

    def trials(self, problem: ConvProblem) -> Iterable[Candidate[ConvProblem]]:
        return self._around(problem, self._inner.trials)

    def _around(
        self, problem: ConvProblem, choice: Callable[[ConvProblem], Iterable[Candidate[ConvProblem]]]
    ) -> Iterator[Candidate[ConvProblem]]:
        wide = pad(problem)
        if wide is not None:
            yield from (each for each in map(Padded, choice(wide)) if admissible(each, problem))

    def named(self, problem: ConvProblem, name: str) -> Candidate[ConvProblem] | None:
        wide = pad(problem)
        inner = None if wide is None else self._inner.named(wide, name.removeprefix(f"{PREFIX}/"))
        return None if inner is None else Padded(inner)


class Padded(Candidate[ConvProblem]):
    """A candidate for the padded problem, between copies."""

    def __init__(self, inner: Candidate[ConvProblem]) -> None:
        self._inner, self.name = inner, f"{PREFIX}/{inner.name}"
        self.arithmetic, self.deterministic = inner.arithmetic, inner.deterministic
        self.builds_slowly = inner.builds_slowly

    def supports(self, problem: ConvProblem) -> bool:
        wide = pad(problem)
        return wide is not None and admissible(self._inner, wide)

    def fuses(self, problem: ConvProblem) -> frozenset[str]:
        return self._inner.fuses(_padded(problem))

    def workspace(self, problem: ConvProblem) -> int:
        return self._places(problem)[-1]

    def _places(self, problem: ConvProblem) -> list[int]:
        """Offsets in the workspace, behind the inner candidate's, of the copies of _matrices(); and the end."""
        wide = _padded(problem)
        sizes = [
            0 if narrow == wider else math.prod(wider) * problem.dtype.itemsize
            for narrow, wider in zip(_matrices(problem), _matrices(wide), strict=True)
        ]
        return list(itertools.accumulate(-(-size // 256) * 256 for size in (self._inner.workspace(wide), *sizes)))

    def prepare(self, problem: ConvProblem) -> Launch:
        wide = _padded(problem)
        compute = self._inner.prepare(wide)
        narrow, wider, places = _matrices(problem), _matrices(wide), self._places(problem)
        changed = [i for i in range(len(narrow)) if narrow[i] != wider[i]]
        pads = [(i, places[i], _padder(problem, narrow[i], wider[i])) for i in changed if i != _RESULT]
        cut = _cutter(problem, narrow[_RESULT], wider[_RESULT]) if _RESULT in changed else None

        def run(stream: int, out: int, first: int, second: int, bias: int, residual: int, workspace: int) -> None:
            operands = [first, second, bias, residual]
            for i, place, copy in pads:
                copy(stream, workspace + place, operands[i])
                operands[i] = workspace + place
            target = out if cut is None else workspace + places[_RESULT]
            compute(stream, target, operands[0], operands[1], operands[2], operands[3], workspace)
            if cut is not None:
                cut(stream, out, target)

        return run


def _is_best_guess(problem: ConvProblem) -> bool:
    """Are kernels that copy nothing far behind? Where the weight is large, and the pixels are many."""
    images, _, *sizes = problem.output_shape
    many = _MANY_WEIGHTS_FLOAT32 if problem.dtype is dtypes.float32 else _MANY_WEIGHTS
    return numel(problem.weight_shape) > many and images * math.prod(sizes) >= _MANY_PIXELS


def _padded(problem: ConvProblem) -> ConvProblem:
    found = pad(problem)
    assert found is not None
    return found


def _matrices(problem: ConvProblem) -> list[tuple[int, int]]:
    """Rows and channels of first, second, bias, residual and result, as they lie in memory."""
    p = problem
    outputs, inputs, *taps = p.weight_shape
    weight = (outputs * math.prod(taps), inputs)
    input, output = ((shape[0] * shape[2] * shape[3], shape[1]) for shape in (p.input_shape, p.output_shape))
    first, second, result = {
        FORWARD: (input, weight, output), INPUT_GRAD: (output, weight, input), WEIGHT_GRAD: (output, input, weight)
    }[p.direction]  # fmt: skip
    none = (0, 0)
    return [first, second, (1, result[1]) if p.bias else none, result if p.residual else none, result]


def _padder(problem: ConvProblem, narrow: tuple[int, int], wide: tuple[int, int]) -> AddressLaunch:
    """run(stream, wide, narrow)"""
    dtype, (grid, rows, columns) = problem.dtype, _tiles(*wide)
    return bind(
        _pad_kernel, problem.device, grid, Pointer(dtype), Pointer(dtype, problem.alignment), narrow[0], wide[0],
        CHANNELS=narrow[1], WIDE=wide[1], ROWS=rows, COLUMNS=columns,
    )  # fmt: skip


def _cutter(problem: ConvProblem, narrow: tuple[int, int], wide: tuple[int, int]) -> AddressLaunch:
    """run(stream, narrow, wide)"""
    dtype, (grid, rows, columns) = problem.dtype, _tiles(*narrow)
    return bind(
        _cut_kernel, problem.device, grid, Pointer(dtype, problem.alignment), Pointer(dtype), narrow[0],
        CHANNELS=narrow[1], WIDE=wide[1], ROWS=rows, COLUMNS=columns,
    )  # fmt: skip


def _tiles(rows: int, channels: int) -> tuple[tuple[int, int], int, int]:
    """The grid, and rows and columns of a program's tile."""
    columns = min(power_of_2(channels), _MOST_COLUMNS)
    of_tile = _TILE // columns
    return (-(-rows // of_tile), -(-channels // columns)), of_tile, columns
