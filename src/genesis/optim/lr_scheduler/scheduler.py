"""LRScheduler: counts steps and sets learning rates; a step that raises changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar, cast

from genesis.autograd.modes import unrecordable
from genesis.errors import DTypeError, describe
from genesis.interrupts import at_once, replacing
from genesis.optim.optimizer import Optimizer, StateDict
from genesis.optim.options import as_number

Rates = list[float]
P = ParamSpec("P")
T = TypeVar("T")
Result = TypeVar("Result")
Scheduler = TypeVar("Scheduler", bound="LRScheduler")


def whole(method: Callable[Concatenate[Scheduler, P], Result]) -> Callable[Concatenate[Scheduler, P], Result]:
    """A method of a scheduler that is undone where anything raises: its counters, and the options of the groups."""

    @functools.wraps(method)
    def wrapper(self: Scheduler, /, *args: P.args, **kwargs: P.kwargs) -> Result:
        tables = [*map(vars, self._parts()), *self.optimizer.param_groups]
        kept = [table.copy() for table in tables]
        try:
            return method(self, *args, **kwargs)
        except BaseException:
            at_once([call for table, old in zip(tables, kept, strict=True) for call in replacing(table, old)])
            raise

    return wrapper


class LRScheduler:
    """Base class of schedulers: counts steps and sets the optimizer's learning rates to the result of get_lr.

    Args:
        optimizer: its groups' "lr" is set, first by the constructor.
        last_epoch: number of the last step taken; −1 starts a new schedule.
    Raises: DTypeError: optimizer is not an Optimizer; KeyError: last_epoch ≥ 0 without "initial_lr" in the groups.

    Example:
        >>> class Halving(genesis.optim.lr_scheduler.LRScheduler):
        ...     def get_lr(self):
        ...         return [base / 2**self.last_epoch for base in self.base_lrs]
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = Halving(optimizer)
        >>> schedule.step()
        >>> schedule.get_last_lr(), schedule.last_epoch
        ([0.5], 1)
        >>> again = Halving(optimizer)
        >>> again.load_state_dict(schedule.state_dict())
        >>> again.last_epoch
        1
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = checked(type(self).__name__, optimizer)
        for index, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", as_number(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"{type(self).__name__}: argument 'last_epoch': expected -1, or an optimizer whose state has "
                    f"'initial_lr'; param_groups[{index}] has none"
                )
        self.base_lrs: Rates = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._last_lr: Rates = []
        self._initial_step()

    def get_lr(self) -> Rates:
        """The learning rate of each group at step self.last_epoch, from those of the step before.

        Returns: one rate per group.
        Raises: NotImplementedError: a subclass lacks it.
        """
        raise NotImplementedError

    def get_last_lr(self) -> Rates:
        """The learning rate of each group, as set by the last step.

        Returns: one rate per group.
        """
        return self._last_lr

    @whole
    def step(self) -> None:
        """Set the next learning rates; call it after optimizer.step(). If it raises, on Ctrl-C too, nothing changes."""
        self._step_count += 1
        self.last_epoch += 1
        self._set(self.get_lr())

    def _initial_step(self) -> None:
        self._step_count = 1
        self.last_epoch += 1
        # A schedule that starts in the middle computes its rate as if it had just arrived there.
        self._is_initial = True
        self._set(self.get_lr())
        self._is_initial = False

    def _restart(self) -> None:
        """Go back to the first step, as SequentialLR does when it switches to a schedule."""
        self.last_epoch = 0
        self._set(self._first_lr())

    def _first_lr(self) -> Rates:
        return self.base_lrs

    def _set(self, rates: Rates) -> None:
        unrecordable("sets learning rates (a scheduler's step belongs after it)")
        for group, rate in zip(self.optimizer.param_groups, self._one_per_group(rates), strict=True):
            group["lr"] = rate
        self._last_lr = self._present()

    def _parts(self) -> list[LRScheduler]:
        """All schedulers that a step of this one may change."""
        return [self]

    def _present(self) -> Rates:
        return [cast(float, as_number(group["lr"])) for group in self.optimizer.param_groups]

    def _one_per_group(self, values: Sequence[T]) -> Sequence[T]:
        """values, which were chosen for the groups that the optimizer had then: one for each that it has now."""
        count = len(self.optimizer.param_groups)
        if len(values) != count:
            groups = f"the {len(values)} parameter group{'s' if len(values) != 1 else ''} that it had at the start"
            found = f"{count} groups; make a new {type(self).__name__} after add_param_group"
            raise ValueError(describe(type(self).__name__, "optimizer", groups, found))
        return values

    def _scaled(self, factor: float) -> Rates:
        return [rate * factor for rate in self._present()]

    def state_dict(self) -> StateDict:
        """The scheduler's state without the optimizer.

        Returns: plain values, for load_state_dict.
        """
        return {key: value for key, value in vars(self).items() if key not in ("optimizer", "_is_initial")}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load what state_dict() returned. The present learning rates are part of the optimizer's own state.

        Args:
            state_dict: of a scheduler of the same class.
        """
        vars(self).update(state_dict)


def checked(op: str, optimizer: object) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise DTypeError(describe(op, "optimizer", "an Optimizer", type(optimizer).__name__))
    return optimizer


def per_group(op: str, name: str, optimizer: Optimizer, value: T | Sequence[T]) -> list[T]:
    """One value per group: those listed, or the same for all."""
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [cast(T, value)] * count
    if len(value) != count:
        raise ValueError(describe(op, name, f"one value, or one for each of {count} groups", f"{len(value)} values"))
    return list(value)
