"""The folder of a training: its checkpoint, the best network so far, TensorBoard's events, a picture of the curves."""

from __future__ import annotations

from pathlib import Path

from genesis import checkpoint
from genesis.errors import describe
from genesis.segmentation import curves, events
from genesis.segmentation.progress import progress
from genesis.segmentation.training import Training


class RunFolder:
    """Runs a training in a folder, so that it can go on after any interruption, kill -9 too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / "checkpoint.safetensors"
        self.best = path / "best.safetensors"
        self.curves = path / "curves.png"

    def begin(self, training: Training, resume: bool) -> None:
        """Take up the checkpoint, or write the first.

        Raises: ValueError: there is a checkpoint, and it was not said to resume. FileNotFoundError: there is none, and
            it was. CheckpointError: it is of another training.
        """
        if resume:
            state = checkpoint.load(self.checkpoint)
            training.load_state(state, str(self.checkpoint))
            self._events = events.EventFile(self.path / events.NAME, state.get("events", 0))
            for file in (self.checkpoint, self.best):
                for left in self.path.glob(f".{file.name}.*.tmp"):  # by a process that was killed while it wrote
                    left.unlink()
        elif self.checkpoint.exists():
            expected = "a folder without a training; --resume goes on with this one"
            raise ValueError(describe("train", "out", expected, self.path))
        else:
            self._events = events.EventFile(self.path / events.NAME)
            self.save(training)

    def run(self, training: Training, save_every: int = 0) -> None:
        """The epochs that are left, a checkpoint after each, and after every save_every-th step."""

        def after_step(loss: float) -> None:
            self._events.add("loss", loss, training.step)
            if save_every and training.step % save_every == 0:
                self.save(training)

        with progress(training.plan.epochs, done=len(training.history)) as shown:
            while not training.is_done:
                best = max([epoch.miou for epoch in training.history], default=-1.0)
                epoch = training.run_epoch(shown, after_step)
                for name in ("lr", "miou", "dice", "accuracy"):
                    self._events.add(f"epoch/{name}", getattr(epoch, name), training.step)
                if epoch.miou > best:
                    state = training.state()
                    checkpoint.save({name: state[name] for name in ("model", "recipe", "growth")}, self.best)
                self.save(training)
        curves.save(self.curves, training.history, training.events)

    def save(self, training: Training) -> None:
        """The checkpoint, after all that it speaks of."""
        checkpoint.save({**training.state(), "events": self._events.flush()}, self.checkpoint)

    def close(self) -> None:
        self._events.close()
