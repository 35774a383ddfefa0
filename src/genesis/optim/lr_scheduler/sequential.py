"""SequentialLR: one schedule after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from genesis.errors import DTypeError, describe
from genesis.optim.lr_scheduler.plateau import ReduceLROnPlateau
from genesis.optim.lr_scheduler.scheduler import LRScheduler, whole
from genesis.optim.optimizer import Optimizer, StateDict


class SequentialLR(LRScheduler):
    """Run one scheduler after the other: schedulers[i + 1] starts at step milestones[i].

    Args:
        schedulers: of the same optimizer; none that needs a metric.
        milestones: one number of steps less than there are schedulers, ascending.
        optimizer, last_epoch: see LRScheduler.
    Raises: ValueError: another number of milestones, or another optimizer; DTypeError: a scheduler needs a metric.

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

    @whole
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

    def state_dict(self) -> StateDict:
        return super().state_dict() | {"_schedulers": [scheduler.state_dict() for scheduler in self._schedulers]}

    @whole
    def load_state_dict(self, state_dict: StateDict) -> None:
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "_schedulers"})
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)
