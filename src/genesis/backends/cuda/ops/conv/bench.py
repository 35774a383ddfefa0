"""Operands for one convolution on the device, and how far a candidate's result on them is from float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from genesis import dtypes
from genesis.backends.cuda.engine.bench import Bench, Built
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.engine.replays import Operand
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.elementwise import launch as elementwise
from genesis.backends.cuda.ops.random import launch as random
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.memory import Storage
from genesis.dtypes import DType
from genesis.shapes import Shape, channels_last_strides, numel


def prepare_reference(problem: ConvProblem) -> None:
    """Compile what the first check of a result runs, so that it need not wait for that. From any thread."""
    exact = _in_float64(problem)
    families.reference(exact).prepare(exact)


def rehearsals(problem: ConvProblem) -> dict[str, Callable[[], object]]:
    """Return what a bench runs beside candidates, step by step: otherwise each waits for the last one's compiler."""
    p, wide = problem, dtypes.float64

    def blank(shape: Shape, dtype: DType) -> DeviceArray:
        return array.empty(shape, dtype, p.device, channels_last_strides(shape))

    def result() -> DeviceArray:
        return blank(p.result_shape, wide)

    return {
        f"random {p.dtype}": lambda: _random(p.first_shape, p.dtype, p.device, 1),
        f"scale {p.dtype}": lambda: elementwise.mul(blank(p.second_shape, p.dtype), 0.5),
        f"cast {p.dtype}": lambda: storage.cast(blank(p.result_shape, p.dtype), wide),
        "difference": lambda: elementwise.sub(result(), result()),
        "square": lambda: elementwise.mul(result(), result()),
        "sum": lambda: reduction.sum(result(), tuple(range(len(p.result_shape))), False),
    }


def _in_float64(problem: ConvProblem) -> ConvProblem:
    return dataclasses.replace(problem, dtype=dtypes.float64, precision="highest", alignment=16, statistics=False)


class ConvBench(Bench[ConvProblem]):
    """Random operands, and the float64 result once that is asked for."""

    def __init__(self, problem: ConvProblem) -> None:
        super().__init__(problem)
        p = problem
        self._first = _random(p.first_shape, p.dtype, p.device, 1)
        # As small as weights are: the sums are then about 1, whatever their length.
        self._second = _random(p.second_shape, p.dtype, p.device, 2)
        if p.direction != WEIGHT_GRAD:
            scale = 1 / math.sqrt(max(p.num_terms, 1))
            self._second = elementwise.mul(self._second, scale)
        self._bias = _random((p.result_shape[1],), p.dtype, p.device, 3) if p.bias else None
        self._residual = _random(p.result_shape, p.dtype, p.device, 4) if p.residual else None
        self._out = array.empty(p.result_shape, p.dtype, p.device, channels_last_strides(p.result_shape))
        self._expected: DeviceArray | None = None

    @property
    def operands(self) -> tuple[Operand, ...]:
        return tuple(map(Operand, (self._out, self._first, self._second, self._bias, self._residual)))

    def error(self, built: Built[ConvProblem]) -> float:
        """Its result's relative L2 distance from float64; infinite where one of them is not finite.

        Of statistics how far they are from those of the result, where that is more.
        """
        workspace = self.run_anew(built, self._out)
        expected = self._expected
        if expected is None:
            expected = self._expected = self._reference()
        distance = elementwise.sub(storage.cast(self._out, dtypes.float64), expected)
        relative = math.sqrt(_sum_of_squares(distance) / max(_sum_of_squares(expected), 1e-300))
        errors = [relative]
        if self.problem.statistics:
            errors.append(self._statistics_error(built.candidate, workspace))
        return max(errors) if all(map(math.isfinite, errors)) else math.inf

    def statistics_error(self, built: Built[ConvProblem]) -> float:
        """Error of its statistics alone."""
        return self._statistics_error(built.candidate, self.run_anew(built, self._out))

    def _statistics_error(self, candidate: Candidate[ConvProblem], workspace: Storage | None) -> float:
        """How far a channel's mean is off, in deviations, or its variance, relative; against the result as stored.

        Of values that hardly differ, what counts is how large they are.
        """
        p, parts = self.problem, candidate.parts(self.problem)
        num_rows, num_channels = numel(p.result_shape) // p.result_shape[1], p.result_shape[1]
        layout = array.layout_of((3, parts.number, num_channels), dtypes.float32, p.device)
        assert workspace is not None
        pivots, offsets, squares = storage.to_cpu(layout.on(workspace)).astype(np.float64)
        num_lines, num_programs = num_rows // parts.fold, parts.number // parts.fold
        blocks = np.arange(-(-num_lines // parts.rows))
        counts = np.bincount(
            blocks % num_programs, np.minimum(num_lines - blocks * parts.rows, parts.rows), minlength=num_programs
        ).repeat(parts.fold)[:, None]
        means = pivots + offsets
        mean = (means * counts).sum(0) / num_rows
        var = (squares + (means - mean) ** 2 * counts).sum(0) / num_rows
        stored = storage.cast(self._out, dtypes.float64)
        dims = (0, 2, 3)
        expected_mean, expected_var = (
            storage.to_cpu(found).reshape(-1).astype(np.float64, copy=False)
            for found in (reduction.mean(stored, dims, False), reduction.var(stored, dims, 0, False))
        )
        scale = np.maximum(expected_var, 2.0**-20 * expected_mean**2 + 1e-300)
        off = np.maximum(np.abs(mean - expected_mean) / np.sqrt(scale), np.abs(var - expected_var) / scale)
        return float(off.max())

    def _reference(self) -> DeviceArray:
        """The result in float64, by the plain kernel."""
        problem = _in_float64(self.problem)
        bench = ConvBench.__new__(ConvBench)
        bench.problem = problem
        for name in ("_first", "_second", "_bias", "_residual"):
            operand = getattr(self, name)
            setattr(bench, name, None if operand is None else storage.cast(operand, dtypes.float64))
        shape = problem.result_shape
        bench._out = array.empty(shape, dtypes.float64, problem.device, channels_last_strides(shape))
        reference = families.reference(problem)
        bench.run(Built(reference, reference.prepare(problem), reference.workspace(problem)))
        return bench._out


def _random(shape: Shape, dtype: DType, device: int, seed: int) -> DeviceArray:
    """Normal numbers; channels-last where there are four dimensions."""
    numbers = random.randn((numel(shape),), seed, dtype, device)
    return numbers.view(shape, channels_last_strides(shape) if len(shape) == 4 else (1,), 0)


def _sum_of_squares(x: DeviceArray) -> float:
    dims = tuple(range(len(x.shape)))
    return float(storage.to_cpu(reduction.sum(elementwise.mul(x, x), dims, False)))
