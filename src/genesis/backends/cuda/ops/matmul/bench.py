"""Operands for one matrix product on the device, and how far a candidate's result on them is from float64."""

from __future__ import annotations

import dataclasses
import math

from genesis import dtypes
from genesis.backends.cuda.engine.bench import Bench, Built
from genesis.backends.cuda.engine.replays import Operand
from genesis.backends.cuda.ops.elementwise import launch as elementwise
from genesis.backends.cuda.ops.matmul.candidates import reference
from genesis.backends.cuda.ops.matmul.problem import MatmulProblem
from genesis.backends.cuda.ops.random import launch as random
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.shapes import Shape


def prepare_reference(problem: MatmulProblem) -> None:
    exact = _exact(problem)
    reference(exact).prepare(exact)


def _exact(problem: MatmulProblem) -> MatmulProblem:
    """In float64; integers wrap around, and are exact as they are."""
    if not problem.dtype.is_floating_point:
        return problem
    return dataclasses.replace(problem, dtype=dtypes.float64, precision="highest", alignment=16)


class MatmulBench(Bench[MatmulProblem]):
    """Random operands in the problem's layouts, and the exact result once that is asked for."""

    def __init__(self, problem: MatmulProblem) -> None:
        super().__init__(problem)
        p = problem
        x_shape, y_shape = (*p.batch_shape, p.rows, p.terms), (*p.batch_shape, p.terms, p.columns)
        self._x, self._x_start = self._drawn(x_shape, (*p.x_batch_strides, *p.x_strides), 1)
        self._y, self._y_start = self._drawn(y_shape, (*p.y_batch_strides, *p.y_strides), 2)
        if p.dtype.is_floating_point:  # the sums are then about 1, whatever their length
            self._y = elementwise.mul(self._y, 1 / math.sqrt(max(p.terms, 1)))
        self._bias = self._drawn((p.columns,), (1,), 3)[0] if p.has_bias else None
        self._out = array.empty((p.num_results,), p.dtype, p.device)
        self._expected: DeviceArray | None = None

    def _drawn(self, shape: Shape, strides: Shape, seed: int) -> tuple[DeviceArray, int]:
        """All memory that such strides reach, and in bytes where the first element lies."""
        steps = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size > 0]
        before, after = -sum(step for step in steps if step < 0), sum(step for step in steps if step > 0)
        dtype, device = self.problem.dtype, self.problem.device
        drawn = random.randn((before + after + 1,), seed, dtype if dtype.is_floating_point else dtypes.float32, device)
        if not dtype.is_floating_point:
            drawn = storage.cast(elementwise.mul(elementwise.abs(drawn), 16.0), dtype)
        return drawn, before * dtype.itemsize

    @property
    def operands(self) -> tuple[Operand, ...]:
        x, y = Operand(self._x, self._x_start), Operand(self._y, self._y_start)
        return Operand(self._out), x, y, Operand(self._bias), Operand(None)

    def error(self, built: Built[MatmulProblem]) -> float:
        """Its result's relative L2 distance from the exact one; of integers, infinite if any differs."""
        self.run_anew(built, self._out)
        if self._expected is None:
            self._expected = self._reference()
        exact = self._expected
        if not self.problem.dtype.is_floating_point:
            return math.inf if storage.to_cpu(elementwise.ne(self._out, exact)).any() else 0.0
        squares = _sum_of_squares(elementwise.sub(storage.cast(self._out, dtypes.float64), exact))
        error = math.sqrt(squares / max(_sum_of_squares(exact), 1e-300))
        return error if math.isfinite(error) else math.inf

    def _reference(self) -> DeviceArray:
        problem = _exact(self.problem)
        bench = MatmulBench.__new__(MatmulBench)
        bench.problem = problem
        scale = problem.dtype.itemsize // self.problem.dtype.itemsize
        bench._x, bench._y = (storage.cast(each, problem.dtype) for each in (self._x, self._y))
        bench._x_start, bench._y_start = self._x_start * scale, self._y_start * scale
        bench._bias = None if self._bias is None else storage.cast(self._bias, problem.dtype)
        bench._out = array.empty((problem.num_results,), problem.dtype, problem.device)
        candidate = reference(problem)
        bench.run(Built(candidate, candidate.prepare(problem), 0))
        return bench._out


def _sum_of_squares(x: DeviceArray) -> float:
    return float(storage.to_cpu(reduction.sum(elementwise.mul(x, x), (0,), False)))
