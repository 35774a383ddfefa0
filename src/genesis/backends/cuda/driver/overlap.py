"""Kernels that come up while the one before them runs, see launch/overlap.py: on which devices."""

from __future__ import annotations

from genesis.settings import settings


def can_overlap(compute_capability: int) -> bool:
    """May a device's kernels overlap so? From Hopper on, in data centres.

    sm_120 has the instructions too, but captures of such launches were seen to fail there (sgl-project/sglang#18596).
    """
    return 90 <= compute_capability < 110


def overlaps(compute_capability: int) -> bool:
    """Do they, unless GENESIS_OVERLAP forbids it?"""
    return settings.overlap and can_overlap(compute_capability)
