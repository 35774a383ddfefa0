"""ReduceLROnPlateau: a schedule that follows a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsFloat

from genesis.errors import describe
from genesis.optim.lr_scheduler.scheduler import LRScheduler, checked, per_group, whole
from genesis.optim.optimizer import Optimizer


class ReduceLROnPlateau(LRScheduler):
    """Multiply the learning rate by factor when a metric has not improved for more than patience steps.

    Call step(metric), usually once per epoch.

    Args:
        optimizer: its groups' "lr" is set.
        mode: "min" | "max": the direction in which the metric improves.
        factor: factor of each reduction, below 1.
        patience: steps without improvement that are tolerated.
        threshold: smallest change that counts as an improvement.
        threshold_mode: "rel", relative to the best value so far, or "abs".
        cooldown: steps after a reduction in which nothing is counted.
        min_lr: lower bound of the learning rate, or one per group.
        eps: reductions by no more than this are skipped.
    Raises: ValueError: an option is out of range.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        >>> for loss in (2.0, 2.0, 2.0):
        ...     schedule.step(loss)
        >>> schedule.get_last_lr()
        [0.1]
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
        self.optimizer = checked("ReduceLROnPlateau", optimizer)
        self.mode, self.factor, self.patience, self.cooldown, self.eps = mode, factor, patience, cooldown, eps
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.min_lrs = per_group("ReduceLROnPlateau", "min_lr", optimizer, min_lr)
        self.default_min_lr = None if isinstance(min_lr, Sequence) else min_lr
        self.best = math.inf if mode == "min" else -math.inf
        self.cooldown_counter = self.num_bad_epochs = self.last_epoch = 0
        self._last_lr = self._present()

    @whole
    def step(self, metrics: SupportsFloat) -> None:  # type: ignore[override]
        """Count a step with this value of the metric, a number or a tensor of one element."""
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
        if self.default_min_lr is not None:  # for groups that were added since, too
            self.min_lrs = [self.default_min_lr] * len(self.optimizer.param_groups)
        lowest = self._one_per_group(self.min_lrs)
        for group, present, low in zip(self.optimizer.param_groups, self._present(), lowest, strict=True):
            rate = max(present * self.factor, low)
            if present - rate > self.eps:
                group["lr"] = rate
