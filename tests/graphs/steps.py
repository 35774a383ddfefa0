"""Training steps to compile, and all that there is to see of what they do."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

import genesis
import genesis.nn.functional as F
from genesis import models, nn, optim

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "SGD": functools.partial(optim.SGD, lr=0.05),
    "momentum": functools.partial(optim.SGD, lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-4),
    "AdamW": functools.partial(optim.AdamW, lr=0.01),
    "amsgrad": functools.partial(optim.Adam, lr=0.01, amsgrad=True),
    "LARS": functools.partial(optim.LARS, lr=0.1, momentum=0.9),
}


def unet() -> nn.Module:
    return nn.Sequential(models.create("unet", width=4, num_classes=3), nn.Dropout(0.2))


def residual() -> nn.Module:
    """A small ResNet with what a classifier ends in."""
    # The same block twice: its parameters get gradients from two places.
    blocks = [nn.Residual(nn.Sequential(nn.ConvBNReLU(8, 8, 3), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)))] * 2
    tail = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 3)]
    return nn.Sequential(nn.ConvBNReLU(1, 8, 3, stride=2), nn.MaxPool2d(2), *blocks, *tail)


class Training:
    """A model in training, one step after the other, eager or compiled. Two of them draw the same numbers."""

    def __init__(self, build: Callable[[], nn.Module], optimizer: str, is_compiled: bool) -> None:
        genesis.manual_seed(0)
        self.model, self.batch = build(), 2
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.runs = 0
        self.step: Any = genesis.compile(self._step) if is_compiled else self._step

    def _step(self, x: genesis.Tensor, target: genesis.Tensor) -> genesis.Tensor:
        count_run(self)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), target)
        loss.backward()
        self.optimizer.step()
        return loss

    def take(self) -> list[Any]:
        """One step, and all that it has left behind."""
        x = genesis.randn(self.batch, 1, 16, 16)
        target = genesis.randint(0, 3, (self.batch, 16, 16) if isinstance(self.model[1], nn.Dropout) else (self.batch,))
        loss = self.step(x, target)
        self.scheduler.step()
        return [loss.item(), genesis.rand(1).item(), *everything(self.model, self.optimizer)]


def as_genesis(function: Any) -> Any:
    """function as if it were Genesis' own, into which nobody looks."""
    globals_ = {**function.__globals__, "__name__": "genesis.tested"}
    return types.FunctionType(function.__code__, globals_, None, function.__defaults__, function.__closure__)


@as_genesis
def count_run(counted: Any) -> None:
    """What a run that changes a number by itself could not do: it would not be replayed."""
    vars(counted)["runs"] += 1


def everything(model: nn.Module, optimizer: optim.Optimizer) -> list[Any]:
    """Parameters, gradients, buffers and the optimizer's state."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    found = [*model.parameters(), *model.buffers(), *[param.grad for param in (*params, *model.parameters())]]
    for param in params:
        found += optimizer.state.get(param, {}).values()
    return flat(found)


def flat(result: Any) -> list[Any]:
    """The leaves of lists and dictionaries, with copies of the tensors as torch's."""
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, list):
        return [leaf for part in result for leaf in flat(part)]
    return [result.detach().to_torch().clone() if isinstance(result, genesis.Tensor) else result]


def assert_same(mine: list[Any], theirs: list[Any]) -> None:
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
        else:
            assert one == other


def trained(training: Training, steps: int = 20) -> Iterator[list[Any]]:
    for _ in range(steps):
        yield training.take()


class Regression:
    """A linear model and its parts, for steps of all kinds."""

    def __init__(self) -> None:
        genesis.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.optimizer = optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.table = genesis.ones(3)
        self.scale, self.label = 1.0, "none"
        self.runs = 0

    def seen(self) -> list[Any]:
        return [*everything(self.model, self.optimizer), self.table.to_torch().clone()]


def take_both(compiled: Any, step: Callable[..., Any], mine: Regression, theirs: Regression) -> None:
    """One step of each on the same numbers, which leaves the same behind."""
    x = genesis.randn(5, 3)
    assert_same(flat(compiled(mine, x)), flat(step(theirs, x)))
    assert_same(mine.seen(), theirs.seen())


def descend(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    count_run(r)
    loss = r.model(x).square().mean() * r.scale
    r.optimizer.zero_grad()
    loss.backward()
    r.optimizer.step()
    return loss


def accumulate(r: Regression, x: genesis.Tensor) -> genesis.Tensor:
    count_run(r)
    loss = r.model(x).square().mean() / 3
    loss.backward()
    return loss
