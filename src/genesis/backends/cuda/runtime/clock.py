"""The order of work: waiting for it, the streams that hold it, the time it took."""

from __future__ import annotations

from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import capturing, faults, streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.streams import Event


def synchronize(device_index: int = 0) -> None:
    with capturing.lock:
        capturing.refuse_waiting(device_index)
        driver.get().synchronize(device_index)
    faults.check(device_index)


def current_stream(device_index: int = 0) -> int:
    return streams.current_handle(device_index)


def capture(device_index: int = 0) -> capturing.Capture | None:
    return capturing.here(device_index)


def record_stream(x: DeviceArray, stream: int) -> None:
    x.storage.record_stream(stream)


def time_mark(device_index: int = 0) -> Event:
    capturing.refuse(device_index, "takes the time", "profile replays")
    mark = Event(device_index, enable_timing=True)
    mark.record()
    return mark


def seconds_between(start: Event, end: Event) -> float:
    start.synchronize()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
