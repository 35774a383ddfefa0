"""What holds for all tests: the gpu marker skips only where the GPUs are not there."""

from __future__ import annotations

import ctypes
import functools

import pytest


@functools.cache
def num_gpus() -> int:
    """Asked of the driver itself, so that a fault in Genesis can't hide the GPU tests."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    ready = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    return count.value if ready else 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpu")
    if marker is not None:
        needed = marker.kwargs.get("count", marker.args[0] if marker.args else 1)
        if num_gpus() < needed:
            pytest.skip(f"needs {needed} NVIDIA GPU(s), found {num_gpus()}")
