"""Statistics and limits of device memory, in bytes.

Freed memory is cached for the next arrays. Where a device runs out, the cache is released first; if that is not enough,
OutOfMemoryError is raised, and a program that catches it can continue with less.
"""

from __future__ import annotations

from genesis.backends.cuda import driver
from genesis.backends.cuda.runtime import memory
from genesis.cuda.device import DeviceLike, index_of, is_available
from genesis.errors import describe


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that arrays occupy, rounded up to the allocator's block sizes.

    Args:
        device: an index, "cuda:1" or a genesis.device; the current device by default.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     x = genesis.ones(1024, device="cuda")
        ...     genesis.cuda.memory_allocated() >= 4096
        True
    """
    return _statistics("memory_allocated", device).allocated


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Peak of memory_allocated() since the start, or since reset_peak_memory_stats().

    Args:
        device: as in `genesis.cuda.memory_allocated`.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.reset_peak_memory_stats()
        ...     before = genesis.cuda.max_memory_allocated()
        ...     x = genesis.ones(1 << 20, device="cuda")
        ...     del x
        ...     genesis.cuda.max_memory_allocated() - before >= 4 << 20
        True
    """
    return _statistics("max_memory_allocated", device).peak_allocated


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes reserved on the device: those of arrays, and those cached for the next ones.

    Args:
        device: as in `genesis.cuda.memory_allocated`.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     x = genesis.ones(1024, device="cuda")
        ...     genesis.cuda.memory_reserved() >= genesis.cuda.memory_allocated()
        True
    """
    return _statistics("memory_reserved", device).reserved


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Peak of memory_reserved() since the start, or since reset_peak_memory_stats(). See
    `genesis.cuda.memory_reserved`.
    """
    return _statistics("max_memory_reserved", device).peak_reserved


def memory_stats(device: DeviceLike = None) -> dict[str, int]:
    """All statistics, under PyTorch's names: bytes, and numbers of allocations.

    Args:
        device: as in `genesis.cuda.memory_allocated`.
    Returns: numbers by name.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     "allocated_bytes.all.peak" in genesis.cuda.memory_stats()
        True
    """
    found = _statistics("memory_stats", device)
    return {
        "allocated_bytes.all.current": found.allocated,
        "allocated_bytes.all.peak": found.peak_allocated,
        "reserved_bytes.all.current": found.reserved,
        "reserved_bytes.all.peak": found.peak_reserved,
        "allocation.all.allocated": found.num_allocations,
        "num_device_alloc": found.num_driver_allocations,
    }


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The statistics as a table, to be printed.

    Args:
        device: as in `genesis.cuda.memory_allocated`.
        abbreviated: accepted for PyTorch's signature.
    Returns: some lines.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     x = genesis.ones(1024, device="cuda")
        ...     print(genesis.cuda.memory_summary().splitlines()[1])
        memory         |      current |         peak
    """
    found = _statistics("memory_summary", device)
    rows = (
        ("allocated", found.allocated, found.peak_allocated),
        ("reserved", found.reserved, found.peak_reserved),
    )
    lines = [f"CUDA device {index_of('memory_summary', device)}", f"{'memory':<14} | {'current':>12} | {'peak':>12}"]
    lines += [f"{name:<14} | {now / 2**20:>8.1f} MiB | {peak / 2**20:>8.1f} MiB" for name, now, peak in rows]
    return "\n".join([*lines, f"allocations: {found.num_allocations}, by the driver: {found.num_driver_allocations}"])


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Reset the peaks to the present values. See `genesis.cuda.max_memory_allocated`."""
    memory.pool(index_of("reset_peak_memory_stats", device)).reset_peaks()


def empty_cache() -> None:
    """Release cached memory to the devices, and cached page-locked memory to the host.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     x = genesis.ones(1 << 22, device="cuda")
        ...     del x
        ...     before = genesis.cuda.memory_reserved()
        ...     genesis.cuda.empty_cache()
        ...     genesis.cuda.memory_reserved() < before
        True
    """
    if is_available():
        for index in range(driver.get().device_count()):
            memory.pool(index).empty_cache()
        memory.release_pinned()


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """(free, total) bytes of a device; memory of other processes counts as used.

    Args:
        device: as in `genesis.cuda.memory_allocated`.
    Returns: two ints.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     free, total = genesis.cuda.mem_get_info()
        ...     0 < free <= total
        True
    """
    return driver.get().memory_info(index_of("mem_get_info", device))


def set_memory_limit(num_bytes: int | None, device: DeviceLike = None) -> None:
    """Limit the bytes reserved on a device, the current one by default; None removes the limit.

    Args:
        num_bytes: at least 0, or None.
        device: as in `genesis.cuda.memory_allocated`.
    Raises: ValueError: the limit is negative.

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.set_memory_limit(1 << 30)
        ...     try:
        ...         x = genesis.empty(1 << 30, device="cuda")
        ...     except genesis.cuda.OutOfMemoryError:
        ...         print("beyond the limit")
        ...     genesis.cuda.set_memory_limit(None)
        beyond the limit
    """
    if num_bytes is not None and num_bytes < 0:
        raise ValueError(describe("set_memory_limit", "num_bytes", "at least 0, or None", num_bytes))
    memory.pool(index_of("set_memory_limit", device)).limit = num_bytes


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limit the bytes reserved on a device to a fraction of its memory.

    Args:
        fraction: in [0, 1].
        device: as in `genesis.cuda.memory_allocated`.
    Raises: ValueError: fraction is not in [0, 1].

    Example:
        >>> from genesis.settings import override
        >>> with override(cuda="simulated"):
        ...     genesis.cuda.set_per_process_memory_fraction(0.5)
        ...     genesis.cuda.set_memory_limit(None)
        ...     genesis.cuda.memory_reserved() >= 0
        True
    """
    if not 0 <= fraction <= 1:
        raise ValueError(describe("set_per_process_memory_fraction", "fraction", "a number in [0, 1]", fraction))
    index = index_of("set_per_process_memory_fraction", device)
    set_memory_limit(int(fraction * driver.get().properties(index).total_memory), index)


def _statistics(op: str, device: DeviceLike) -> memory.Statistics:
    """The statistics of a device; all 0 without CUDA."""
    index = index_of(op, device)
    return memory.pool(index).statistics() if is_available() else memory.Statistics()
