"""Which line of the user's program is at work: for the checker, the debug output and errors that arrive late."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PACKAGE = str(Path(__file__).parent) + "/"
_local = threading.local()


def user_line() -> str:
    """file:line of the nearest caller outside Genesis; in a backward pass, of the forward op whose gradient runs."""
    origin = getattr(_local, "origin", None)
    if origin is not None:
        return f"{origin} (its backward)"
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@contextmanager
def backward_of(line: str | None) -> Iterator[None]:
    """While the with block runs, user_line() names this forward line."""
    _local.origin = line
    try:
        yield
    finally:
        _local.origin = None
