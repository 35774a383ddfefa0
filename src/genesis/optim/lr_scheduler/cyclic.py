"""Schedules that repeat: CyclicLR and CosineAnnealingWarmRestarts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from genesis.errors import DTypeError, describe
from genesis.optim.lr_scheduler.scheduler import LRScheduler, Rates, checked, per_group, whole
from genesis.optim.optimizer import Optimizer, StateDict

MODES = ("triangular", "triangular2", "exp_range")


class CyclicOptions(TypedDict, total=False):
    """Further options of CyclicLR."""

    scale_fn: Callable[[float], float] | None
    scale_mode: str
    cycle_momentum: bool
    base_momentum: float | Sequence[float]
    max_momentum: float | Sequence[float]
    last_epoch: int


DEFAULTS: CyclicOptions = {
    "scale_fn": None, "scale_mode": "cycle", "cycle_momentum": True, "base_momentum": 0.8, "max_momentum": 0.9,
    "last_epoch": -1,
}  # fmt: skip


class CyclicLR(LRScheduler):
    """Cyclical learning rates: up from base_lr to max_lr and down again, the momentum the other way round.

    Call step() once per batch.

    Args:
        optimizer: its learning rates and (with cycle_momentum) momenta or first betas are set.
        base_lr: lowest learning rate, or one per group.
        max_lr: highest learning rate, or one per group.
        step_size_up: steps from the lowest to the highest.
        step_size_down: steps back; as many as up if None.
        mode: "triangular" | "triangular2" (the height halves with each cycle) | "exp_range" (it is scaled by
            gamma**step).
        gamma: of "exp_range".
        options: scale_fn, a function of the cycle's number (scale_mode="cycle") or of the step ("iterations") that
            scales the height instead of mode; cycle_momentum=False leaves the momentum alone; base_momentum=0.8 and
            max_momentum=0.9, its limits, or one per group; last_epoch, see LRScheduler.
    Raises: ValueError: another mode; cycle_momentum for an optimizer without momentum.
    Source: Smith 2017, arXiv:1506.01186.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.CyclicLR(optimizer, 0.0, 1.0, step_size_up=2)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(4):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: float | Sequence[float], max_lr: float | Sequence[float],
        step_size_up: int = 2000, step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
        **options: Unpack[CyclicOptions],
    ) -> None:  # fmt: skip
        op = "CyclicLR"
        checked(op, optimizer)
        for name in options:
            if name not in DEFAULTS:
                raise DTypeError(describe(op, name, "an argument of that name", "one that does not exist"))
        chosen = DEFAULTS | options
        self._scale_fn_custom = chosen["scale_fn"]
        if mode not in MODES and self._scale_fn_custom is None:
            raise ValueError(describe(op, "mode", f"one of {MODES}, or a scale_fn", repr(mode)))
        if step_size_up < 1 or (step_size_down is not None and step_size_down < 0):
            raise ValueError(describe(op, "step_size_up", "an int >= 1, and step_size_down >= 0", step_size_up))
        base_lrs = per_group(op, "base_lr", optimizer, base_lr)
        self.max_lrs = per_group(op, "max_lr", optimizer, max_lr)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma = mode, gamma
        self.scale_mode = chosen["scale_mode"]
        if self._scale_fn_custom is None:
            self.scale_mode = "iterations" if mode == "exp_range" else "cycle"
        self.cycle_momentum = chosen["cycle_momentum"]
        starts = chosen["last_epoch"] == -1
        if self.cycle_momentum:
            self._take_momenta(optimizer, chosen, starts)
        if starts:
            for group, rate in zip(optimizer.param_groups, base_lrs, strict=True):
                group["lr"] = rate
        super().__init__(optimizer, chosen["last_epoch"])
        self.base_lrs = base_lrs

    def _take_momenta(self, optimizer: Optimizer, options: CyclicOptions, starts: bool) -> None:
        if not {"momentum", "betas"} & set(optimizer.defaults):
            raise ValueError(
                describe("CyclicLR", "cycle_momentum", "False for an optimizer without momentum or betas", True)
            )
        self.use_beta1 = "betas" in optimizer.defaults
        self.base_momentums = per_group("CyclicLR", "base_momentum", optimizer, options["base_momentum"])
        self.max_momentums = per_group("CyclicLR", "max_momentum", optimizer, options["max_momentum"])
        if starts:
            for group, low, high in zip(optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True):
                group.update(max_momentum=high, base_momentum=low)

    def scale_fn(self, x: float) -> float:
        """The factor of the height.

        Args:
            x: number of the cycle, from 1, or of the step.

        Example:
            >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
            >>> schedule = genesis.optim.lr_scheduler.CyclicLR(optimizer, 0.0, 1.0, mode="triangular2")
            >>> schedule.scale_fn(2)
            0.5
        """
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        powers = {"triangular": 1.0, "triangular2": 0.5 ** (x - 1), "exp_range": self.gamma**x}
        return float(powers[self.mode])

    def get_lr(self) -> Rates:
        self._one_per_group(self.max_lrs)
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group, low, high in zip(
                self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True
            ):
                momentum = high - (high - low) * height
                if self.use_beta1:
                    group["betas"] = (momentum, *group["betas"][1:])
                else:
                    group["momentum"] = momentum
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def _first_lr(self) -> Rates:
        return self.get_lr()

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"_scale_fn_custom": None}

    def load_state_dict(self, state_dict: StateDict) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_scale_fn_custom"})


