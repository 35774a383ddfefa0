"""Schedules of the learning rate, with PyTorch's formulas.

A scheduler sets group["lr"] of its optimizer when it is made and at each step(). Most compute the new rate from the
present one, so that several schedulers can be chained and a rate that the user changes is respected.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

from genesis.autograd.modes import unrecordable
from genesis.errors import DTypeError, describe
from genesis.interrupts import at_once, replacing
from genesis.optim.optimizer import Optimizer

Rates = list[float]
Method = TypeVar("Method", bound=Callable[..., Any])


def _whole(method: Method) -> Method:
    """A method of a scheduler that is undone where anything raises: what it counts, and the options of the groups."""

    @functools.wraps(method)
    def whole(self: LRScheduler, *args: Any) -> Any:
        tables = [*map(vars, self._parts()), *self.optimizer.param_groups]
        kept = [table.copy() for table in tables]
        try:
            return method(self, *args)
        except BaseException:
            at_once([call for table, old in zip(tables, kept, strict=True) for call in replacing(table, old)])
            raise

    return cast(Method, whole)


class LRScheduler:
    """Base: counts the steps and writes what get_lr returns into the groups.

    Args:
        optimizer: whose groups' "lr" is set.
        last_epoch: the number of the last step taken; -1 starts anew.
    """

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = _checked(type(self).__name__, optimizer)
        for index, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", group["lr"])
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
        """The rate of each group at step self.last_epoch, given those of the step before."""
        raise NotImplementedError

    def get_last_lr(self) -> Rates:
        """The rates that were set last."""
        return self._last_lr

    @_whole
    def step(self) -> None:
        """Set the next rates; after optimizer.step(). Where anything raises, Ctrl-C too, nothing has changed."""
        self._step_count += 1
        self.last_epoch += 1
        self._set(self.get_lr())

    def _initial_step(self) -> None:
        self._step_count = 1
        self.last_epoch += 1
        # A schedule that starts in the middle computes its rate as if it had just come there.
        self._is_initial = True
        self._set(self.get_lr())
        self._is_initial = False

    def _restart(self) -> None:
        """Go back to the first step, as SequentialLR does when a schedule's turn comes."""
        self.last_epoch = 0
        self._set(self._first_lr())

    def _first_lr(self) -> Rates:
        return self.base_lrs

    def _set(self, rates: Rates) -> None:
        unrecordable("sets learning rates (a scheduler's step belongs after it)")
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        self._last_lr = self._present()

    def _parts(self) -> list[LRScheduler]:
        """All schedulers that a step of this one may change."""
        return [self]

    def _present(self) -> Rates:
        return [group["lr"] for group in self.optimizer.param_groups]

    def _scaled(self, factor: float) -> Rates:
        return [rate * factor for rate in self._present()]

    def state_dict(self) -> dict[str, Any]:
        """All but the optimizer, as plain values."""
        return {key: value for key, value in vars(self).items() if key not in ("optimizer", "_is_initial")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what state_dict() gave. The optimizer's own state holds the present rates."""
        vars(self).update(state_dict)


class StepLR(LRScheduler):
    """Multiply by gamma every step_size steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ValueError(describe("StepLR", "step_size", "an int >= 1", step_size))
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        return self._scaled(self.gamma if self.last_epoch and self.last_epoch % self.step_size == 0 else 1)


class MultiStepLR(LRScheduler):
    """Multiply by gamma at each milestone."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones: dict[int, int] = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        return self._scaled(self.gamma ** self.milestones.get(self.last_epoch, 0))

    def _first_lr(self) -> Rates:
        return [rate * self.gamma ** self.milestones.get(0, 0) for rate in self.base_lrs]


class ExponentialLR(LRScheduler):
    """Multiply by gamma at each step."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        return self._scaled(1 if self._is_initial else self.gamma)


class LambdaLR(LRScheduler):
    """The initial rate times lr_lambda(step): one function, or one per group. Functions are not in the state."""

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.lr_lambdas = _per_group("LambdaLR", "lr_lambda", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        return [rate * function(self.last_epoch) for function, rate in zip(self.lr_lambdas, self.base_lrs, strict=True)]

    def _first_lr(self) -> Rates:
        return self.get_lr()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"lr_lambdas": [None] * len(self.lr_lambdas)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "lr_lambdas"})


class LinearLR(LRScheduler):
    """From start_factor to end_factor times the rate, in total_iters equal steps: the usual warm-up."""

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not 0 < start_factor <= 1:
            raise ValueError(describe("LinearLR", "start_factor", "a number in (0, 1]", start_factor))
        if not 0 <= end_factor <= 1:
            raise ValueError(describe("LinearLR", "end_factor", "a number in [0, 1]", end_factor))
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        if self.last_epoch == 0:
            return self._scaled(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._present()
        rise = self.end_factor - self.start_factor
        return self._scaled(1 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))

    def _first_lr(self) -> Rates:
        return [rate * self.start_factor for rate in self.base_lrs]


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the initial rate to eta_min in T_max steps (and back again in as many).

    Source: Loshchilov & Hutter 2017, arXiv:1608.03983, without the restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        if T_max < 1:
            raise ValueError(describe("CosineAnnealingLR", "T_max", "an int >= 1", T_max))
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        if self._is_initial:
            return self._present()
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # the step after the lowest point
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [
                rate + (base - self.eta_min) * rise for rate, base in zip(self._present(), self.base_lrs, strict=True)
            ]
        now = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        before = 1 + math.cos(math.pi * (self.last_epoch - 1) / self.T_max)
        return [now / before * (rate - self.eta_min) + self.eta_min for rate in self._present()]


class SequentialLR(LRScheduler):
    """One schedule after the other: schedulers[i + 1] starts at step milestones[i].

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> warm_up = genesis.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=2)
        >>> decay = genesis.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
        >>> schedule = genesis.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [2])
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [0.5, 0.75, 1.0, 0.1]
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        if not schedulers or len(milestones) != len(schedulers) - 1:
            expected = f"one less than there are schedulers ({len(schedulers)})"
            raise ValueError(describe("SequentialLR", "milestones", expected, len(milestones)))
        for index, scheduler in enumerate(schedulers):
            if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
                kind = type(scheduler).__name__
                raise DTypeError(
                    describe("SequentialLR", f"schedulers[{index}]", "a scheduler that needs no metric", kind)
                )
            if scheduler.optimizer is not optimizer:
                raise ValueError(describe("SequentialLR", f"schedulers[{index}]", "the same optimizer", "another one"))
        self.optimizer, self._schedulers, self._milestones = optimizer, list(schedulers), list(milestones)
        self.last_epoch = last_epoch + 1
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        self._undo()
        self._initial_step()

    def _initial_step(self) -> None:
        self._present_part()._initial_step()
        self._last_lr = self._present()

    def _restart(self) -> None:
        self.last_epoch = 0
        self._present_part()._restart()
        self._last_lr = self._present()

    def _present_part(self) -> LRScheduler:
        return self._schedulers[bisect_right(self._milestones, self.last_epoch)]

    def _parts(self) -> list[LRScheduler]:
        return [self, *[part for scheduler in self._schedulers for part in scheduler._parts()]]

    @_whole
    def step(self) -> None:
        self.last_epoch += 1
        part = self._present_part()
        if self.last_epoch in self._milestones:
            part._restart()
        else:
            part.step()
        self._last_lr = self._present()

    def _undo(self) -> None:
        """Take back the step that each schedule took when it was made."""
        for scheduler in self._schedulers:
            if isinstance(scheduler, SequentialLR):
                scheduler._undo()
            else:
                scheduler.last_epoch -= 1

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    @_whole
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


