"""How far a training or a row of things is: bars in a terminal, lines or nothing elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress


class _Shown:
    """Something with bars of rich's, or without: then there is nothing to open and to close."""

    _bars: Progress | None = None

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()


def _bars() -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    said = TextColumn("{task.fields[text]}", markup=False)  # names of files may have brackets
    return Progress(TextColumn("{task.description:<8}"), BarColumn(), MofNCompleteColumn(), said, TimeRemainingColumn())


def _has_bars() -> bool:
    """Whether there is a terminal to draw in, and something to draw with."""
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None


class PlainProgress(_Shown):
    """A training's: a line per epoch.

    Args:
        epochs: how many there are.
        done: how many an earlier run has made.
    """

    def __init__(self, epochs: int, done: int = 0) -> None:
        self.epochs, self.done = epochs, done
        self._started_after, self._start = done, time.perf_counter()

    def begin_epoch(self, steps: int, done: int = 0) -> None:
        """An epoch of so many steps begins, of which some are done."""

    def step(self, loss: float, score: object) -> None:
        """A step is done; loss and score are those on its crops."""

    def event(self, text: str) -> None:
        """Something happened between two epochs."""
        print(text, flush=True)

    def end_epoch(self, loss: float, held_out: object) -> None:
        """An epoch is done; its mean loss, and the score on what is held out."""
        self.done += 1
        each = (time.perf_counter() - self._start) / (self.done - self._started_after)
        left = each * (self.epochs - self.done)
        print(f"epoch {self.done}/{self.epochs}  loss {loss:.4f}  held-out {held_out}  {left:.0f} s left", flush=True)


class NoProgress(PlainProgress):
    """A training's on a rank that is not the first."""

    def event(self, text: str) -> None:
        """Nothing is shown."""

    def end_epoch(self, loss: float, held_out: object) -> None:
        """Nothing is shown."""


class BarProgress(PlainProgress):
    """A training's: the epochs, with the time left, and the steps of this one."""

    _bars: Progress

    def __init__(self, epochs: int, done: int = 0) -> None:
        super().__init__(epochs, done)
        self._bars = _bars()
        # Steps are counted in the upper bar too, so that its time left moves with each of them.
        self._all = self._bars.add_task("training", total=None, text="")
        self._epoch = self._bars.add_task("epoch", total=None, text="")

    def begin_epoch(self, steps: int, done: int = 0) -> None:
        if self._bars.tasks[self._all].total is None:
            self._bars.update(self._all, total=self.epochs * steps, completed=self.done * steps + done)
        self._bars.reset(self._epoch, total=steps, completed=done, description=f"epoch {self.done + 1}", text="")

    def step(self, loss: float, score: object) -> None:
        self._bars.update(self._epoch, advance=1, text=f"loss {loss:.4f}  {score}")
        self._bars.advance(self._all)

    def event(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def end_epoch(self, loss: float, held_out: object) -> None:
        self.done += 1
        self._bars.update(self._all, text=f"loss {loss:.4f}  held-out {held_out}")


class Counter(_Shown):
    """Things that are done one by one: counted in silence."""

    def advance(self, name: str) -> None:
        """One more is done; its name."""


class BarCounter(Counter):
    """Things that are done one by one: a bar with the time left."""

    _bars: Progress

    def __init__(self, what: str, total: int) -> None:
        self._bars = _bars()
        self._task = self._bars.add_task(what, total=total, text="")

    def advance(self, name: str) -> None:
        self._bars.update(self._task, advance=1, text=name.encode(errors="replace").decode())


def progress(epochs: int, done: int = 0) -> PlainProgress:
    """Progress of a training: bars if there is a terminal to draw them in and something left to do, else lines."""
    return (BarProgress if done < epochs and _has_bars() else PlainProgress)(epochs, done)


def counter(what: str, total: int) -> Counter:
    """Progress of a series of items: a bar if there is a terminal to draw it in."""
    return BarCounter(what, total) if _has_bars() else Counter()
