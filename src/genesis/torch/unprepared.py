"""The stand-in for a prepared chain where nothing is prepared: on the CPU, and for operands that look otherwise."""

from __future__ import annotations

from collections.abc import Callable


class Unprepared:
    """A chain without launches of its own, for as long as is_current() returns True."""

    def __init__(self, eps: float, is_current: Callable[[], bool]) -> None:
        self.eps, self.is_current = eps, is_current

    def begin(self, *args: object) -> None:
        """Return None, on which the caller computes by the backend's ops."""

    run = backward = begin


UNPREPARED = Unprepared(0.0, lambda: True)  # for good, as on the CPU
