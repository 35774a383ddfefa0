"""Averages of a model's weights: stochastic weight averaging (SWA) and exponential moving averages (EMA)."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence

from genesis import creation
from genesis.autograd import no_grad
from genesis.autograd.modes import state as thread
from genesis.dtypes import int64
from genesis.errors import ShapeError, describe
from genesis.functional import where
from genesis.ndarray import CPU, Device
from genesis.nn.module import Module
from genesis.nn.modules.batchnorm import _BatchNorm
from genesis.optim.lr_scheduler.scheduler import LRScheduler, Rates, per_group
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor

Average = Callable[[Tensor, Tensor, Tensor], Tensor]  # of the average so far, the model's value, and their number
Averages = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]  # changes the averages in place


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """A function that moves averages exponentially: average ← decay · average + (1 − decay) · value.

    Args:
        decay: share of the average that is kept, in [0, 1].
    Returns: an argument multi_avg_fn of AveragedModel.
    Raises: ValueError: decay is out of range.

    Example:
        >>> averages = [genesis.zeros(2)]
        >>> genesis.optim.swa_utils.get_ema_multi_avg_fn(0.5)(averages, [genesis.ones(2)], genesis.tensor(1))
        >>> averages[0].tolist()
        [0.5, 0.5]
    """
    return functools.partial(_update_each, get_ema_avg_fn(decay))


def get_swa_multi_avg_fn() -> Averages:
    """A function that keeps means of all values: average ← average + (value − average) / (num_averaged + 1).

    Returns: an argument multi_avg_fn of AveragedModel.

    Example:
        >>> averages = [genesis.zeros(2)]
        >>> genesis.optim.swa_utils.get_swa_multi_avg_fn()(averages, [genesis.ones(2)], genesis.tensor(1))
        >>> averages[0].tolist()
        [0.5, 0.5]
    """
    return functools.partial(_update_each, _mean)


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """The exponential moving average of one tensor. See `genesis.optim.swa_utils.get_ema_multi_avg_fn`."""
    if not 0 <= decay <= 1:
        raise ValueError(describe("get_ema_avg_fn", "decay", "a number in [0, 1]", decay))
    return functools.partial(_moved, decay)


def get_swa_avg_fn() -> Average:
    """The mean of all values of one tensor. See `genesis.optim.swa_utils.get_swa_multi_avg_fn`."""
    return _mean


# Of the module, so that averaged models can be pickled:


def _moved(decay: float, average: Tensor, value: Tensor, num_averaged: Tensor) -> Tensor:
    with no_grad():
        return average * decay + value * (1 - decay)


def _mean(average: Tensor, value: Tensor, num_averaged: Tensor) -> Tensor:
    with no_grad():
        return average + (value - average) / (num_averaged + 1)


def _update_each(
    new: Average, averages: Sequence[Tensor], values: Sequence[Tensor], num_averaged: Tensor
) -> None:  # fmt: skip
    with no_grad():
        for average, value in zip(averages, values, strict=True):
            average.copy_(new(average, value, num_averaged))


class AveragedModel(Module):
    """A copy of a model whose parameters are averages of the model's: their means, or what a function makes of them.

    Args:
        model: is copied; its buffers too.
        device: where the copy lies; where the model does if None.
        avg_fn: gives the new average of the old one, the model's value, and the number of values so far.
        multi_avg_fn: changes all averages of one dtype and device in place, from the values and their number.
        use_buffers: average the buffers too; else they are copied from the model.
    Shape: those of the model.
    Raises: ValueError: both functions are given.
    Source: Izmailov et al. 2018, arXiv:1803.05407.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> averaged = genesis.optim.swa_utils.AveragedModel(model)
        >>> for value in (1.0, 3.0):
        ...     _ = model.weight.data.fill_(value)
        ...     averaged.update_parameters(model)
        >>> averaged.module.weight.item()
        2.0
    """

    n_averaged: Tensor

    def __init__(
        self, model: Module, device: Device | str | None = None, avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None, use_buffers: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise ValueError(describe("AveragedModel", "avg_fn", "None beside multi_avg_fn", "both"))
        self.module = copy.deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        place = next((param.device for param in self.module.parameters()), None) if device is None else device
        self.register_buffer("n_averaged", creation.tensor(0, dtype=int64, device=place))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        result: Tensor = self.module(*args, **kwargs)
        return result

    def update_parameters(self, model: Module) -> None:
        """Take the present values of the model into the averages; the first ones are copied.

        Args:
            model: as the one that was copied.
        Raises: ShapeError: it has other parameters or buffers; then nothing has changed.

        Example:
            >>> model = nn.Linear(2, 2)
            >>> averaged = genesis.optim.swa_utils.AveragedModel(model)
            >>> averaged.update_parameters(model)
            >>> averaged.n_averaged.item()
            1
        """
        averages, values = self._paired(model.parameters(), self.module.parameters(), "parameters")
        kept, copied = self._paired(model.buffers(), self.module.buffers(), "buffers")
        if self.use_buffers:
            averages, values, kept, copied = averages + kept, values + copied, [], []
        with no_grad():
            if self.n_averaged.device is CPU and thread.watcher is None:
                is_first: bool | Tensor = self.n_averaged.item() == 0
            else:  # nobody waits for the device, and a recording may make the first update too
                is_first = self.n_averaged == 0
            if is_first is not True:
                self._average(averages, values)
            if is_first is not False:
                for average, value in zip(averages, values, strict=True):
                    average.copy_(value if is_first is True else _chosen(is_first, value, average))
            for buffer, value in zip(kept, copied, strict=True):
                buffer.copy_(value)
            self.n_averaged += 1

    def _average(self, averages: list[Tensor], values: list[Tensor]) -> None:
        if self.avg_fn is not None:
            for average, value in zip(averages, values, strict=True):
                average.copy_(self.avg_fn(average, value, self.n_averaged.to(average.device)))
            return
        update = self.multi_avg_fn or get_swa_multi_avg_fn()
        kinds = {(average.device, average.dtype): None for average in averages}
        for kind in kinds:
            chosen = [pair for pair in zip(averages, values, strict=True) if (pair[0].device, pair[0].dtype) == kind]
            update([old for old, _ in chosen], [new for _, new in chosen], self.n_averaged.to(kind[0]))

    def _paired(
        self, theirs: Iterable[Tensor], mine: Iterable[Tensor], what: str
    ) -> tuple[list[Tensor], list[Tensor]]:  # fmt: skip
        averages, values = [], []
        for average, value in itertools.zip_longest(mine, theirs):
            if average is None or value is None or average.shape != value.shape:
                raise ShapeError(describe("update_parameters", "model", f"{what} as of the copied model", "others"))
            averages.append(average.detach())
            values.append(value.detach().to(average.device))
        return averages, values


def _chosen(condition: Tensor, value: Tensor, other: Tensor) -> Tensor:
    return where(condition.to(value.device), value, other)


def update_bn(loader: Iterable[Tensor | Sequence[Tensor]], model: Module, device: Device | str | None = None) -> None:
    """Compute the running statistics of a model's batch norms anew, as means over all batches of loader.

    Args:
        loader: gives batches: tensors, or sequences of tensors of which the first is the model's input.
        model: runs forward in training mode; then every module has the mode that it had.
        device: where the batches are moved to.

    Example:
        >>> model = nn.Sequential(nn.BatchNorm1d(1))
        >>> genesis.optim.swa_utils.update_bn([genesis.tensor([[1.0], [3.0]])], model)
        >>> model[0].running_mean.tolist()
        [2.0]
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    norms = [norm for norm in norms if norm.running_mean is not None]
    if not norms:
        return
    momenta, modes = [norm.momentum for norm in norms], [(module, module.training) for module in model.modules()]
    model.train()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        with no_grad():
            for batch in loader:
                input = batch if isinstance(batch, Tensor) else batch[0]
                model(input if device is None else input.to(device))
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode


