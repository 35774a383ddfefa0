"""The log of how a network grew: what was done in each step, and how to undo it or do it again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NotRequired, Required, TypedDict

from genesis.errors import GrowthError, describe
from genesis.growth.known import KnownMap
from genesis.growth.snapshot import Snapshot
from genesis.interrupts import finish, held
from genesis.nn.module import Module


class Operation(TypedDict, total=False):
    """An operation's name, where it took place, and its other arguments."""

    operation: Required[str]
    where: Required[str]
    channels: int | None
    kernel_size: int
    noise: float
    new: str
    by: str
    which: Sequence[int]


class Record(TypedDict):
    """A step as plain values. A log of 0.1.0 has no `training_deviation`."""

    operations: Sequence[Operation]
    example: Sequence[object] | None
    parameters: tuple[int, int]
    deviation: float | None
    training_deviation: NotRequired[float | None]


class Step:
    """A committed transaction. Made by `genesis.growth.transaction`.

    Attributes:
        number: position in the history, from 0.
        operations: each a dict of the operation's name and its arguments.
        example: shape and dtype of each input that the network was run on (or the input, if it is not a tensor).
        parameters: number of parameters' elements before and after.
        deviation: largest relative change of the outputs in eval mode, as measured; None if the function was not to be
            kept.
        training_deviation: the same in training mode; None also if the example does not run in it.
    """

    def __init__(self, number: int, before: int) -> None:
        self.number = number
        self.operations: list[Operation] = []
        self.example: list[object] | None = None
        self.parameters = (before, before)
        self.deviation: float | None = None
        self.training_deviation: float | None = None
        self.snapshot: Snapshot | None = None
        self.history: History | None = None
        self.known_before = KnownMap()

    def __getstate__(self) -> dict[str, object]:
        """Copies and pickles of a network keep the log, not the snapshot: that is of the original's objects, and would
        take the optimizer along."""
        return {**vars(self), "snapshot": None}

    def __repr__(self) -> str:
        return f"step {self.number}: {self.text()} ({self.parameters[0]:,} → {self.parameters[1]:,} parameters)"

    def text(self) -> str:
        """The operations, in words.

        Example:
            >>> from genesis import growth
            >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
            >>> growth.grow_width(net, "0", channels=5, example=genesis.zeros(1, 2)).text()
            'grow_width 0 to 5'
        """
        kinds = [(kind, list(some)) for kind, some in itertools.groupby(self.operations, lambda o: o["operation"])]
        told = [_sentence(some[0]) if len(some) == 1 else f"{kind} of {len(some)} layers" for kind, some in kinds]
        return "; ".join(told) or "nothing"

    def record(self) -> Record:
        """Everything that replay() needs, as plain values.

        Returns: the operations, the example's shapes, the numbers of parameters, the deviations.

        Example:
            >>> from genesis import growth
            >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
            >>> growth.grow_width(net, "0", channels=5, example=genesis.zeros(1, 2)).record()["parameters"]
            (13, 21)
        """
        return {
            "operations": self.operations,
            "example": self.example,
            "parameters": self.parameters,
            "deviation": self.deviation,
            "training_deviation": self.training_deviation,
        }


class History:
    """The steps of one network, oldest first: a sequence, which checkpoints keep as plain values. Made by
    `genesis.growth.history`.
    """

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
        """Free the memory of all snapshots; no step can be rolled back any more.

        Example:
            >>> from genesis import growth
            >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
            >>> step = growth.grow_width(net, "0", channels=5, example=genesis.zeros(1, 2))
            >>> growth.history(net).forget()
            >>> step.snapshot is None
            True
        """
        for step in self.steps:
            step.snapshot, step.known_before = None, KnownMap()

    def state_dict(self) -> dict[str, list[Record]]:
        """The log, for a checkpoint; see replay().

        Returns: plain values.

        Example:
            >>> from genesis import growth
            >>> net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
            >>> step = growth.grow_width(net, "0", channels=5, example=genesis.zeros(1, 2))
            >>> [step["operations"][0]["channels"] for step in growth.history(net).state_dict()["steps"]]
            [5]
        """
        return {"steps": [step.record() for step in self.steps]}


def history(model: Module) -> History:
    """The growth steps of a network so far.

    Args:
        model: any network.
    Returns: a sequence of steps, empty at first.

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> growth.grow_width(net, "0", channels=5, example=genesis.zeros(1, 2))
        step 0: grow_width 0 to 5 (13 → 21 parameters)
        >>> len(growth.history(net))
        1
    """
    # With the model, and not in a table: its snapshots hold the model, and both must be freed together.
    found: History = vars(model).setdefault("_growth_history", History())
    return found


def rollback(step: Step) -> None:
    """Restore model, optimizer and whatever else the transaction was given, bit for bit, to before this step.

    Later steps, and all training since, are undone too.

    Args:
        step: of the history of a network.
    Raises: GrowthError: the step's snapshot was not kept, or the step is undone already.

    Example:
        >>> from genesis import growth
        >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> step = growth.grow_width(net, "0", channels=5, example=genesis.zeros(1, 2))
        >>> growth.rollback(step)
        >>> net[0].out_features
        3
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


def _sentence(operation: Operation) -> str:
    size = f" to {operation['channels']}" if "width" in operation["operation"] else ""
    return f"{operation['operation']} {operation['where']}{size}"
