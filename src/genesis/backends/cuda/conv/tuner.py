"""The tuner: times the candidates for a problem on the device, and believes the fastest one whose result is right.

Operands are random, and results are compared with float64. The device's caches are overwritten before each run, so that
what is measured is a convolution whose operands come from memory.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from genesis import dtypes
from genesis.backends.cuda import array, driver, elementwise, memory, random, reduction, storage, streams
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.conv import families
from genesis.backends.cuda.conv.candidate import Candidate, Launch
from genesis.backends.cuda.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.memory import Storage
from genesis.dtypes import DType
from genesis.errors import OutOfMemoryError
from genesis.shapes import Shape, channels_last_strides, numel

_FLUSHED = 128 << 20  # bytes; more than any cache of a device
_MOST_RUNS = 12
_LONG_ENOUGH = 10.0  # milliseconds for the runs of one candidate
_HOPELESS = 2.0  # times the best: measured once is enough
_CLOSE, _MOST_CLOSE = 1.1, 4  # times the best, and candidates: these are timed again
_IDLE, _WAKING = 0.1, 0.03  # seconds: after so long without work a device may be slow, for about so long
_UNIT_ROUNDOFF = {
    dtypes.float64: 2.0**-53,
    dtypes.float32: 2.0**-24,
    dtypes.float16: 2.0**-11,
    dtypes.bfloat16: 2.0**-8,
}
_LOWERED = {"high": 2.0**-10, "medium": 2.0**-8}  # both operands cut off, as some tensor cores do


class Timed(NamedTuple):
    """A candidate and how long it took."""

    candidate: Candidate
    milliseconds: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What tuning one problem found."""

    problem: ConvProblem
    candidate: Candidate
    milliseconds: float
    error: float  # relative L2 distance from float64
    workspace: int
    complete: bool  # False: the time was up before the last candidate

    @property
    def flops_per_second(self) -> float:
        return self.problem.flops / self.milliseconds * 1e3


Progress = Callable[[ConvProblem, int, int], None]  # candidates done, candidates in all


def error_bound(problem: ConvProblem) -> float:
    """The largest relative L2 distance from float64 that a result may have on random operands.

    In float32 that is what a chain of float32 multiply-adds has, 1.8e-8 · √terms (PyTorch's measured error, from 64 to
    4608 terms), but neither below that of 31 terms nor above 3e-7; elsewhere the rounding of the result, or of the
    operands where that is coarser.
    """
    if problem.dtype is dtypes.float32 and problem.precision == "highest":
        return min(3e-7, max(1e-7, 1.8e-8 * math.sqrt(problem.num_terms)))
    if problem.dtype is dtypes.float64:
        return 2.0**-50 * max(1.0, math.sqrt(problem.num_terms) / 64)
    return _LOWERED.get(problem.precision if problem.dtype is dtypes.float32 else "", _UNIT_ROUNDOFF[problem.dtype] / 2)


def tune(
    problem: ConvProblem, deadline: float, workspace_limit: int, progress: Progress | None = None
) -> Outcome | None:
    """The fastest candidate whose result is right; None: there was no time, or no memory, to find out.

    Args:
        deadline: of time.monotonic(). The best guess is measured first, so what is found in time is of use.
        workspace_limit: bytes; candidates that want more are left out.
    """
    if time.monotonic() >= deadline:
        return None
    try:
        bench = _Bench(problem)
        choice = list(families.in_turns(problem))
        timed: list[Timed] = []
        done = 0
        for candidate in choice:
            if time.monotonic() >= deadline and timed:
                break
            best = min((each.milliseconds for each in timed), default=math.inf)
            milliseconds = bench.milliseconds(candidate, workspace_limit, best)
            done += 1
            if milliseconds is not None:  # it was built
                timed.append(Timed(candidate, milliseconds))
            if progress is not None:
                progress(problem, done, len(choice))
        for candidate, milliseconds in _ranked(bench, timed, workspace_limit):
            error = bench.error(candidate)
            if error <= error_bound(problem):
                workspace = candidate.workspace(problem)
                return Outcome(problem, candidate, milliseconds, error, workspace, complete=done == len(choice))
    except OutOfMemoryError:
        memory.pool(problem.device).empty_cache()
    return None


