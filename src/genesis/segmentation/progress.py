"""How far a row of things is: a bar in a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self


class Counter:
    """Counts in silence, for logs and pipes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is open."""

    def advance(self, name: str) -> None:
        """One more is done; its name."""


class BarCounter(Counter):
    """A bar of rich's, with the rest of the time."""

    def __init__(self, what: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[name]}"), TimeRemainingColumn())
        self._bars = Progress(TextColumn("{task.description}"), *columns)
        self._task = self._bars.add_task(what, total=total, name="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._bars.stop()

    def advance(self, name: str) -> None:
        self._bars.update(self._task, advance=1, name=name)


def counter(what: str, total: int) -> Counter:
    """A bar where there is a terminal to draw it in."""
    return BarCounter(what, total) if sys.stdout.isatty() else Counter()
