"""How long a candidate takes on operands in memory, and whether its result is right.

A lone run is timed after the device's caches have been overwritten, so that its operands come from memory: quick, and
exact enough to tell who is slow. replays.py compares those that are close.
"""

from __future__ import annotations

import abc
import math
import statistics
import time
from collections.abc import Sequence
from typing import Generic, NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine import replays
from genesis.backends.cuda.engine.candidate import Candidate, Launch, P
from genesis.backends.cuda.engine.replays import Operand
from genesis.backends.cuda.runtime import array, capturing, memory, streams
from genesis.backends.cuda.runtime.memory import Storage
from genesis.errors import OutOfMemoryError

# Bytes, more than any cache of a device holds, and how often they are written: meanwhile the run gets into the queue.
_FLUSHED, _FLUSHES = 128 << 20, 2
_MOST_RUNS = 12
_LONG_ENOUGH = 10.0  # milliseconds for the runs of one candidate
_HOPELESS = 2.0  # times the best: measured twice is enough
_LEAST_RUNS = 3  # otherwise: one that something else delayed, by milliseconds, does not count then
_IDLE, _WAKING = 0.1, 0.03  # seconds: after so long without work a device may be slow, for about so long
_worked: dict[int, float] = {}  # when each device last had work of ours, of whatever problem


class Built(NamedTuple, Generic[P]):
    """A candidate that is ready to run."""

    candidate: Candidate[P]
    launch: Launch
    workspace: int  # bytes


def build(candidate: Candidate[P], problem: P, workspace_limit: int) -> Built[P] | None:
    """None: it cannot be built, or wants more scratch memory than that. From any thread."""
    try:
        num_bytes = candidate.workspace(problem)
        return Built(candidate, candidate.prepare(problem), num_bytes) if num_bytes <= workspace_limit else None
    except KernelError:
        return None


class Bench(abc.ABC, Generic[P]):
    """Random operands for one problem."""

    def __init__(self, problem: P) -> None:
        self.problem = problem
        simulated = driver.get().name == "simulated"
        self._flushed = None if simulated else array.empty((_FLUSHED,), dtypes.uint8, problem.device)

    @property
    @abc.abstractmethod
    def operands(self) -> tuple[Operand, ...]:
        """The five results and operands, in the order of Launch."""

    @abc.abstractmethod
    def error(self, built: Built[P]) -> float:
        """How far its result is from the reference; infinite where one of them is not finite."""

    def milliseconds(self, built: Built[P], best: float) -> float | None:
        """The median of a few runs; of two where they take much longer than best. None: the device refuses it."""
        here, device, stream = driver.get(), self.problem.device, streams.current_handle(self.problem.device)
        start, end = here.create_event(device, True), here.create_event(device, True)
        times: list[float] = []
        try:
            self._wake(stream)
            self.run(built)
            here.synchronize_stream(device, stream)
            while len(times) < _MOST_RUNS and not _is_enough(times, best):
                for _ in range(_FLUSHES if self._flushed is not None else 0):
                    self._flush(stream)
                here.record_event(device, start, stream)
                self.run(built)
                here.record_event(device, end, stream)
                here.synchronize_event(device, end)
                times.append(here.elapsed_ms(device, start, end))
        except KernelError:
            return None
        finally:
            here.destroy_event(start)
            here.destroy_event(end)
            _worked[device] = time.monotonic()
        return statistics.median(times)

    def replayed(self, builts: Sequence[Built[P]], milliseconds: float) -> list[float | None] | None:
        """Milliseconds of each as it runs in practice, to compare with each other: see replays.py.

        Args:
            milliseconds: of the slowest, about.
        Returns: None for those that no graph can hold; None alone: they are long, or memory is short, or somebody is
            capturing, or the device is none whose time counts.
        """
        device, launches = self.problem.device, replays.num_launches(milliseconds)
        if self._flushed is None or launches < 2 or capturing.by_anybody(device):
            return None
        try:
            self._wake(streams.current_handle(device))
            sets = replays.copies(self.operands, self.problem.bytes, launches, device)
            if sets is None:
                return None
            contenders = [replays.Contender(each.launch, each.workspace) for each in builts]
            return replays.milliseconds(contenders, sets, launches, device)
        except (KernelError, OutOfMemoryError):
            return None
        finally:
            _worked[device] = time.monotonic()

    def run(self, built: Built[P]) -> Storage | None:
        """On the current stream. Returns: its scratch memory."""
        device = self.problem.device
        stream = streams.current_handle(device)
        workspace = memory.allocate(built.workspace, device, stream) if built.workspace else None
        addresses = replays.addresses_of(self.operands)
        built.launch(stream, *addresses, 0 if workspace is None else workspace.pointer)
        return workspace

    def run_anew(self, built: Built[P], *results: array.DeviceArray) -> Storage | None:
        """The same; what the results held before does not count, so every element is to be written."""
        device = self.problem.device
        for out in results:
            stream = streams.current_handle(device)
            driver.get().fill_bytes(device, out.data_pointer, 0xFF, out.layout.num_bytes, stream)
        return self.run(built)

    def _wake(self, stream: int) -> None:
        """Give the device work until it runs at full speed again, if it had to wait for a candidate to be built."""
        here, began = driver.get(), time.monotonic()
        if self._flushed is None or began - _worked.get(self.problem.device, -math.inf) < _IDLE:
            return
        while time.monotonic() - began < _WAKING:
            for _ in range(16):
                self._flush(stream)
            here.synchronize_stream(self.problem.device, stream)

    def _flush(self, stream: int) -> None:
        assert self._flushed is not None
        driver.get().fill_bytes(self.problem.device, self._flushed.data_pointer, 0, self._flushed.size, stream)


def _is_enough(times: Sequence[float], best: float) -> bool:
    """Do these runs tell how long a candidate takes?"""
    if len(times) >= 2 and min(times) > _HOPELESS * best:
        return True
    return len(times) >= _LEAST_RUNS and sum(times) >= _LONG_ENOUGH