def _ranked(bench: _Bench, timed: list[Timed], workspace_limit: int) -> list[Timed]:
    """The fastest first; those too close to tell apart have been timed again, turn by turn."""
    timed = sorted(timed, key=lambda each: each.milliseconds)
    close = [each for each in timed[:_MOST_CLOSE] if each.milliseconds <= _CLOSE * timed[0].milliseconds]
    if len(close) > 1:
        again = [[bench.milliseconds(each.candidate, workspace_limit, math.inf) for each in close] for _ in range(2)]
        medians = [
            statistics.median([each.milliseconds, *filter(None, more)])
            for each, *more in zip(close, *again, strict=True)
        ]
        close = sorted(map(Timed, [each.candidate for each in close], medians), key=lambda each: each.milliseconds)
    return close + timed[len(close) :]


class _Bench:
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

    def milliseconds(self, candidate: Candidate, workspace_limit: int, best: float) -> float | None:
        """The median of a few runs; None: the candidate does not build or run, or wants too much scratch memory."""
        here, device, stream = driver.get(), self._problem.device, streams.current_handle(self._problem.device)
        try:
            if candidate.workspace(self._problem) > workspace_limit:
                return None
            launch = candidate.prepare(self._problem)
            self._wake(stream)
            self._run(candidate, launch)
            here.synchronize_stream(device, stream)
        except KernelError:
            return None
        times: list[float] = []
        start, end = here.create_event(device, True), here.create_event(device, True)
        while len(times) < _MOST_RUNS and sum(times) < _LONG_ENOUGH and not (times and times[0] > _HOPELESS * best):
            if self._flushed is not None:
                here.fill_bytes(device, self._flushed.data_pointer, 0, self._flushed.size, stream)
            here.record_event(device, start, stream)
            self._run(candidate, launch)
            here.record_event(device, end, stream)
            here.synchronize_event(device, end)
            times.append(here.elapsed_ms(device, start, end))
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
                here.fill_bytes(self._problem.device, self._flushed.data_pointer, 0, self._flushed.size, stream)
            here.synchronize_stream(self._problem.device, stream)

    def error(self, candidate: Candidate) -> float:
        """Its result's relative L2 distance from float64; infinite where one of them is not finite."""
        device = self._problem.device
        here = driver.get()
        # What the result held before must not count: every element is to be written.
        here.fill_bytes(device, self._out.data_pointer, 0xFF, self._out.storage.nbytes, streams.current_handle(device))
        workspace = self._run(candidate, candidate.prepare(self._problem))
        expected = self._expected
        if expected is None:
            expected = self._expected = self._reference()
        distance = elementwise.sub(storage.cast(self._out, dtypes.float64), expected)
        relative = math.sqrt(_sum_of_squares(distance) / max(_sum_of_squares(expected), 1e-300))
        errors = [relative]
        if self._problem.statistics:
            errors.append(self._statistics_error(candidate, workspace))
        return max(errors) if all(map(math.isfinite, errors)) else math.inf

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

    def _run(self, candidate: Candidate, launch: Launch) -> Storage | None:
        """What is left is its scratch memory."""
        device, num_bytes = self._problem.device, candidate.workspace(self._problem)
        stream = streams.current_handle(device)
        workspace = memory.allocate(num_bytes, device, stream) if num_bytes else None
        launch(
            stream, self._out.data_pointer, self._first.data_pointer, self._second.data_pointer,
            0 if self._bias is None else self._bias.data_pointer,
            0 if self._residual is None else self._residual.data_pointer,
            0 if workspace is None else workspace.pointer,
        )  # fmt: skip
        return workspace

    def _reference(self) -> DeviceArray:
        """The result in float64, by the plain kernel."""
        problem = dataclasses.replace(
            self._problem, dtype=dtypes.float64, precision="highest", alignment=16, statistics=False
        )
        bench = _Bench.__new__(_Bench)
        bench._problem = problem
        for name in ("_first", "_second", "_bias", "_residual"):
            operand = getattr(self, name)
            setattr(bench, name, None if operand is None else storage.cast(operand, dtypes.float64))
        shape = problem.result_shape
        bench._out = array.empty(shape, dtypes.float64, problem.device, channels_last_strides(shape))
        reference = families.reference(problem)
        bench._run(reference, reference.prepare(problem))
        return bench._out


def _random(shape: Shape, dtype: DType, device: int, seed: int) -> DeviceArray:
    """Normal numbers; channels-last where there are four dimensions."""
    numbers = random.randn((numel(shape),), seed, dtype, device)
    return numbers.view(shape, channels_last_strides(shape) if len(shape) == 4 else (1,), 0)


def _sum_of_squares(x: DeviceArray) -> float:
    dims = tuple(range(len(x.shape)))
    return float(storage.to_cpu(reduction.sum(elementwise.mul(x, x), dims, False)))
