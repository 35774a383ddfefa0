"""Kernels that come up while the one before them runs, see launch/overlap.py: on which devices."""

from __future__ import annotations

from genesis.settings import settings


def overlaps(compute_capability: int) -> bool:
    """Do a device's kernels overlap so? From Hopper on, in data centres.

    sm_120 has the instructions too, but captures of such launches were seen to fail there (sgl-project/sglang#18596).
    """
    return settings.overlap and 90 <= compute_capability < 110