class OneCycleLR(LRScheduler):
    """Up to max_lr and down to almost nothing, while the momentum goes the other way; a step per batch.

    Args:
        optimizer: whose rates and (with cycle_momentum) momenta or first betas are set.
        max_lr: the highest rate; one number, or one for each group.
        total_steps: the length of the cycle; else epochs · steps_per_epoch.
        pct_start: the share of the steps that goes up.
        anneal_strategy: "cos" | "linear".
        div_factor: the first rate is max_lr / div_factor.
        final_div_factor: the last rate is the first / final_div_factor.
        three_phase: come down to the first rate in as many steps as it went up, then to the last.
    Source: Smith & Topin 2018, arXiv:1708.07120; two phases as in fastai.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        _checked("OneCycleLR", optimizer)
        if total_steps is None and epochs is not None and steps_per_epoch is not None:
            total_steps = epochs * steps_per_epoch
        if not isinstance(total_steps, int) or total_steps < 1:
            expected = "an int >= 1, or epochs and steps_per_epoch"
            raise ValueError(describe("OneCycleLR", "total_steps", expected, total_steps))
        if not 0 <= pct_start <= 1:
            raise ValueError(describe("OneCycleLR", "pct_start", "a number in [0, 1]", pct_start))
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(describe("OneCycleLR", "anneal_strategy", "'cos' or 'linear'", repr(anneal_strategy)))
        if cycle_momentum and not {"momentum", "betas"} & set(optimizer.defaults):
            raise ValueError(
                describe("OneCycleLR", "cycle_momentum", "False for an optimizer without momentum or betas", True)
            )
        max_lrs = _per_group("OneCycleLR", "max_lr", optimizer, max_lr)
        max_momenta = _per_group("OneCycleLR", "max_momentum", optimizer, max_momentum)
        base_momenta = _per_group("OneCycleLR", "base_momentum", optimizer, base_momentum)
        self.total_steps, self._anneal_func_type, self.cycle_momentum = total_steps, anneal_strategy, cycle_momentum
        self.use_beta1 = "betas" in optimizer.defaults
        rise = float(pct_start * total_steps)
        up = _phase(rise - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum")
        down = _phase(total_steps - 1, "max_lr", "min_lr", "base_momentum", "max_momentum")
        back = _phase(2 * rise - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum")
        out = _phase(total_steps - 1, "initial_lr", "min_lr", "max_momentum", "max_momentum")
        self._schedule_phases = [up, back, out] if three_phase else [up, down]
        if last_epoch == -1:
            for group, highest, max_m, base_m in zip(
                optimizer.param_groups, max_lrs, max_momenta, base_momenta, strict=True
            ):
                first = highest / div_factor
                group.update(initial_lr=first, max_lr=highest, min_lr=first / final_div_factor)
                if cycle_momentum:
                    group.update(max_momentum=max_m, base_momentum=base_m)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        if self.last_epoch > self.total_steps:
            raise ValueError(f"OneCycleLR: step {self.last_epoch} is beyond the cycle's total_steps={self.total_steps}")
        phase, start = self._schedule_phases[0], 0.0
        for following in self._schedule_phases[1:]:
            if self.last_epoch > phase["end_step"]:
                phase, start = following, phase["end_step"]
        part = (self.last_epoch - start) / (phase["end_step"] - start)
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[phase["start_lr"]], group[phase["end_lr"]], part))
            if self.cycle_momentum:
                momentum = self._between(group[phase["start_momentum"]], group[phase["end_momentum"]], part)
                if self.use_beta1:
                    group["betas"] = (momentum, *group["betas"][1:])
                else:
                    group["momentum"] = momentum
        return rates

    def _first_lr(self) -> Rates:
        return self.get_lr()

    def _between(self, start: float, end: float, part: float) -> float:
        if self._anneal_func_type == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)


def _phase(end_step: float, start_lr: str, end_lr: str, start_momentum: str, end_momentum: str) -> dict[str, Any]:
    """A stretch of OneCycleLR: where it ends, and the entries of a group between which it moves."""
    return {
        "end_step": end_step, "start_lr": start_lr, "end_lr": end_lr,
        "start_momentum": start_momentum, "end_momentum": end_momentum,
    }  # fmt: skip


class ReduceLROnPlateau(LRScheduler):
    """Multiply by factor when a metric has not improved for more than patience steps: step(metric).

    Args:
        optimizer: whose rates are set.
        mode: "min" | "max": which way the metric improves.
        threshold: what counts as an improvement, relative to the best ("rel") or as it is ("abs").
        cooldown: steps after a reduction in which nothing is counted.
        min_lr: no rate goes below it; one number, or one for each group.
        eps: a smaller change of the rate is not made.
    """

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
        min_lr: float | Sequence[float] = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if factor >= 1.0:
            raise ValueError(describe("ReduceLROnPlateau", "factor", "a number < 1", factor))
        if mode not in ("min", "max"):
            raise ValueError(describe("ReduceLROnPlateau", "mode", "'min' or 'max'", repr(mode)))
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(describe("ReduceLROnPlateau", "threshold_mode", "'rel' or 'abs'", repr(threshold_mode)))
        self.optimizer = _checked("ReduceLROnPlateau", optimizer)
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.min_lrs = _per_group("ReduceLROnPlateau", "min_lr", optimizer, min_lr)
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = self.last_epoch = 0
        self._last_lr = self._present()

    @_whole
    def step(self, metrics: Any) -> None:  # type: ignore[override]
        current = float(metrics)
        self.last_epoch += 1
        if self._is_better(current):
            self.best, self.num_bad_epochs = current, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
        self._last_lr = self._present()

    def _is_better(self, current: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        margin = sign * self.threshold
        bound = self.best * (1.0 - margin) if self.threshold_mode == "rel" else self.best - margin
        return sign * current < sign * bound

    def _reduce(self) -> None:
        for group, low in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            rate = max(group["lr"] * self.factor, low)
            if group["lr"] - rate > self.eps:
                group["lr"] = rate


def _checked(op: str, optimizer: Any) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise DTypeError(describe(op, "optimizer", "an Optimizer", type(optimizer).__name__))
    return optimizer


def _per_group(op: str, name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """One value for each group: the listed ones, or the same for all."""
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        return [value] * count
    if len(value) != count:
        raise ValueError(describe(op, name, f"one value, or one for each of {count} groups", f"{len(value)} values"))
    return list(value)
