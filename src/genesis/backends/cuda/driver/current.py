"""The stream that each thread launches on, by device; streams.py says which, the driver and every launch ask."""

from __future__ import annotations

import threading


class _Current(threading.local):
    def __init__(self) -> None:
        self.handles: dict[int, int] = {}


_current = _Current()
_chosen = False  # has any thread ever chosen a stream? Until then nobody need look at its own


def current_handle(device: int) -> int:
    """The raw stream that this thread launches on."""
    return _current.handles.get(device, 0) if _chosen else 0


def set_current_handle(device: int, handle: int | None) -> None:
    """Launch on this stream from now on, in this thread; None: on the default stream."""
    global _chosen
    _chosen = True
    if handle is None:
        _current.handles.pop(device, None)
    else:
        _current.handles[device] = handle
