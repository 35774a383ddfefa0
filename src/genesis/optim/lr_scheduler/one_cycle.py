"""OneCycleLR: the 1cycle policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from genesis.errors import describe
from genesis.optim.lr_scheduler.scheduler import LRScheduler, Rates, checked, per_group
from genesis.optim.optimizer import Optimizer


class OneCycleLR(LRScheduler):
    """1cycle policy: the learning rate rises to max_lr and anneals to almost 0, the momentum the other way round.

    Call step() once per batch.

    Args:
        optimizer: its learning rates and (with cycle_momentum) momenta or first betas are set.
        max_lr: highest learning rate, or one per group.
        total_steps: length of the cycle; by default epochs · steps_per_epoch.
        epochs, steps_per_epoch: length of the cycle, instead of total_steps.
        pct_start: share of the steps in which the learning rate rises.
        anneal_strategy: "cos" | "linear".
        cycle_momentum: whether to cycle the momentum (Adam: β₁) too.
        base_momentum, max_momentum: its lowest and highest value, or one per group.
        div_factor: the first learning rate is max_lr / div_factor.
        final_div_factor: the last learning rate is the first / final_div_factor.
        three_phase: return to the first learning rate in as many steps as the rise takes, then go to the last.
        last_epoch: see LRScheduler.
    Raises: ValueError: no length is given, an option is out of range, or step() is called beyond the cycle.
    Source: Smith & Topin 2018, arXiv:1708.07120; two phases as in fastai.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=4, cycle_momentum=False)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> [round(rate, 4) for rate in rates]
        [0.04, 0.8117, 0.2831, 0.0]
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | Sequence[float], total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        checked("OneCycleLR", optimizer)
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
        max_lrs = per_group("OneCycleLR", "max_lr", optimizer, max_lr)
        max_momenta = per_group("OneCycleLR", "max_momentum", optimizer, max_momentum)
        base_momenta = per_group("OneCycleLR", "base_momentum", optimizer, base_momentum)
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
        self._one_per_group([group for group in self.optimizer.param_groups if "max_lr" in group])
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


class _Phase(TypedDict):
    """A phase of OneCycleLR, in PyTorch's form: where it ends, and the entries of a group that it moves between."""

    end_step: float
    start_lr: str
    end_lr: str
    start_momentum: str
    end_momentum: str


def _phase(end_step: float, start_lr: str, end_lr: str, start_momentum: str, end_momentum: str) -> _Phase:
    return {
        "end_step": end_step, "start_lr": start_lr, "end_lr": end_lr,
        "start_momentum": start_momentum, "end_momentum": end_momentum,
    }  # fmt: skip
