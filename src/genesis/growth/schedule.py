"""Schedules of growth: at epochs or on a plateau, within a budget, kept or undone by the outcome."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from genesis.errors import GrowthError, describe
from genesis.growth.channel_map import channel_map
from genesis.growth.history import Step, history, rollback
from genesis.growth.snapshot import HasState
from genesis.growth.transaction import count, transaction
from genesis.interrupts import held
from genesis.nn.module import Module
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor

Growth = Callable[[Module], object]


@dataclasses.dataclass(frozen=True)
class Event:
    """A change of the network's shape, or an attempt. Made by `genesis.growth.Schedule`.

    Attributes:
        epoch: number of epochs before it.
        kind: "grown"; "kept" or "undone" at the end of a trial; "refused": it was impossible; "over budget".
        text: the operations, in words.
        parameters: number of the network's parameters afterwards.
    """

    epoch: int
    kind: str
    text: str
    parameters: int

    def __str__(self) -> str:
        return f"after epoch {self.epoch}: {self.kind}: {self.text} ({self.parameters:,} parameters)"


@dataclasses.dataclass(frozen=True)
class Point:
    """One epoch of the curve. Made by `genesis.growth.Schedule`."""

    epoch: int
    metric: float
    loss: float | None
    parameters: int


def at_epochs(*epochs: int) -> Callable[[Sequence[Point]], bool]:
    """A condition for Schedule: grow after each of these epochs, counted from 1.

    Args:
        epochs: numbers, from 1.
    Returns: a condition, of the curve so far.

    Example:
        >>> from genesis import growth
        >>> growth.at_epochs(2, 4)([growth.Point(epoch=2, metric=0.5, loss=None, parameters=10)])
        True
    """
    return lambda curve: curve[-1].epoch in epochs


class Plateau:
    """A condition for Schedule: grow when the metric has not improved for `patience` epochs of an unchanged network.

    Args:
        patience: number of epochs, at least 1.
        mode: "max" for an accuracy, "min" for a loss.
        min_delta: smallest improvement that counts.
    Raises: GrowthError: an argument is out of range.

    Example:
        >>> from genesis import growth
        >>> when = growth.Plateau(patience=1)
        >>> curve = [growth.Point(epoch, metric, None, parameters=10) for epoch, metric in enumerate((0.5, 0.6, 0.6))]
        >>> when(curve[:2]), when(curve)
        (False, True)
    """

    def __init__(self, patience: int = 3, mode: str = "max", min_delta: float = 0.0) -> None:
        if patience < 1:
            raise GrowthError(describe("Plateau", "patience", "at least 1", patience))
        self.patience, self.mode, self.min_delta = patience, _checked_mode("Plateau", mode), min_delta

    def __call__(self, curve: Sequence[Point]) -> bool:
        size = curve[-1].parameters
        start = next((i + 1 for i in reversed(range(len(curve))) if curve[i].parameters != size), 0)
        metrics = [_signed(point.metric, self.mode) for point in curve[start:]]
        if len(metrics) <= self.patience:
            return False
        return max(metrics[-self.patience :]) <= max(metrics[: -self.patience]) + self.min_delta


@dataclasses.dataclass(eq=False, repr=False)
class Schedule:
    """Grow a network during training: runs growths one after the other; call step() after each epoch.

    Args:
        model, optimizer: see transaction().
        growths: functions of the model that call grow_width and the like; each is used once, in this order, inside a
            transaction.
        when: decides from the curve so far whether to grow: at_epochs(…), a Plateau, or a function of yours.
        example: an input of the network, see transaction().
        max_parameters, max_macs: budgets; a growth beyond them is undone at once, and the next one tried in its turn.
            MACs are the multiply-accumulates of one pass over example.
        trial: number of epochs after which a growth is kept only if the metric has exceeded its previous best by more
            than min_delta; else model and optimizer are rolled back. 0 keeps every growth.
        mode: "max" if a larger metric is better, "min" if a smaller one.
        min_delta: see trial.
        on_event: called with each Event.
        averages, also: see transaction().
        seed: the k-th growth is seeded with seed + k.

    Attributes:
        events, curve: the events and the epochs so far; see picture().
    Raises: GrowthError: mode is neither "max" nor "min".

    Example:
        >>> from genesis import growth, optim
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
        >>> schedule = growth.Schedule(
        ...     net, optim.SGD(net.parameters(), lr=0.1), [lambda net: growth.grow_width(net, "0", factor=2)],
        ...     when=growth.at_epochs(2), example=genesis.zeros(1, 2), on_event=print)
        >>> for epoch in range(3):
        ...     events = schedule.step(metric=0.5)
        after epoch 2: grown: grow_width 0 to 8 (33 parameters)
    """

    model: Module
    optimizer: Optimizer | Sequence[Optimizer] | None
    growths: Iterable[Growth]
    _: dataclasses.KW_ONLY
    when: Callable[[Sequence[Point]], bool]
    example: Tensor | tuple[object, ...]
    max_parameters: int | None = None
    max_macs: int | None = None
    trial: int = 0
    mode: str = "max"
    min_delta: float = 0.0
    on_event: Callable[[Event], None] | None = None
    averages: Module | Sequence[Module] = ()
    also: Sequence[HasState] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _checked_mode("Schedule", self.mode)
        self.growths = self._growths = list(self.growths)
        self.events: list[Event] = []
        self.curve: list[Point] = []
        self.done = 0  # how many of the growths have had their turn
        self._on_trial: tuple[Step, int, float] | None = None  # the step, its epoch, the best metric before it

    def step(self, metric: float, loss: float | None = None) -> list[Event]:
        """End an epoch: judge the growth on trial, or grow if it is time.

        Args:
            metric: metric on validation data.
            loss: training loss, for the picture.
        Returns: the events of this epoch.
        """
        before, steps, num_events = self._fields(), list(history(self.model)), len(self.events)
        try:
            self.curve = [*self.curve, Point(len(self.curve) + 1, float(metric), loss, count(self.model))]
            if self._on_trial is not None:
                self._judge()
            elif self.done < len(self._growths) and self.when(self.curve):
                self._grow()
        except BaseException:
            if list(history(self.model)) == steps:  # the network is as before: so is this
                vars(self).update(before)
            raise
        new = self.events[num_events:]
        if self.on_event is not None:
            for event in new:
                self.on_event(event)
        return new

    def _fields(self) -> dict[str, object]:
        return {name: vars(self)[name] for name in ("events", "curve", "done", "_on_trial")}

    def state_dict(self) -> dict[str, object]:
        """The schedule's state as plain values, for a checkpoint; loaded, a growth on trial counts as kept.

        Returns: plain values.

        Example:
            >>> from genesis import growth
            >>> net = nn.Linear(2, 1)
            >>> schedule = growth.Schedule(net, None, [], when=growth.at_epochs(1), example=genesis.zeros(1, 2))
            >>> events = schedule.step(metric=0.5)
            >>> again = growth.Schedule(net, None, [], when=growth.at_epochs(1), example=genesis.zeros(1, 2))
            >>> again.load_state_dict(schedule.state_dict())
            >>> again.curve[0].metric
            0.5
        """
        return {
            "events": [dataclasses.asdict(event) for event in self.events],
            "curve": [dataclasses.asdict(point) for point in self.curve],
            "done": self.done,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what state_dict() returned. See `genesis.growth.Schedule.state_dict`."""
        events = [Event(**event) for event in state_dict["events"]]
        curve = [Point(**point) for point in state_dict["curve"]]
        self.events, self.curve, self.done, self._on_trial = events, curve, state_dict["done"], None

    def _grow(self) -> None:
        growth = self._growths[self.done]
        seed, self.done = self.seed + self.done, self.done + 1
        before = self._fields()
        try:
            with transaction(
                self.model, self.optimizer, example=self.example, averages=self.averages, also=self.also, seed=seed,
                keep=self.trial > 0,
            ) as step:  # fmt: skip
                growth(self.model)
                self._check_budget()
                # Inside: once the network has grown, this is known.
                if self.trial:
                    self._on_trial = step, len(self.curve), self._best(self.curve)
                self._note("grown", step.text())
        except _OverBudgetError as reason:
            vars(self).update(before)
            self._note("over budget", str(reason))
        except GrowthError as reason:
            vars(self).update(before)
            self._note("refused", str(reason))

    def _check_budget(self) -> None:
        parameters = count(self.model)
        if self.max_parameters is not None and parameters > self.max_parameters:
            raise _OverBudgetError(f"{parameters:,} parameters, at most {self.max_parameters:,}")
        if self.max_macs is not None:
            macs = channel_map(self.model, self.example).macs
            assert macs is not None
            if macs > self.max_macs:
                raise _OverBudgetError(f"{macs:,} multiplications, at most {self.max_macs:,}")

    def _judge(self) -> None:
        assert self._on_trial is not None
        step, since, best_before = self._on_trial
        if len(self.curve) - since < self.trial:
            return
        self._on_trial = None
        best = self._best(self.curve[since:])
        values = f"{step.text()}: best {self._shown(best)} in the trial, {self._shown(best_before)} before"
        if best > best_before + self.min_delta:
            step.snapshot = None
            self._note("kept", values)
        else:
            with held():
                rollback(step)
                self._note("undone", values)

    def _best(self, curve: Sequence[Point]) -> float:
        return max((_signed(point.metric, self.mode) for point in curve), default=-math.inf)

    def _shown(self, best: float) -> str:
        return "none" if best == -math.inf else f"{best if self.mode == 'max' else -best:.4g}"

    def _note(self, kind: str, text: str) -> None:
        self.events = [*self.events, Event(len(self.curve), kind, text, count(self.model))]


class _OverBudgetError(GrowthError):
    """A growth beyond the budget."""


def _signed(metric: float, mode: str) -> float:
    """A number that is larger if the metric is better."""
    return -math.inf if math.isnan(metric) else metric if mode == "max" else -metric


def _checked_mode(op: str, mode: str) -> str:
    if mode not in ("max", "min"):
        raise GrowthError(describe(op, "mode", '"max" or "min"', repr(mode)))
    return mode
