"""How long the device works on something."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable

from genesis.backends.cuda.runtime import streams
from genesis.cuda.device import DeviceLike, index_of
from genesis.errors import describe


def milliseconds(function: Callable[[], object], repeats: int = 50, device: DeviceLike = None) -> float:
    """The median time of function() on the device's current stream, measured by events after a warm-up call.

    Args:
        function: launches work without waiting for it; its time on the host overlaps with the device's, unless the
            host is the slower of the two.
        repeats: number of measurements.
        device: the current one by default.
    Raises: ValueError: repeats < 1.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     x = genesis.ones(4, device="cuda")
        ...     genesis.cuda.milliseconds(lambda: x + x, repeats=3) > 0
        True
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
    marks[-1].synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in itertools.pairwise(marks))
