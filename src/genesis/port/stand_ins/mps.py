"""torch.mps: Apple's GPUs, which are not here."""

from __future__ import annotations


def is_available() -> bool:
    """Say that it is not here."""
    return False


def empty_cache() -> None:
    """Free nothing."""


def driver_allocated_memory() -> int:
    """No memory."""
    return 0


current_allocated_memory = driver_allocated_memory


def device_count() -> int:
    """None."""
    return 0
