"""Ctrl-C, kept back where Python or a library would lose it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def first_held() -> Iterator[None]:
    """A Ctrl-C in the block is raised at its end; a second one at once.

    What starts a process runs handlers around the fork, and objects that are deleted run their last method: an
    exception in either is printed and lost, and the program would go on.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # only the main thread is interrupted, and only where Python's handler is in place
        return
    caught: list[tuple[int, FrameType | None]] = []

    def keep(number: int, frame: FrameType | None) -> None:
        caught.append((number, frame))
        if len(caught) > 1:
            caught.clear()
            before(number, frame)

    signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            before(*caught[0])
