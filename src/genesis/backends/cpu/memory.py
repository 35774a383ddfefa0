"""Freed memory stays in the process, for the next array.

The C library gives large blocks back to the system when they are freed, and each new array is then mapped, cleared and
faulted in again, page by page: half of the time of a small network's inference. Only glibc has the knobs.
"""

from __future__ import annotations

import ctypes
import os

# From malloc.h: the size from which a block is mapped on its own (at most 32 MiB is allowed), how much of the heap may
# lie idle at its end before it is given back, and how much more than is needed the heap grows by.
_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD = -3, -1, -2
_SETTINGS = {_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 1 << 30, _M_TOP_PAD: 64 << 20}


def keep_freed_memory() -> None:
    """Tell glibc's allocator to keep what is freed, unless the user has tuned it by MALLOC_… variables."""
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    libc = ctypes.CDLL(None) if os.name == "posix" else None
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is not None and not tuned:
        for parameter, value in _SETTINGS.items():
            mallopt(parameter, value)
