"""The fastest of several ways to run one problem, by measurement on the device; the caller remembers which."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from genesis.backends.cuda import driver, streams
from genesis.backends.cuda.driver import KernelError

_REPEATS, _ROUNDS = 4, 3


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
    return [_milliseconds(way, device) for way in ways]


def _milliseconds(way: Callable[[], None], device: int) -> float:
    """Of one run, the best of a few; infinite where the device refuses it."""
    here, stream = driver.get(), streams.current_handle(device)
    try:
        way()
        start, end = here.create_event(device, True), here.create_event(device, True)
        best = float("inf")
        for _ in range(_ROUNDS):
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
