"""How far tuning is: one line that a terminal overwrites, and the logger `genesis.tuning` every few seconds."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from genesis.backends.cuda.engine.builders import Builders
from genesis.backends.cuda.engine.tuner import AnyContest, Deadline

_SHORT = 2.0  # seconds that nobody needs to be told of
_EVERY_LINE, _EVERY_RECORD = 0.25, 5.0
_logger = logging.getLogger("genesis.tuning")


class Progress:
    """Progress of the contests of a session."""

    def __init__(self, contests: Sequence[AnyContest], deadline: Deadline, file: TextIO | None) -> None:
        """file: where the line goes if it is a terminal; None: nowhere."""
        self._contests, self._deadline = contests, deadline
        self._file = file if file is not None and file.isatty() else None
        self._recorded = time.monotonic()
        self._shown = self._recorded + _SHORT
        self._length = 0  # of what stands on the line
        self.num_compiled, self.compile_seconds = 0, 0.0

    def __call__(self, builders: Builders) -> None:
        """Tell, unless it was just told."""
        now = time.monotonic()
        self.num_compiled, self.compile_seconds = builders.num_compiled, builders.seconds
        if self._file is not None and now >= self._shown + _EVERY_LINE:
            line = f"genesis: {self._text(now)}"
            print(f"\r{line}{' ' * (self._length - len(line))}", end="", file=self._file, flush=True)
            self._shown, self._length = now, len(line)
        if now >= self._recorded + _EVERY_RECORD:
            _logger.info("%s", self._text(now))
            self._recorded = now

    def end(self) -> None:
        """Remove the line."""
        if self._file is not None and self._length:
            print(f"\r{' ' * self._length}\r", end="", file=self._file, flush=True)
            self._length = 0
        _logger.info("%s", self._text(time.monotonic()))

    def _text(self, now: float) -> str:
        tuned = sum(each.outcome is not None for each in self._contests)
        candidates = sum(each.num_done for each in self._contests)
        left = self._deadline() - now
        return (
            f"tuning: {tuned} of {len(self._contests)} problems, {candidates} candidates measured, "
            f"{self.num_compiled} kernels compiled" + (f", {max(0.0, left):.0f} s left" if left < math.inf else "")
        )


def terminal() -> TextIO | None:
    """Standard error, where there is one."""
    return sys.stderr
