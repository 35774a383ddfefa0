"""CUDA graphs of the simulated device: lists of launches and copies, which a replay goes through.

Rules are CUDA's, so that what breaks a capture on a GPU breaks it here: streams join by waiting for an event of the
capture and must be waited for before its end, nobody may wait for what is only being captured, and what a mode forbids
is forbidden. As there, a broken capture is only told of when it ends.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from genesis.backends.cuda.driver.interface import CaptureMode, Function, KernelError

Work = Callable[[], object]
Clock = dict[int, int]  # stream → how much of its captured work is known to come before


@dataclasses.dataclass
class Event:
    """A point in a stream's order: its time, or, while that stream is captured, what comes before it."""

    seconds: float = math.nan  # until it is recorded
    capture: Capture | None = None
    clock: Clock = dataclasses.field(default_factory=dict)


class Capture:
    """Work of the streams that take part, in the order in which the host gave it, which respects all of theirs."""

    def __init__(self, device: int, origin: int, mode: CaptureMode) -> None:
        self.device, self.origin, self.mode = device, origin, mode
        self.thread = threading.get_ident()
        self.devices = {origin: device}
        self.clocks: dict[int, Clock] = {origin: {}}
        self.work: list[Work] = []
        self.fault = ""

    def add(self, stream: int, work: Work) -> None:
        clock = self.clocks[stream]
        clock[stream] = clock.get(stream, 0) + 1
        self.work.append(work)

    def unjoined(self) -> list[int]:
        """The streams whose work the first stream has not waited for."""
        known = self.clocks[self.origin]
        return [stream for stream, clock in self.clocks.items() if clock.get(stream, 0) > known.get(stream, 0)]


class Captures:
    """The captures that are underway, by the streams that take part."""

    def __init__(self) -> None:
        self._by_stream: dict[int, Capture] = {}
        self._thread = _Thread()
        self._lock = threading.RLock()

    def of(self, stream: int) -> Capture | None:
        return self._by_stream.get(stream) if self._by_stream else None

    def submit(self, stream: int, work: Work) -> None:
        """Do it, or note it where the stream is captured."""
        capture = self.of(stream)
        if capture is None:
            work()
        else:
            capture.add(stream, work)

    def begin(self, device: int, stream: int, mode: CaptureMode) -> None:
        with self._lock:
            if stream == 0 or stream in self._by_stream:
                raise KernelError(f"begin a capture: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED on stream {stream:#x}")
            self._by_stream[stream] = Capture(device, stream, mode)

    def end(self, stream: int) -> Captured:
        with self._lock:
            capture = self._by_stream.get(stream)
            if capture is None or capture.origin != stream:
                raise KernelError(f"end a capture: CUDA_ERROR_ILLEGAL_STATE: none began on stream {stream:#x}")
            if capture.mode != "relaxed" and capture.thread != threading.get_ident():
                raise KernelError("end a capture: CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD")
            for each in capture.clocks:
                del self._by_stream[each]
        if capture.fault:
            raise KernelError(f"end a capture: CUDA_ERROR_STREAM_CAPTURE_INVALIDATED by {capture.fault}")
        if capture.unjoined():
            raise KernelError("end a capture: CUDA_ERROR_STREAM_CAPTURE_UNJOINED: a stream was not waited for")
        return Captured(capture.work)

    def record(self, event: Event, stream: int) -> None:
        capture = self.of(stream)
        event.capture = capture
        event.clock = {} if capture is None else dict(capture.clocks[stream])

    def wait(self, device: int, stream: int, event: Event) -> None:
        with self._lock:
            capture, waiting = event.capture, self.of(stream)
            if capture is None and waiting is None:
                return
            if capture is None or stream == 0 or waiting not in (None, capture) or not self._goes_on(capture):
                raise self._broken(waiting, "wait for an event", "CUDA_ERROR_STREAM_CAPTURE_ISOLATION")
            self._by_stream[stream] = capture
            capture.devices[stream] = device
            clock = capture.clocks.setdefault(stream, {})
            for other, count in event.clock.items():
                clock[other] = max(count, clock.get(other, 0))

    def refuse_waiting(self, doing: str, stream: int | None = None, device: int | None = None) -> None:
        """Waiting for a stream or a device that is captured breaks the capture, and so does what its mode forbids."""
        for capture in set(self._by_stream.values()):
            is_captured = stream in capture.clocks or device in capture.devices.values()
            is_mine = capture.thread == threading.get_ident() and capture.mode == "thread_local"
            is_forbidden = (capture.mode == "global" or is_mine) and not self._thread.is_unrestricted
            if is_captured or (is_forbidden and doing.startswith(("query", "allocate"))):
                raise self._broken(capture, doing, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")

    def refuse_waiting_for(self, doing: str, event: Event) -> None:
        if event.capture is not None:
            raise self._broken(event.capture, doing, "CUDA_ERROR_CAPTURED_EVENT")
        self.refuse_waiting(doing)

    @contextmanager
    def unrestricted(self) -> Iterator[None]:
        before, self._thread.is_unrestricted = self._thread.is_unrestricted, True
        try:
            yield
        finally:
            self._thread.is_unrestricted = before

    def _goes_on(self, capture: Capture) -> bool:
        return self._by_stream.get(capture.origin) is capture

    def _broken(self, capture: Capture | None, doing: str, error: str) -> KernelError:
        if capture is not None:
            capture.fault = doing
        return KernelError(f"{doing}: {error}")


class _Thread(threading.local):
    is_unrestricted = False


class Captured:
    """The work that a capture noted."""

    def __init__(self, work: list[Work]) -> None:
        self._work, self.num_nodes = work, len(work)

    def replace_memsets(self, kernel: Callable[[], Function | None], overlaps: bool) -> None:
        """They are calls here, as kernels are."""

    def overlaps(self) -> bool:
        return False

    def instantiate(self) -> Executable:
        return Executable(self._work)

    def destroy(self) -> None:
        self._work = []


class Executable:
    """Work that is done at each launch."""

    def __init__(self, work: list[Work]) -> None:
        self._work = work

    def launch(self, stream: int) -> None:
        for each in self._work:
            each()

    def destroy(self) -> None:
        self._work = []
