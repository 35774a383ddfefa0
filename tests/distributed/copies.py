"""What the ranks run: how DistributedDataParallel brings gradients into buckets, and buffers to all ranks."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import genesis
import genesis.nn.functional as F
from genesis import backends, nn
from genesis.distributed.group import require
from genesis.nn.parallel import DistributedDataParallel
from tests.distributed.programs import batch, convolutional


class Buffers(nn.Module):
    """Buffers of several dtypes, orders of memory and sizes; a row of them is replaced by another."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)
        for name, value in self.drawn(rank).items():
            self.register_buffer(name, value)

    @staticmethod
    def drawn(rank: int) -> dict[str, genesis.Tensor]:
        wide = genesis.arange(12).reshape(3, 4) + 100 * rank
        return {
            "count": genesis.tensor(rank),
            "mask": genesis.tensor([rank == 0, True, False]),
            "nothing": genesis.zeros(0, 2),
            "transposed": wide.to(genesis.float64).T,
            "narrow": wide.to(genesis.bfloat16),
            "cut": wide.float()[:, ::2],
        }

    def forward(self, x: genesis.Tensor) -> genesis.Tensor:
        return self.linear(x)


def buffers(rank: int, size: int) -> None:
    """All become rank 0's: at the start, and in each forward, changed in place or replaced."""
    module = Buffers(rank)
    model, expected = DistributedDataParallel(module), Buffers.drawn(0)
    for round_number in range(4):
        for name, value in expected.items():
            assert getattr(module, name).tolist() == value.tolist(), (round_number, name)
        for name, value in Buffers.drawn(10 * round_number + rank + 1).items():
            if round_number == 1:
                setattr(module, name, value)
            else:
                getattr(module, name).copy_(value)
        model(genesis.ones(1, 1)).sum().backward()
        expected = Buffers.drawn(10 * round_number + 1)


def calls(rank: int, size: int) -> tuple[dict[str, int], int, int]:
    """A step whose buckets are settled. Returns: how many copies it makes, of collective calls, and of buckets."""
    model = DistributedDataParallel(convolutional())
    inputs = batch(rank, "float32", image=True)[0]
    made: Counter[str] = Counter()

    def counted(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            made[op] += 1
            return function(*args, **kwargs)

        return call

    for _ in range(2):
        model(inputs).sum().backward()
    model.zero_grad()
    before = require("calls").count(0)
    with backends.use("cpu", backends.get("cpu").wrapped(counted)):
        loss = model(inputs).sum()
        copies = {"buffers": made.pop("copy_all_into")}
        loss.backward()
    assert model._reducer is not None
    copies["gradients"] = made.pop("copy_all_into")
    return copies, require("calls").count(0) - before, len(model._reducer.buckets)


def under_autocast(rank: int, size: int) -> list[int]:
    """Gradients that are cast are cast into their buckets. Returns: how many others each copy brings there."""
    module = convolutional()
    whole = copy.deepcopy(module)
    model = DistributedDataParallel(module)
    whole.load_state_dict(model.state_dict())
    copied: list[int] = []

    def counted(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if op == "copy_all_into":
                copied.append(len(args[0]))
            return function(*args, **kwargs)

        return call

    def backward(network: nn.Module, step: int, of: int) -> None:
        inputs, targets = batch(10 * step + of, "float32", image=True)
        with genesis.autocast("cpu", dtype=genesis.bfloat16):
            loss = F.mse_loss(network(inputs).float(), targets)
        with backends.use("cpu", backends.get("cpu").wrapped(counted)):
            loss.backward()

    for step in range(3):
        expected = []
        for of in range(size):
            whole.zero_grad()
            whole.load_state_dict(module.state_dict())
            backward(whole, step, of)
            expected.append([parameter.grad for parameter in whole.parameters()])
        model.zero_grad()
        copied.clear()
        backward(model, step, rank)
        for parameter, *grads in zip(module.parameters(), *expected, strict=True):
            mean = sum(grads[1:], grads[0]) / size
            np.testing.assert_allclose(parameter.grad.numpy(), mean.numpy(), rtol=1e-6, atol=1e-7)
    assert model._reducer is not None
    for bucket in model._reducer.buckets:
        for number, view in zip(bucket.numbers, bucket.views, strict=True):
            assert model._reducer.parameters[number].grad.array is view
    return copied


def later_hooks(rank: int, size: int) -> None:
    """Hooks that come after DistributedDataParallel's may take a gradient, or put another in its place."""
    module = nn.Linear(2, 1)
    model = DistributedDataParallel(module)
    taken: list[object] = []

    def take(parameter: genesis.Tensor) -> None:
        taken.append(parameter.grad)
        parameter.grad = None

    def replace(parameter: genesis.Tensor) -> None:
        parameter.grad = genesis.full((1,), 7.0)

    module.weight.register_post_accumulate_grad_hook(take)
    module.bias.register_post_accumulate_grad_hook(replace)
    for _ in range(2):
        model.zero_grad()
        model(genesis.full((1, 2), rank + 1.0)).sum().backward()
        assert module.bias.grad.tolist() == [7.0]
        assert model._reducer is not None
        means = {
            number: view.tolist()
            for bucket in model._reducer.buckets
            for number, view in zip(bucket.numbers, bucket.views, strict=True)
        }
        assert means == {0: [[1.5, 1.5]], 1: [1.0]}
    assert len(taken) == 2
