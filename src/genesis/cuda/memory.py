"""What the memory of the devices is used for, and how much of it may be.

Freed memory stays reserved for the next arrays. Where a device runs out, it is given back first; if that is not
enough, OutOfMemoryError is raised, and a program that catches it can go on with less.
"""

from __future__ import annotations

from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import memory
from genesis.cuda.device import DeviceLike, index_of, is_available
from genesis.errors import describe


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that arrays hold, rounded up to the sizes in which memory is handed out."""
    return _statistics("memory_allocated", device).allocated


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that arrays held since the start, or since reset_peak_memory_stats()."""
    return _statistics("max_memory_allocated", device).peak_allocated


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes taken from the device: those that arrays hold, and those kept for the next ones."""
    return _statistics("memory_reserved", device).reserved


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes taken from the device since the start, or since reset_peak_memory_stats()."""
    return _statistics("max_memory_reserved", device).peak_reserved


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """All figures, under the names that they have in PyTorch."""
    found = _statistics("memory_stats", device)
    return {
        "allocated_bytes.all.current": found.allocated,
        "allocated_bytes.all.peak": found.peak_allocated,
        "reserved_bytes.all.current": found.reserved,
        "reserved_bytes.all.peak": found.peak_reserved,
        "allocation.all.allocated": found.num_allocations,
        "num_device_alloc": found.num_driver_allocations,
    }


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Let the peaks begin anew from what is in use now."""
    memory.pool(index_of("reset_peak_memory_stats", device)).reset_peaks()


def empty_cache() -> None:
    """Give the memory that no array holds back to the devices and, of the page-locked memory, to the host."""
    if is_available():
        for index in range(driver.get().device_count()):
            memory.pool(index).empty_cache()
        memory.release_pinned()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of a device, whoever uses the rest."""
    return driver.get().memory_info(index_of("mem_get_info", device))


def set_memory_limit(num_bytes: int | None, device: DeviceLike = None) -> None:
    """Reserve no more than this on a device, the current one by default; None lifts the limit.

    Raises: ValueError: the limit is negative.
    """
    if num_bytes is not None and num_bytes < 0:
        raise ValueError(describe("set_memory_limit", "num_bytes", "at least 0, or None", num_bytes))
    memory.pool(index_of("set_memory_limit", device)).limit = num_bytes


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Reserve no more than this part of a device's memory.

    Raises: ValueError: fraction is not in [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(describe("set_per_process_memory_fraction", "fraction", "a number in [0, 1]", fraction))
    index = index_of("set_per_process_memory_fraction", device)
    set_memory_limit(int(fraction * driver.get().properties(index).total_memory), index)


def _statistics(op: str, device: DeviceLike) -> memory.Statistics:
    """The figures of a device; without CUDA all are 0."""
    index = index_of(op, device)
    return memory.pool(index).statistics() if is_available() else memory.Statistics()
