"""What the tests of growth measure: outputs in both modes, gradients, and hashes of everything."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import genesis
from genesis import nn, optim
from genesis.growth.preserved import relative_deviation
from genesis.tensor import Tensor

_APART = ("_fused", "_growth_history")  # a cache, and the log, which keeps failures too

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD": lambda parameters: optim.SGD(parameters, lr=0.01, momentum=0.9),
    "SGD, Nesterov": lambda parameters: optim.SGD(parameters, lr=0.01, momentum=0.9, nesterov=True),
    "Adam": lambda parameters: optim.Adam(parameters, lr=0.01, amsgrad=True),
    "AdamW": lambda parameters: optim.AdamW(parameters, lr=0.01, weight_decay=0.0),
}


def outputs(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """In eval mode and in training mode, with the running statistics left as they were."""
    training = model.training
    buffers = [(buffer, buffer.array.clone()) for buffer in model.buffers()]
    with genesis.no_grad():
        in_eval = model.eval()(x).clone()
        in_training = model.train()(x).clone()
    for buffer, values in buffers:
        buffer.array.copy_into(values)
    model.train(training)
    return in_eval, in_training


def deviations(before: Sequence[Tensor], after: Sequence[Tensor]) -> list[float]:
    """max |Δ| / max |before| in eval and in training mode."""
    return [relative_deviation([old], [new]) for old, new in zip(before, after, strict=True)]


def train(model: nn.Module, optimizer: optim.Optimizer, x: Tensor, steps: int = 1) -> float:
    """Towards outputs of 1."""
    model.train()
    for _ in range(steps):
        difference = model(x) - 1
        loss = (difference * difference).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def digest(model: nn.Module, *optimizers: optim.Optimizer) -> str:
    """A hash of every value, name, order, memory layout, flag and setting of a model and its optimizers."""
    found = hashlib.sha256()

    def add(*items: Any) -> None:
        for item in items:
            if isinstance(item, Tensor):
                array = item.array
                add(id(item), id(array), str(array.dtype), str(array.device), array.shape, array.strides)
                found.update(np.ascontiguousarray(array.bits()).tobytes())
            elif isinstance(item, dict):
                add(len(item), *(part for pair in item.items() for part in pair))
            elif isinstance(item, list | tuple):
                add(len(item), *item)
            elif isinstance(item, str | int | float | bool | bytes | None):
                found.update(repr(item).encode())
            else:
                found.update(str(id(item)).encode())

    for name, module in model.named_modules(remove_duplicate=False):
        add(name, id(module), {key: value for key, value in vars(module).items() if key not in _APART})
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                add(tensor.requires_grad, tensor.grad, list(tensor._hooks))
    for optimizer in optimizers:
        add(list(optimizer.param_groups), dict(optimizer.state))
    return found.hexdigest()