class SWALR(LRScheduler):
    """Anneal the learning rate to swa_lr in anneal_epochs steps, and keep it there.

    Args:
        optimizer, last_epoch: see LRScheduler.
        swa_lr: the last learning rate, or one per group.
        anneal_epochs: number of steps.
        anneal_strategy: "cos" | "linear".
    Raises: ValueError: another strategy; a negative number of steps.

    Example:
        >>> optimizer = genesis.optim.SGD([genesis.zeros(1, requires_grad=True)], lr=1.0)
        >>> schedule = genesis.optim.swa_utils.SWALR(optimizer, 0.5, anneal_epochs=2, anneal_strategy="linear")
        >>> rates = schedule.get_last_lr()
        >>> for _ in range(3):
        ...     schedule.step()
        ...     rates += schedule.get_last_lr()
        >>> rates
        [1.0, 0.75, 0.5, 0.5]
    """

    def __init__(
        self, optimizer: Optimizer, swa_lr: float | Sequence[float], anneal_epochs: int = 10,
        anneal_strategy: str = "cos", last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(describe("SWALR", "anneal_strategy", "'cos' or 'linear'", repr(anneal_strategy)))
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(describe("SWALR", "anneal_epochs", "an int >= 0", anneal_epochs))
        for group, rate in zip(optimizer.param_groups, per_group("SWALR", "swa_lr", optimizer, swa_lr), strict=True):
            group["swa_lr"] = rate
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> Rates:
        self._one_per_group([group for group in self.optimizer.param_groups if "swa_lr" in group])
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._share(step - 1), self._share(step)
        rates = []
        for group, rate in zip(self.optimizer.param_groups, self._present(), strict=True):
            target = group["swa_lr"]
            initial = target if before == 1 else (rate - before * target) / (1 - before)
            rates.append(target * now + initial * (1 - now))
        return rates

    def _share(self, step: int) -> float:
        """How much of the way is gone."""
        t = max(0.0, min(1.0, step / max(1, self.anneal_epochs)))
        return (1 - math.cos(math.pi * t)) / 2 if self._anneal_strategy == "cos" else t