class CosineAnnealingWarmRestarts(LRScheduler):
    """Cosine annealing from the initial learning rate to eta_min, which starts again after T_0, T_0 · T_mult, … steps.

        lr = eta_min + (initial − eta_min) · (1 + cos(π · T_cur / T_i)) / 2     at step T_cur of a cycle of T_i

    Args:
        T_0: steps of the first cycle.
        T_mult: how many times as long each cycle is as the one before.
        eta_min: lowest learning rate.
        optimizer, last_epoch: see LRScheduler.
    Raises: ValueError: T_0 or T_mult is no int ≥ 1.
    Source: Loshchilov & Hutter 2017, arXiv:1608.03983.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> [round(rate, 4) for rate in rates]
        [1.0, 0.5, 1.0, 0.5]
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(describe("CosineAnnealingWarmRestarts", name, "an int >= 1", value))
        self.T_0 = self.T_i = T_0
        self.T_mult, self.eta_min = T_mult, eta_min
        self.T_cur: float = max(last_epoch, 0)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (rate - self.eta_min) * share for rate in self.base_lrs]

    @whole
    def step(self, epoch: float | None = None) -> None:
        """Set the next learning rates, or those of a given time.

        Args:
            epoch: the time in steps since the start, as epoch + batch / batches; one step more if None.
        Raises: ValueError: a negative time.
        Example:
            >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
            >>> schedule = genesis.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2)
            >>> schedule.step(0.5)
            >>> round(schedule.get_last_lr()[0], 4)
            0.8536
        """
        self._step_count += 1
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        elif epoch < 0:
            raise ValueError(describe("CosineAnnealingWarmRestarts.step", "epoch", "a number >= 0", epoch))
        else:
            self._go_to(epoch)
        self.last_epoch = math.floor(epoch)
        self._set(self.get_lr())

    def _go_to(self, epoch: float) -> None:
        cycle = 0 if epoch < self.T_0 else int(epoch // self.T_0)
        if self.T_mult > 1:
            cycle = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
        before = cycle if self.T_mult == 1 else (self.T_mult**cycle - 1) / (self.T_mult - 1)
        self.T_cur, self.T_i = epoch - self.T_0 * before, self.T_0 * self.T_mult**cycle

    def _restart(self) -> None:
        self.T_cur, self.T_i = 0, self.T_0
        super()._restart()
