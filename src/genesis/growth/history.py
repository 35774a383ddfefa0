"""The log of how a network grew: what was done in each step, and how to undo it or do it again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from genesis.errors import GrowthError, describe
from genesis.growth.known import KnownMap
from genesis.growth.snapshot import Snapshot
from genesis.interrupts import finish, held
from genesis.nn.module import Module


class Step:
    """One transaction that was committed.

    Attributes:
        number: its place in the history, from 0.
        operations: what was done, each a dictionary of the operation's name, its arguments, and what it changed.
        example: shape and dtype of each input that the network was run on (or the input, if it is no tensor).
        parameters: how many numbers the network learns, before and after.
        deviation: the largest relative change of the outputs in eval mode, measured; None where it was not to be kept.
        training_deviation: the same in training mode; None also where the example does not run in it.
    """

    def __init__(self, number: int, before: int) -> None:
        self.number = number
        self.operations: list[dict[str, Any]] = []
        self.example: list[Any] | None = None
        self.parameters = (before, before)
        self.deviation: float | None = None
        self.training_deviation: float | None = None
        self.snapshot: Snapshot | None = None
        self.history: History | None = None
        self.known_before = KnownMap()

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles of a network know what was done, and not the state from before: that is of the original's
        objects, and would take the optimizer along."""
        return {**vars(self), "snapshot": None}

    def __repr__(self) -> str:
        return f"step {self.number}: {self.text()} ({self.parameters[0]:,} → {self.parameters[1]:,} parameters)"

    def text(self) -> str:
        """What was done, in words."""
        kinds = [(kind, list(some)) for kind, some in itertools.groupby(self.operations, lambda o: o["operation"])]
        told = [_sentence(some[0]) if len(some) == 1 else f"{kind} of {len(some)} layers" for kind, some in kinds]
        return "; ".join(told) or "nothing"

    def record(self) -> dict[str, Any]:
        """All that replay() needs, as plain values."""
        return {
            "operations": self.operations,
            "example": self.example,
            "parameters": self.parameters,
            "deviation": self.deviation,
            "training_deviation": self.training_deviation,
        }


class History:
    """The steps of one network, oldest first: a sequence, and what checkpoints keep of it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.failures: list[str] = []
        self.known = KnownMap()  # what the last growth has left for the next one

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __getitem__(self, index: int) -> Step:
        return self.steps[index]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.steps)) or "no growth yet"

    def forget(self) -> None:
        """Give back the memory of the earlier states; no step can be undone any more."""
        for step in self.steps:
            step.snapshot, step.known_before = None, KnownMap()

    def state_dict(self) -> dict[str, Any]:
        """The log as plain values, for a checkpoint; see replay()."""
        return {"steps": [step.record() for step in self.steps]}


def history(model: Module) -> History:
    """How this network grew so far.

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> growth.grow_width(net, "0", channels=5, example=genesis.zeros(1, 2))
        step 0: grow_width 0 to 5 (13 → 21 parameters)
        >>> len(growth.history(net))
        1
    """
    # With the model, and not in a table: its snapshots hold the model, and both must go together.
    return vars(model).setdefault("_growth_history", History())


def rollback(step: Step) -> None:
    """Put model, optimizer and all else that its transaction was given back, bit for bit, to before this step.

    Later steps go with it, and so does what was trained since.

    Raises: GrowthError: the state from before has been forgotten, or the step was undone already.
    """
    log = step.history
    if log is None or step not in log.steps:
        raise GrowthError(describe("rollback", "step", "a step of a network's history", f"{step!r}, which is undone"))
    if step.snapshot is None:
        raise GrowthError(
            describe("rollback", "step", "a step whose earlier state is kept", f"step {step.number}, without one")
        )
    snapshot = step.snapshot
    with held():
        finish(lambda: snapshot.restore((setattr, log, "known", step.known_before)))


def _sentence(operation: dict[str, Any]) -> str:
    size = f" to {operation['channels']}" if "width" in operation["operation"] else ""
    return f"{operation['operation']} {operation['where']}{size}"
