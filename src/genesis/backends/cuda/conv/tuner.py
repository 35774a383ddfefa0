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

from genesis import dtypes
from genesis.backends.cuda import array, driver, elementwise, memory, random, reduction, storage, streams
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.conv import families
from genesis.backends.cuda.conv.candidate import Candidate, Launch
from genesis.backends.cuda.conv.problem import WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.driver import KernelError
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
_CHAIN = 0.302  # · unit roundoff · √terms: the error of a chain of multiply-adds of independent normal numbers
_LEAST_CHAIN = 31  # terms; of fewer, the rounding of the result and of the epilogue counts as well
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
    """The largest relative L2 distance from the exact result that a result may have on random operands.

    In float32 that is what a chain of float32 multiply-adds has, but not above 3e-7; in float64 a chain of float64's,
    with its spread; elsewhere the rounding of the result, or of the operands where that is coarser.
    """
    if problem.dtype is dtypes.float32 and problem.precision == "highest":
        return min(3e-7, chain_error(problem))
    if problem.dtype is dtypes.float64:
        return chain_bound(problem)
    return _LOWERED.get(problem.precision if problem.dtype is dtypes.float32 else "", _UNIT_ROUNDOFF[problem.dtype] / 2)


def chain_error(problem: ConvProblem) -> float:
    """The relative L2 error that one chain of multiply-adds per result has on average, in the problem's dtype.

    The sum so far is rounded at each step, and grows with the root of the steps: 0.30 · unit roundoff · √terms.
    Measured with normal numbers against extended precision: 0.299 to 0.303 in float64, from 30 to 3400 terms;
    PyTorch's float32 on an H200: 0.30, from 64 to 4608 terms.
    """
    return _CHAIN * _UNIT_ROUNDOFF[problem.dtype] * math.sqrt(max(_LEAST_CHAIN, problem.num_terms))


def chain_bound(problem: ConvProblem) -> float:
    """The largest error that chains of multiply-adds have, whatever the operands: that of a random walk.

    The squared error of one chain deviates from its mean by 2.4 times that mean, since all its sums are large or small
    together; so the L2 error of r results by 1.2 / √r. Six deviations and more: the largest of 3,333 measured sets of 6
    results was 4.2 times the average, of 400 sets of 50 1.9 times, of 100 sets of 200 1.3 times. Many results that
    share their operands come to the average within a few percent, and no closer.
    """
    return chain_error(problem) * (1.05 + 8 / math.sqrt(numel(problem.result_shape)))


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
        bound = error_bound(problem)
        if problem.dtype is dtypes.float64:
            bound *= math.sqrt(2)  # the reference is rounded as well
        for candidate, milliseconds in _ranked(bench, timed, workspace_limit):
            error = bench.error(candidate)
            if error <= bound:
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
        self._run(candidate, candidate.prepare(self._problem))
        expected = self._expected
        if expected is None:
            expected = self._expected = self._reference()
        distance = elementwise.sub(storage.cast(self._out, dtypes.float64), expected)
        relative = math.sqrt(_sum_of_squares(distance) / max(_sum_of_squares(expected), 1e-300))
        return relative if math.isfinite(relative) else math.inf

    def _run(self, candidate: Candidate, launch: Launch) -> None:
        device, num_bytes = self._problem.device, candidate.workspace(self._problem)
        stream = streams.current_handle(device)
        workspace = memory.allocate(num_bytes, device, stream) if num_bytes else None
        launch(
            stream, self._out.data_pointer, self._first.data_pointer, self._second.data_pointer,
            0 if self._bias is None else self._bias.data_pointer,
            0 if self._residual is None else self._residual.data_pointer,
            0 if workspace is None else workspace.pointer,
        )  # fmt: skip

    def _reference(self) -> DeviceArray:
        """The result in float64, by the plain kernel."""
        problem = dataclasses.replace(self._problem, dtype=dtypes.float64, precision="highest", alignment=16)
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
