"""The fastest of several ways to run one problem, by measurement on the device; the caller remembers which."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.errors import OutOfMemoryError

_REPEATS, _ROUNDS = 4, 3
_FILLED, _FILLS = 64 << 20, 4  # bytes, and how often: 80 µs of a fast device's time


def fastest(ways: Sequence[Callable[[], None]], device: int) -> int:
    """The index of the quickest; 0, untried, where there is no choice or where the device is simulated."""
    if len(ways) == 1:
        return 0
    times = milliseconds(ways, device)
    return times.index(min(times))


def milliseconds(ways: Sequence[Callable[[], None]], device: int) -> list[float]:
    """How long each takes; 0, untried, where the device is simulated."""
    if driver.get().name == "simulated":
        return [0.0] * len(ways)
    try:
        filled = array.empty((_FILLED,), dtypes.uint8, device)
    except OutOfMemoryError:
        filled = None
    return [_milliseconds(way, device, filled) for way in ways]


def _milliseconds(way: Callable[[], None], device: int, filled: DeviceArray | None) -> float:
    """Of one run, the best of a few; infinite where the device refuses it.

    Meanwhile the device is kept busy with filling an array, so that all runs are in its queue when the first begins:
    the time would be the host's otherwise, where a kernel takes less than its launch.
    """
    here, stream = driver.get(), streams.current_handle(device)
    try:
        way()
        start, end = here.create_event(device, True), here.create_event(device, True)
        best = float("inf")
        for _ in range(_ROUNDS):
            if filled is not None:
                for _ in range(_FILLS):
                    here.fill_bytes(device, filled.data_pointer, 0, _FILLED, stream)
            here.record_event(device, start, stream)
            for _ in range(_REPEATS):
                way()
            here.record_event(device, end, stream)
            here.synchronize_event(device, end)
            best = min(best, here.elapsed_ms(device, start, end) / _REPEATS)
        here.destroy_event(start)
        here.destroy_event(end)
    except KernelError:
        return float("inf")
    return best
