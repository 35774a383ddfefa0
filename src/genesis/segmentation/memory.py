"""How much memory there is, so that what can never fit is refused before the system ends the process for it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from genesis.errors import describe

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container; a number, or "max"


def total() -> int:
    """Bytes that this process could have at most: the machine's, its container's, or those of `ulimit -v`."""
    limits = [2**63 - 1]
    with suppress(ImportError, AttributeError, ValueError, OSError):  # not a POSIX system
        import resource

        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        limits += [] if soft == resource.RLIM_INFINITY else [soft]
    with suppress(OSError, ValueError):
        limits.append(int(_CGROUP_LIMIT.read_text()))
    return min(limits)


def check(op: str, argument: str, value: int, num_bytes: int) -> None:
    """Refuse an argument that takes at least so many bytes, if there are not so many.

    Raises: ValueError.
    """
    available = total()
    if num_bytes > available:
        expected = f"what takes less than the {_readable(available)} of memory here"
        raise ValueError(describe(op, argument, expected, f"{value}, which takes {_readable(num_bytes)} or more"))


def _readable(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"
