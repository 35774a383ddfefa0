"""Streams and events.

A stream is a queue of work that the device does in order. Work starts on the legacy default stream (0), as PyTorch's
does: what both put there is in order. Streams made here do not wait for it; say wait_stream where one needs another's
results. Each thread has its own current stream.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.current import current_handle as current_handle
from genesis.backends.cuda.driver.current import set_current_handle
from genesis.backends.cuda.runtime import capturing


class _Current(threading.local):
    """The streams whose handles the driver knows: they stay alive while a thread launches on them."""

    def __init__(self) -> None:
        self.by_device: dict[int, Stream] = {}


_current = _Current()
_idle: dict[tuple[int, int], list[int]] = {}  # handles of streams that nobody holds; (device, priority) → handles


def current(device: int = 0) -> Stream:
    """The stream that this thread launches on."""
    stream = _current.by_device.get(device)
    return default(device) if stream is None else stream


def default(device: int = 0) -> Stream:
    """The legacy default stream."""
    return Stream(device, handle=0)


@contextmanager
def use(stream: Stream) -> Iterator[Stream]:
    """Launch on this stream inside the with block, in this thread."""
    before = _current.by_device.get(stream.device_index)
    _set(stream.device_index, stream)
    try:
        yield stream
    finally:
        _set(stream.device_index, before)


def _set(device: int, stream: Stream | None) -> None:
    set_current_handle(device, None if stream is None else stream.handle)
    if stream is None:
        _current.by_device.pop(device, None)
    else:
        _current.by_device[device] = stream


class Stream:
    """A queue of work on one device.

    Handles are never destroyed, only handed on: a block of memory that waits for reuse on a stream stays in its order.
    """

    __slots__ = ("_home", "device_index", "handle")

    def __init__(self, device_index: int = 0, priority: int = 0, handle: int | None = None) -> None:
        """handle: a stream made elsewhere (its owner keeps it alive)."""
        self.device_index = device_index
        self._home: list[int] | None = None
        if handle is None:
            idle = _idle.setdefault((device_index, priority), [])
            try:
                handle = idle.pop()
            except IndexError:
                handle = driver.get().create_stream(device_index, priority)
            self._home = idle
        self.handle = handle

    def __del__(self) -> None:  # also while the interpreter ends, when this module's names are gone
        if self._home is not None:
            self._home.append(self.handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device_index, self.handle) == (other.device_index, other.handle)

    def __hash__(self) -> int:
        return hash((self.device_index, self.handle))

    def __repr__(self) -> str:
        return f"<stream {self.handle:#x} of cuda:{self.device_index}>"

    def synchronize(self) -> None:
        """Wait until all work on it is done."""
        if capturing.underway:
            capturing.refuse_waiting(self.device_index, self.handle)
        driver.get().synchronize_stream(self.device_index, self.handle)

    def record_event(self, event: Event | None = None) -> Event:
        """Mark this point in the stream's order."""
        event = Event(self.device_index) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Let work that this stream is given from now on start after the event."""
        event.wait(self)

    def wait_stream(self, other: Stream) -> None:
        """Let work launched on this stream from now on start after all that the other has now.

        Args:
            other: of any device.
        """
        self.wait_event(other.record_event())


class Event:
    """A point in a stream's order, which hosts and streams can wait for, and between two of which time can be taken."""

    __slots__ = ("_driver", "capture", "device_index", "handle")

    def __init__(self, device_index: int = 0, enable_timing: bool = False) -> None:
        self.capture: capturing.Capture | None = None  # which it is a point of
        self.device_index = device_index
        self.handle: object = None
        self._driver = driver.get()
        self.handle = self._driver.create_event(device_index, enable_timing)

    def __del__(self) -> None:
        if self.handle is not None:
            self._driver.destroy_event(self.handle)

    def record(self, stream: Stream | None = None) -> None:
        """Mark the present end of a stream, the current one by default."""
        handle = current_handle(self.device_index) if stream is None else stream.handle
        self.capture = capturing.underway.get(handle)
        self._driver.record_event(self.device_index, self.handle, handle)

    def wait(self, stream: Stream | None = None) -> None:
        """Let work that a stream is given from now on, the current one by default, start after this event."""
        device, handle = self.device_index, current_handle(self.device_index)
        if stream is not None:
            device, handle = stream.device_index, stream.handle
        if capturing.underway or self.capture is not None:
            capturing.check_wait(device, handle, self.capture)
        self._driver.wait_event(device, handle, self.handle)
        if self.capture is not None:
            self.capture.join(device, handle)

    def query(self) -> bool:
        """Has all work before it been done?"""
        if capturing.underway or self.capture is not None:
            capturing.check_event(self.device_index, self.capture)
            with self._driver.unrestricted():
                return self._driver.event_done(self.device_index, self.handle)
        return self._driver.event_done(self.device_index, self.handle)

    def synchronize(self) -> None:
        """Wait until all work before it is done."""
        if capturing.underway or self.capture is not None:
            capturing.check_event(self.device_index, self.capture)
            with self._driver.unrestricted():
                return self._driver.synchronize_event(self.device_index, self.handle)
        self._driver.synchronize_event(self.device_index, self.handle)

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to the other; both were made with enable_timing and are done."""
        for event in (self, end):
            if event.capture is not None:
                capturing.check_event(event.device_index, event.capture)
        return self._driver.elapsed_ms(self.device_index, self.handle, end.handle)
