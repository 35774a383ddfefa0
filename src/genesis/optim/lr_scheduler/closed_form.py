"""Schedules that are a function of the number of steps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from genesis.errors import describe
from genesis.optim.lr_scheduler.scheduler import LRScheduler, Rates, per_group
from genesis.optim.optimizer import Optimizer, StateDict


class StepLR(LRScheduler):
    """Multiply the learning rate by gamma every step_size steps.

    Args:
        step_size: steps between two changes, at least 1.
        gamma: factor of each change.
        optimizer, last_epoch: see LRScheduler.
    Raises: ValueError: step_size is no int ≥ 1.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [1.0, 1.0, 0.1, 0.1]
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        if step_size < 1:
            raise ValueError(describe("StepLR", "step_size", "an int >= 1", step_size))
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        return self._scaled(self.gamma if self.last_epoch and self.last_epoch % self.step_size == 0 else 1)


class MultiStepLR(LRScheduler):
    """Multiply the learning rate by gamma at each milestone.

    Args:
        milestones: numbers of steps.
        gamma: factor of each change.
        optimizer, last_epoch: see LRScheduler.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3], gamma=0.5)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [1.0, 0.5, 0.5, 0.25]
    """

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
    """Multiply the learning rate by gamma at each step.

    Args:
        gamma: factor of each step.
        optimizer, last_epoch: see LRScheduler.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [1.0, 0.5, 0.25, 0.125]
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        return self._scaled(1 if self._is_initial else self.gamma)


class LambdaLR(LRScheduler):
    """Set the learning rate to the initial one times lr_lambda(step).

    Args:
        lr_lambda: function of the number of steps, or one per group; functions are not part of state_dict.
        optimizer, last_epoch: see LRScheduler.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> [round(rate, 4) for rate in rates]
        [1.0, 0.5, 0.3333, 0.25]
    """

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.lr_lambdas = per_group("LambdaLR", "lr_lambda", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        rates = self._one_per_group(self.base_lrs)
        return [rate * function(self.last_epoch) for function, rate in zip(self.lr_lambdas, rates, strict=True)]

    def _first_lr(self) -> Rates:
        return self.get_lr()

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"lr_lambdas": [None] * len(self.lr_lambdas)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "lr_lambdas"})


class MultiplicativeLR(LRScheduler):
    """Multiply the learning rate by lr_lambda(step) at each step.

    Args:
        lr_lambda: function of the number of steps, or one per group; functions are not part of state_dict.
        optimizer, last_epoch: see LRScheduler.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda step: 1 / step)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> [round(rate, 4) for rate in rates]
        [1.0, 1.0, 0.5, 0.1667]
    """

    def __init__(
        self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.lr_lambdas = per_group("MultiplicativeLR", "lr_lambda", optimizer, lr_lambda)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        if self._is_initial:
            return self._present()
        factors = self._one_per_group(self.lr_lambdas)
        return [rate * factor(self.last_epoch) for factor, rate in zip(factors, self._present(), strict=True)]

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"lr_lambdas": [None] * len(self.lr_lambdas)}

    def load_state_dict(self, state_dict: StateDict) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "lr_lambdas"})


class ConstantLR(LRScheduler):
    """Multiply the learning rate by factor for the first total_iters steps.

    Args:
        factor: in (0, 1].
        total_iters: number of steps.
        optimizer, last_epoch: see LRScheduler.
    Raises: ValueError: factor is out of range.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=2)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [0.5, 0.5, 1.0, 1.0]
    """

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if not 0 < factor <= 1:
            raise ValueError(describe("ConstantLR", "factor", "a number in (0, 1]", factor))
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        if self.last_epoch == 0:
            return self._scaled(self.factor)
        return self._scaled(1 / self.factor) if self.last_epoch == self.total_iters else self._present()

    def _first_lr(self) -> Rates:
        return [rate * self.factor for rate in self.base_lrs]


class PolynomialLR(LRScheduler):
    """Polynomial decay to 0 in total_iters steps: lr = initial · (1 − step / total_iters)^power.

    Args:
        total_iters: number of steps, at least 1.
        power: of the polynomial; 1 is linear.
        optimizer, last_epoch: see LRScheduler.
    Raises: ValueError: total_iters is no int ≥ 1.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=2, power=2.0)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [1.0, 0.25, 0.0, 0.0]
    """

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        if total_iters < 1:
            raise ValueError(describe("PolynomialLR", "total_iters", "an int >= 1", total_iters))
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._present()
        left = (1 - self.last_epoch / self.total_iters) / (1 - (self.last_epoch - 1) / self.total_iters)
        return self._scaled(left**self.power)


class LinearLR(LRScheduler):
    """Linear warm-up: from start_factor to end_factor times the learning rate, in total_iters equal steps.

    Args:
        start_factor: first factor, in (0, 1].
        end_factor: last factor, in [0, 1].
        total_iters: number of steps between them.
        optimizer, last_epoch: see LRScheduler.
    Raises: ValueError: a factor is out of range.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.5, total_iters=2)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [0.5, 0.75, 1.0, 1.0]
    """

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
    """Cosine annealing from the initial learning rate to eta_min in T_max steps, and back in as many.

        lr = eta_min + (initial − eta_min) · (1 + cos(π · step / T_max)) / 2

    Args:
        T_max: number of steps, at least 1.
        eta_min: lowest learning rate.
        optimizer, last_epoch: see LRScheduler.
    Raises: ValueError: T_max is no int ≥ 1.
    Source: Loshchilov & Hutter 2017, arXiv:1608.03983, without the restarts.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> [round(rate, 4) for rate in rates]
        [1.0, 0.5, 0.0, 0.5]
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
            starts = self._one_per_group(self.base_lrs)
            return [rate + (base - self.eta_min) * rise for rate, base in zip(self._present(), starts, strict=True)]
        now = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        before = 1 + math.cos(math.pi * (self.last_epoch - 1) / self.T_max)
        return [now / before * (rate - self.eta_min) + self.eta_min for rate in self._present()]
