"""The folder of a training: its checkpoint, the best network so far, TensorBoard's events, a picture of the curves."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from genesis import checkpoint
from genesis.errors import describe
from genesis.files import Lock
from genesis.segmentation import curves, events, ranks
from genesis.segmentation.progress import NoProgress, PlainProgress, progress
from genesis.segmentation.training import Training

_LOCK = ".lock"


def claim(
    op: str, files: Sequence[Path], resume: bool, overwrite: bool, repeats: Callable[[], bool] = lambda: False
) -> Lock:  # fmt: skip
    """Keep other processes out of a folder, in which no file of a training stands, or the one that is to go on.

    Args:
        op: the command, for messages.
        files: what the training writes, its checkpoint first.
        resume: go on with what stands there.
        overwrite: begin anew in its place. Links among the files are removed: what they lead to is another's.
        repeats: whether the checkpoint that stands there will come out of this training again.
    Returns: the lock, to be released at the end; it goes with the process, too.
    Raises: ValueError: another process has the folder, or a file stands there. FileNotFoundError: none, and it is to be
        resumed.
    """
    folder, first = files[0].parent, files[0]
    if resume and not first.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(first))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(folder / _LOCK)
    except BlockingIOError as error:
        raise ValueError(describe(op, "out", "a folder of its own", f"{folder}, {error.strerror}")) from None
    try:
        if not resume:
            _clear(op, files, overwrite, repeats)
    except BaseException:
        lock.release()
        raise
    return lock


def _clear(op: str, files: Sequence[Path], overwrite: bool, repeats: Callable[[], bool]) -> None:
    standing = [file for file in files if os.path.lexists(file)]
    links = [file for file in standing if file.is_symlink()]
    if not standing or (not overwrite and not links and standing[0] == files[0] and repeats()):
        return
    if overwrite:
        for file in standing[1:] if standing[0] == files[0] and files[0] not in links else standing:
            file.unlink()  # the checkpoint stays until the new one takes its place
    elif standing[0] == files[0]:
        expected = "a folder without a training; --resume goes on with this one, --overwrite begins anew"
        raise ValueError(describe(op, "out", expected, files[0].parent))
    else:
        expected = f"a folder without {standing[0].name}; --overwrite takes its place"
        raise ValueError(describe(op, "out", expected, files[0].parent))


class RunFolder:
    """Runs a training in a folder, so that it can go on after any interruption, kill -9 too; no other process can."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.best = path / "best.safetensors"
        self.curves = path / "curves.png"
        self._lock: Lock | None = None
        self._events: events.EventFile | None = None  # of several ranks, the first has it

    def begin(self, training: Training, resume: bool, overwrite: bool = False) -> None:
        """Take up the checkpoint, or write the first.

        Raises: ValueError: another process is at it, or there is something, and it was not said to resume or overwrite.
            FileNotFoundError: there is none to resume. CheckpointError: it is of another training.
        """
        log = self.path / events.NAME
        files = [self.checkpoint, self.best, self.curves, log]

        def take() -> None:
            self._lock = claim("train", files, resume, overwrite)

        ranks.by_first(take)
        try:
            size = 0
            if resume:
                state = checkpoint.load(self.checkpoint)
                training.load_state(state, str(self.checkpoint))
                size = state.get("events", 0)
            if ranks.is_first():
                self._events = events.EventFile(log, size)
                if not resume:
                    self.save(training)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise

    def run(self, training: Training, save_every: int = 0) -> None:
        """The epochs that are left, a checkpoint after each, and after every save_every-th step."""

        def after_step(loss: float) -> None:
            if self._events is not None:
                self._events.add("loss", loss, training.step)
            if save_every and training.step % save_every == 0:
                self.save(training)

        with self._shown(training) as shown:
            while not training.is_done:
                best = max([epoch.miou for epoch in training.history], default=-1.0)
                epoch = training.run_epoch(shown, after_step)
                if self._events is None:
                    continue
                for name in ("lr", "miou", "dice", "accuracy"):
                    self._events.add(f"epoch/{name}", getattr(epoch, name), training.step)
                if epoch.miou > best:
                    state = training.state()
                    checkpoint.save({name: state[name] for name in ("model", "recipe", "growth")}, self.best)
                self.save(training)
        if ranks.is_first():
            curves.save(self.curves, training.history, training.events)

    def _shown(self, training: Training) -> PlainProgress:
        epochs, done = training.plan.epochs, len(training.history)
        return progress(epochs, done) if ranks.is_first() else NoProgress(epochs, done)

    def save(self, training: Training) -> None:
        """The checkpoint, after all that it speaks of; of several ranks, the first writes it."""
        if self._events is not None:
            ranks.settle()
            checkpoint.save({**training.state(), "events": self._events.flush()}, self.checkpoint)

    def close(self) -> None:
        try:
            if self._events is not None:
                self._events.close()
        finally:
            if self._lock is not None:
                self._lock.release()
