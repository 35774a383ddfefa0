"""The streams that are being captured into CUDA graphs, and refusals, by name and line, of what no graph can hold.

Everything here costs the code outside of captures one look at an empty dictionary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import CaptureMode
from genesis.backends.cuda.driver.current import current_handle
from genesis.callsite import called_function, user_line
from genesis.errors import CaptureError

underway: dict[int, Capture] = {}  # by the handle of each stream that takes part
# Held while a capture begins, and while anybody waits for a whole device, which would break it. Who holds a pool's lock
# may take this one, and not the other way round.
lock = threading.RLock()
Value = TypeVar("Value")


class Capture:
    """One capture: the streams that take part, what its graph keeps alive and what is done before each replay.

    Attributes:
        streams: handle → device; it begins with one stream, others join by waiting for an event of the capture.
        kept: what the graph reads, and nobody else may need any more.
        before_replay: called with the stream of each replay.
        after_replay: likewise, once it has been launched.
        outside: outside(device) of capture.py.
        forget: resets the graph, if it is still there.
    """

    def __init__(
        self,
        mode: CaptureMode,
        on_join: Callable[[int, int], None],
        on_end: Callable[[], None],
        outside: Callable[[int], AbstractContextManager[None]],
    ) -> None:
        """on_join: told the device and the handle of each stream."""
        self.mode, self._on_join, self._on_end, self.outside = mode, on_join, on_end, outside
        self.thread = threading.get_ident()
        self.streams: dict[int, int] = {}
        self.kept: list[object] = []
        self.before_replay: list[Callable[[int], None]] = []
        self.after_replay: list[Callable[[int], None]] = []
        self.forget: Callable[[], None] = lambda: None
        self.is_over = False

    def join(self, device: int, stream: int) -> None:
        """From now on the stream's work goes into this graph."""
        if stream not in self.streams:
            self.streams[stream] = device
            underway[stream] = self
            self._on_join(device, stream)

    def leave(self) -> None:
        """All streams do their work themselves again."""
        self.is_over = True
        for stream in self.streams:
            underway.pop(stream, None)
        self._on_end()


def here(device: int) -> Capture | None:
    """The capture that takes in what this thread launches on a device."""
    return underway.get(current_handle(device)) if underway else None


def keep(device: int, value: Value) -> Value:
    """The value, which lives as long as the graph that is being captured, if one is."""
    capture = here(device)
    if capture is not None:
        capture.kept.append(value)
    return value


def by_anybody(device: int) -> bool:
    """Is anybody capturing here, be it another library on the current stream? Whoever does must not be disturbed."""
    return bool(underway) or driver.get().is_capturing(device, current_handle(device))


def refuse(device: int, doing: str, instead: str) -> None:
    """Raises: CaptureError: what this thread launches on the device is being captured."""
    if underway and here(device) is not None:
        raise error(doing, instead)


def refuse_waiting(device: int, stream: int | None = None, instead: str = "wait after replay()") -> None:
    """Nobody can wait for work that is only being captured.

    Args:
        stream: None is the whole device.
    Raises: CaptureError: the stream is being captured, or any of the device's, or this thread is within a capture whose
        mode forbids to wait for anything.
    """
    for capture in set(underway.values()):
        is_captured = device in capture.streams.values() if stream is None else stream in capture.streams
        if is_captured or (capture.thread == threading.get_ident() and capture.mode != "relaxed"):
            raise error("waits for the device", instead)


def check_wait(device: int, stream: int, capture: Capture | None) -> None:
    """A stream is about to wait for an event of a capture, or of none.

    Raises: CaptureError: the two belong to different captures, or one to none.
    """
    waiting = underway.get(stream)
    if capture is waiting:
        return
    if capture is None:
        raise error("waits for work outside of the capture", "wait for it before the capture begins")
    if capture.is_over:
        raise error("waits for an event of a graph", "record one after replay()")
    if waiting is not None:
        raise error("waits for work of another capture", "capture both in one graph")
    if stream == 0:
        raise error("has the default stream wait for a capture", "choose another stream")


def check_event(device: int, capture: Capture | None) -> None:
    """The host is about to wait for an event, or ask for its state."""
    if capture is not None:
        raise error("asks for an event of a graph, which has no time of its own", "record one after replay()")
    if underway:
        refuse_waiting(device, -1)


def error(doing: str, instead: str) -> CaptureError:
    """The error of the function that the user's line calls."""
    return CaptureError(
        f"{user_line()}: {called_function()} {doing}, which is not possible while a CUDA graph is captured: {instead}"
    )


def has_begun(device: int) -> bool:
    """Does the current stream's work go into a graph, Genesis' or anybody else's?"""
    return driver.get().is_capturing(device, current_handle(device))
