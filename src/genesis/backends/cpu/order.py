"""The order of work: on the CPU each op is done when it returns, so there is nothing to wait for."""

from __future__ import annotations

import time

from torch import Tensor


def synchronize(device_index: int = 0) -> None:
    pass


def current_stream(device_index: int = 0) -> int:
    return 0


def capture(device_index: int = 0) -> None:
    return None


def record_stream(x: Tensor, stream: int) -> None:
    pass


def time_mark(device_index: int = 0) -> float:
    return time.perf_counter()


def seconds_between(start: float, end: float) -> float:
    return end - start
