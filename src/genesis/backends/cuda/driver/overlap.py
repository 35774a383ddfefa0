"""Kernels that come up while the one before them runs, see launch/overlap.py: on which devices, and by whose wish."""

from __future__ import annotations

from genesis.settings import settings


class Overlap:
    """Whether kernels that are loaded from now on do so, unless the settings say.

    Attributes:
        is_safe: nobody has found out that they must not.
    """

    is_safe = True


def overlaps(compute_capability: int) -> bool:
    """Do a device's kernels overlap so? From Hopper on, in data centres.

    sm_120 has the instructions too, but captures of such launches were seen to fail there (sgl-project/sglang#18596).
    """
    wanted = Overlap.is_safe if settings.overlap is None else settings.overlap
    return wanted and 90 <= compute_capability < 110
