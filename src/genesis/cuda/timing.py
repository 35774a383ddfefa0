"""How long the device works on something."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable
from typing import Any

from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import streams
from genesis.cuda.device import DeviceLike, index_of
from genesis.errors import describe


def milliseconds(function: Callable[[], Any], repeats: int = 50, device: DeviceLike = None) -> float:
    """The median time of function() on the device's current stream, taken by events; it has run before.

    Args:
        function: launches work and waits for nothing; what it takes on the host hides behind what the device is still
            doing, unless the host is the slower of the two.
        repeats: how often it is timed.
    Raises: ValueError: repeats < 1.
    """
    if repeats < 1:
        raise ValueError(describe("milliseconds", "repeats", "at least 1", repeats))
    index = index_of("milliseconds", device)
    function()
    marks = [streams.Event(index, enable_timing=True) for _ in range(repeats + 1)]
    marks[0].record()
    for mark in marks[1:]:
        function()
        mark.record()
    driver.get().synchronize_event(index, marks[-1].handle)
    return statistics.median(start.elapsed_time(end) for start, end in itertools.pairwise(marks))
