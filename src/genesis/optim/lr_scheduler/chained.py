"""ChainedScheduler: several schedules at once."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.errors import DTypeError, describe
from genesis.optim.lr_scheduler.plateau import ReduceLROnPlateau
from genesis.optim.lr_scheduler.scheduler import LRScheduler, whole
from genesis.optim.optimizer import Optimizer, StateDict


class ChainedScheduler(LRScheduler):
    """Take a step of each scheduler: their factors multiply.

    Args:
        schedulers: of one optimizer; none that needs a metric.
        optimizer: theirs; that of the first one if None.
    Raises: ValueError: no scheduler, or one of another optimizer; DTypeError: a scheduler needs a metric.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> warm_up = genesis.optim.lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=2)
        >>> decay = genesis.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        >>> schedule = genesis.optim.lr_scheduler.ChainedScheduler([warm_up, decay])
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [0.5, 0.25, 0.25, 0.125]
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError(describe("ChainedScheduler", "schedulers", "at least one", "none"))
        for index, scheduler in enumerate(schedulers):
            name = f"schedulers[{index}]"
            if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
                kind = type(scheduler).__name__
                raise DTypeError(describe("ChainedScheduler", name, "a scheduler that needs no metric", kind))
            optimizer = scheduler.optimizer if optimizer is None else optimizer
            if scheduler.optimizer is not optimizer:
                raise ValueError(describe("ChainedScheduler", name, "the same optimizer", "another one"))
        assert optimizer is not None
        self.optimizer, self._schedulers = optimizer, list(schedulers)
        self._last_lr = self._present()

    @whole
    def step(self) -> None:
        """Take a step of each scheduler. If one raises, nothing has changed."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = self._present()

    def _initial_step(self) -> None:
        for scheduler in self._schedulers:
            scheduler._initial_step()
        self._last_lr = self._present()

    def _restart(self) -> None:
        for scheduler in self._schedulers:
            scheduler._restart()
        self._last_lr = self._present()

    def _parts(self) -> list[LRScheduler]:
        return [self, *[part for scheduler in self._schedulers for part in scheduler._parts()]]

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    @whole
    def load_state_dict(self, state_dict: StateDict) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)
