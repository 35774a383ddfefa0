"""Operands for one problem on the device: how long a candidate takes on them, and how far its result is from float64.

Operands are random. The device's caches are overwritten before each run, so that what is measured is a convolution
whose operands come from memory.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from typing import NamedTuple

import numpy as np

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine.candidate import Candidate, Launch
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.elementwise import launch as elementwise
from genesis.backends.cuda.ops.random import launch as random
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array, memory, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.memory import Storage
from genesis.dtypes import DType
from genesis.shapes import Shape, channels_last_strides, numel

# Bytes, more than any cache of a device holds, and how often they are written: meanwhile the run gets into the queue.
_FLUSHED, _FLUSHES = 128 << 20, 2
_MOST_RUNS = 12
_LONG_ENOUGH = 10.0  # milliseconds for the runs of one candidate
_HOPELESS = 2.0  # times the best: measured once is enough
_IDLE, _WAKING = 0.1, 0.03  # seconds: after so long without work a device may be slow, for about so long


class Built(NamedTuple):
    """A candidate that is ready to run."""

    candidate: Candidate
    launch: Launch
    workspace: int  # bytes


def build(candidate: Candidate, problem: ConvProblem, workspace_limit: int) -> Built | None:
    """None: it cannot be built, or wants more scratch memory than that. From any thread."""
    try:
        num_bytes = candidate.workspace(problem)
        return Built(candidate, candidate.prepare(problem), num_bytes) if num_bytes <= workspace_limit else None
    except KernelError:
        return None


def prepare_reference(problem: ConvProblem) -> None:
    """Compile what the first check of a result runs, so that it need not wait for that. From any thread."""
    exact = _in_float64(problem)
    families.reference(exact).prepare(exact)


def _in_float64(problem: ConvProblem) -> ConvProblem:
    return dataclasses.replace(problem, dtype=dtypes.float64, precision="highest", alignment=16, statistics=False)


class Bench:
    """Operands for one problem, and the float64 result once that is asked for."""

    def __init__(self, problem: ConvProblem) -> None:
        p = self._problem = problem
        self._first = _random(p.first_shape, p.dtype, p.device, 1)
        # As small as weights are: the sums are then about 1, whatever their length.
        self._second = _random(p.second_shape, p.dtype, p.device, 2)
        if p.direction != WEIGHT_GRAD:
            scale = 1 / math.sqrt(max(p.num_terms, 1))
            self._second = elementwise.mul(self._second, scale)
        self._bias = _random((p.result_shape[1],), p.dtype, p.device, 3) if p.bias else None
        self._residual = _random(p.result_shape, p.dtype, p.device, 4) if p.residual else None
        self._out = array.empty(p.result_shape, p.dtype, p.device, channels_last_strides(p.result_shape))
        self._flushed = None if driver.get().name == "simulated" else array.empty((_FLUSHED,), dtypes.uint8, p.device)
        self._expected: DeviceArray | None = None
        self._worked = -math.inf  # when the device last had work of ours

    def milliseconds(self, built: Built, best: float) -> float | None:
        """The median of a few runs; one run where it takes much longer than best. None: the device refuses it."""
        here, device, stream = driver.get(), self._problem.device, streams.current_handle(self._problem.device)
        start, end = here.create_event(device, True), here.create_event(device, True)
        times: list[float] = []
        try:
            self._wake(stream)
            self._run(built)
            here.synchronize_stream(device, stream)
            while len(times) < _MOST_RUNS and sum(times) < _LONG_ENOUGH and not (times and times[0] > _HOPELESS * best):
                for _ in range(_FLUSHES if self._flushed is not None else 0):
                    self._flush(stream)
                here.record_event(device, start, stream)
                self._run(built)
                here.record_event(device, end, stream)
                here.synchronize_event(device, end)
                times.append(here.elapsed_ms(device, start, end))
        except KernelError:
            return None
        finally:
            here.destroy_event(start)
            here.destroy_event(end)
            self._worked = time.monotonic()
        return statistics.median(times)

    def _wake(self, stream: int) -> None:
        """Give the device work until it runs at full speed again, if it had to wait for a candidate to be built."""
        here, began = driver.get(), time.monotonic()
        if self._flushed is None or began - self._worked < _IDLE:
            return
        while time.monotonic() - began < _WAKING:
            for _ in range(16):
                self._flush(stream)
            here.synchronize_stream(self._problem.device, stream)

    def _flush(self, stream: int) -> None:
        assert self._flushed is not None
        driver.get().fill_bytes(self._problem.device, self._flushed.data_pointer, 0, self._flushed.size, stream)

    def error(self, built: Built) -> float:
        """Its result's relative L2 distance from float64; infinite where one of them is not finite.

        Of statistics how far they are from those of the result, where that is more.
        """
        workspace = self._run_anew(built)
        expected = self._expected
        if expected is None:
            expected = self._expected = self._reference()
        distance = elementwise.sub(storage.cast(self._out, dtypes.float64), expected)
        relative = math.sqrt(_sum_of_squares(distance) / max(_sum_of_squares(expected), 1e-300))
        errors = [relative]
        if self._problem.statistics:
            errors.append(self._statistics_error(built.candidate, workspace))
        return max(errors) if all(map(math.isfinite, errors)) else math.inf

    def statistics_error(self, built: Built) -> float:
        """That of its statistics alone."""
        return self._statistics_error(built.candidate, self._run_anew(built))

    def _statistics_error(self, candidate: Candidate, workspace: Storage | None) -> float:
        """How far a channel's mean is off, in deviations, or its variance, relative; against the result as stored.

        Of values that hardly differ, what counts is how large they are.
        """
        p, parts = self._problem, candidate.parts(self._problem)
        num_rows, num_channels = numel(p.result_shape) // p.result_shape[1], p.result_shape[1]
        layout = array.layout_of((3, parts.number, num_channels), dtypes.float32, p.device)
        assert workspace is not None
        pivots, offsets, squares = storage.to_cpu(layout.on(workspace)).astype(np.float64)
        blocks = np.arange(-(-num_rows // parts.rows))
        counts = np.bincount(
            blocks % parts.number, np.minimum(num_rows - blocks * parts.rows, parts.rows), minlength=parts.number
        )[:, None]
        means = pivots + offsets
        mean = (means * counts).sum(0) / num_rows
        var = (squares + (means - mean) ** 2 * counts).sum(0) / num_rows
        stored = storage.cast(self._out, dtypes.float64)
        dims = (0, 2, 3)
        expected_mean, expected_var = (
            storage.to_cpu(found).reshape(-1)
            for found in (reduction.mean(stored, dims, False), reduction.var(stored, dims, 0, False))
        )
        scale = np.maximum(expected_var, 2.0**-20 * expected_mean**2 + 1e-300)
        off = np.maximum(np.abs(mean - expected_mean) / np.sqrt(scale), np.abs(var - expected_var) / scale)
        return float(off.max())

    def _run_anew(self, built: Built) -> Storage | None:
        """Run it; what the result held before does not count, so every element is to be written."""
        device, out = self._problem.device, self._out
        driver.get().fill_bytes(device, out.data_pointer, 0xFF, out.layout.num_bytes, streams.current_handle(device))
        return self._run(built)

    def _run(self, built: Built) -> Storage | None:
        """What is left is its scratch memory."""
        device = self._problem.device
        stream = streams.current_handle(device)
        workspace = memory.allocate(built.workspace, device, stream) if built.workspace else None
        built.launch(
            stream, self._out.data_pointer, self._first.data_pointer, self._second.data_pointer,
            0 if self._bias is None else self._bias.data_pointer,
            0 if self._residual is None else self._residual.data_pointer,
            0 if workspace is None else workspace.pointer,
        )  # fmt: skip
        return workspace

    def _reference(self) -> DeviceArray:
        """The result in float64, by the plain kernel."""
        problem = _in_float64(self._problem)
        bench = Bench.__new__(Bench)
        bench._problem = problem
        for name in ("_first", "_second", "_bias", "_residual"):
            operand = getattr(self, name)
            setattr(bench, name, None if operand is None else storage.cast(operand, dtypes.float64))
        shape = problem.result_shape
        bench._out = array.empty(shape, dtypes.float64, problem.device, channels_last_strides(shape))
        reference = families.reference(problem)
        bench._run(Built(reference, reference.prepare(problem), reference.workspace(problem)))
        return bench._out


def _random(shape: Shape, dtype: DType, device: int, seed: int) -> DeviceArray:
    """Normal numbers; channels-last where there are four dimensions."""
    numbers = random.randn((numel(shape),), seed, dtype, device)
    return numbers.view(shape, channels_last_strides(shape) if len(shape) == 4 else (1,), 0)


def _sum_of_squares(x: DeviceArray) -> float:
    dims = tuple(range(len(x.shape)))
    return float(storage.to_cpu(reduction.sum(elementwise.mul(x, x), dims, False)))
