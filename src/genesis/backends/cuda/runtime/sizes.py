"""Sizes of device memory: classes of blocks, figures, text."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Statistics:
    """Bytes and counts since the start (peaks: since reset_peaks)."""

    allocated: int = 0  # held by arrays, rounded up to their size class
    reserved: int = 0  # taken from the device: allocated and cached
    peak_allocated: int = 0
    peak_reserved: int = 0
    num_allocations: int = 0
    num_driver_allocations: int = 0  # those that the cache could not serve

    @property
    def cached(self) -> int:
        return self.reserved - self.allocated


def size_class(num_bytes: int) -> int:
    """Rounded up to 512 bytes, or to an eighth of the power of two below: at most 12.5 % are lost.

    Example:
        >>> size_class(1), size_class(4096), size_class(1_000_000)
        (512, 4096, 1048576)
    """
    step = max(512, 1 << max((num_bytes - 1).bit_length() - 4, 0))
    return max(-(-num_bytes // step) * step, 512)


def readable(num_bytes: int) -> str:
    amount = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"
