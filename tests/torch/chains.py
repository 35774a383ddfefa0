"""A small model, a fused or compiled copy of it, and whether the two agree."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis.torch import dynamo


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c, self.b, self.r = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self.r(self.b(self.c(x)))


def images(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, 5, 4, dtype=torch.float64)


def pair(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    return model, genesis.torch.fuse(copy.deepcopy(model))


class Parts(nn.Module):
    """Modules side by side, their results joined."""

    def __init__(self, parts: Iterable[nn.Module], join: Callable[[list[Tensor]], Tensor] = torch.stack) -> None:
        super().__init__()
        self.parts, self.join = nn.ModuleList(parts).double(), join

    def forward(self, x: Tensor) -> Tensor:
        return self.join([part(x) for part in self.parts])


def compiled(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[Any]]:
    """A copy compiled by Genesis' backend of torch.compile, and the graphs that it fuses from now on."""
    graphs: list[Any] = []
    fuse_graph = dynamo.fuse_graph
    monkeypatch.setattr(dynamo, "fuse_graph", lambda *args: graphs.append(fuse_graph(*args)) or graphs[-1])
    torch._dynamo.reset()
    copied = copy.deepcopy(model)
    return torch.compile(copied, backend=dynamo.genesis, options={"compiler": "aot_eager"}), graphs


def agree_in_order(theirs: nn.Module, ours: nn.Module, channels_last: bool) -> None:
    """agree(), the gradient of the input too, and values and strides of inference, in one of two memory orders."""
    x = images()
    x = (x.to(memory_format=torch.channels_last) if channels_last else x).requires_grad_()
    agree(theirs, ours, x, calls=5)
    grads = [torch.autograd.grad(model(x).square().sum(), x)[0] for model in (theirs, ours)]
    torch.testing.assert_close(*grads)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
        assert ours(x).stride() == theirs(x).stride()


def agree(theirs: nn.Module, ours: nn.Module, *args: Any, calls: int = 3, tolerance: float = 1e-8) -> None:
    """Of several calls (the later ones know what follows): outputs, random numbers, gradients and buffers."""
    for seed in range(calls):
        outputs = []
        for net in (theirs, ours):
            torch.manual_seed(seed)
            outputs.append((net(*args), torch.rand(1)))
        torch.testing.assert_close(outputs[1], outputs[0], rtol=tolerance, atol=tolerance)
        for output, _ in outputs:
            if isinstance(output, Tensor) and output.requires_grad:
                output.square().sum().backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=100 * tolerance, atol=100 * tolerance, msg=name)
    for (name, mine), other in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance, msg=name)
