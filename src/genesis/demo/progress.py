"""How the training is going: bars in a terminal, a line per epoch elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self


class PlainProgress:
    """A line per epoch, for logs and pipes."""

    def __init__(self, epochs: int, done: int = 0) -> None:
        self.epochs, self.done = epochs, done
        self._started_after, self._start = done, time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Nothing is open."""

    def begin_epoch(self, steps: int) -> None:
        """An epoch of so many steps begins."""

    def step(self, loss: float, iou: float) -> None:
        """A step is done; loss and IoU are those on its crops."""

    def event(self, text: str) -> None:
        """Something happened between two epochs."""
        print(text, flush=True)

    def end_epoch(self, loss: float, held_out_iou: float) -> None:
        self.done += 1
        each = (time.perf_counter() - self._start) / (self.done - self._started_after)
        left = each * (self.epochs - self.done)
        print(
            f"epoch {self.done}/{self.epochs}  loss {loss:.4f}  held-out IoU {held_out_iou:.3f}  {left:.0f} s left",
            flush=True,
        )


class BarProgress(PlainProgress):
    """Two bars of rich's: the epochs, with the time left, and the steps of this one."""

    def __init__(self, epochs: int, done: int = 0) -> None:
        super().__init__(epochs, done)
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bars = Progress(
            TextColumn("{task.description:<8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
        )
        # Steps are counted in the upper bar too, so that its time left moves with each of them.
        self._all = self._bars.add_task("training", total=None, numbers="")
        self._epoch = self._bars.add_task("epoch", total=None, numbers="")

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._bars.stop()

    def begin_epoch(self, steps: int) -> None:
        if self._bars.tasks[self._all].total is None:
            self._bars.update(self._all, total=self.epochs * steps, completed=self.done * steps)
        self._bars.reset(self._epoch, total=steps, description=f"epoch {self.done + 1}", numbers="")

    def step(self, loss: float, iou: float) -> None:
        self._bars.update(self._epoch, advance=1, numbers=f"loss {loss:.4f}  IoU {iou:.3f}")
        self._bars.advance(self._all)

    def event(self, text: str) -> None:
        self._bars.console.print(text, highlight=False, markup=False)

    def end_epoch(self, loss: float, held_out_iou: float) -> None:
        self.done += 1
        self._bars.update(self._all, numbers=f"loss {loss:.4f}  held-out IoU {held_out_iou:.3f}")


def progress(epochs: int, done: int = 0) -> PlainProgress:
    """Bars where there is a terminal to draw them in."""
    return (BarProgress if sys.stdout.isatty() else PlainProgress)(epochs, done)
