"""Random straight-line forwards, fused and not: python -m tests.torch.fuzz_forwards FIRST_SEED LAST_SEED.

Layers are shared, results are kept, used again and changed in place, modes change between calls. What PyTorch computes
the fused model computes too, or it says why not.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import genesis.torch

F = nn.functional
RELUS: list[Callable[[Tensor], Tensor]] = [F.relu, torch.relu, torch.relu_, Tensor.relu_, lambda x: F.relu(x, True)]
ADDS: list[Callable[[Tensor, Tensor], Tensor]] = [torch.add, Tensor.add_, Tensor.add, lambda x, y: x + y]


class Straight(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        kernels = ((1, False), (3, True), (1, True))
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, size, padding=size // 2, bias=bias) for size, bias in kernels])
        self.norms = nn.ModuleList([nn.BatchNorm2d(4), nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=None)])
        self.relus = nn.ModuleList([nn.ReLU(), nn.ReLU(inplace=True)])
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        draw = random.Random(self.seed)
        values = [x * 1.0]
        for _ in range(draw.randint(3, 12)):
            first = values[-1] if draw.random() < 0.75 else draw.choice(values)
            with torch.set_grad_enabled(torch.is_grad_enabled() and draw.random() < 0.93):
                values.append(self.step(draw, first, draw.choice(values)))
        return values[-1] + values[len(values) // 2] if draw.random() < 0.5 else values[-1]

    def step(self, draw: random.Random, x: Tensor, y: Tensor) -> Any:
        kind = draw.random()
        if kind < 0.3:
            return draw.choice(list(self.convs))(x)
        if kind < 0.55:
            return draw.choice(list(self.norms))(x)
        if kind < 0.7:
            return draw.choice([*self.relus, *RELUS])(x)
        if kind < 0.82:
            return draw.choice(ADDS)(x, y)
        if kind < 0.9:
            return x.mul_(0.5) if draw.random() < 0.5 else x * 2
        if kind < 0.95:
            return torch.cat([x, y], 1)[:, :4]
        return x + draw.choice(list(self.norms)).running_mean.clone().view(1, -1, 1, 1)


def outcome(net: nn.Module, x: Tensor, mode: Any) -> Any:
    """Output, gradients and buffers; or the error."""
    net.zero_grad()
    x.grad = None
    try:
        with mode():
            y = net(x)
            if y.requires_grad:
                y.square().sum().backward()
    except RuntimeError as error:
        return error
    tensors = [y.detach(), x.grad, *[p.grad for p in net.parameters()], *net.buffers()]
    return [None if each is None else each.clone() for each in tensors]


def run(seed: int) -> str:
    """Of four calls: "same", or "refused" by PyTorch or by a clear error. Raises: AssertionError: anything else."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    theirs = Straight(seed)
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    for _ in range(4):
        training = draw.random() < 0.7
        theirs.train(training)
        ours.train(training)
        mode = draw.choice([torch.enable_grad, torch.enable_grad, torch.no_grad, torch.inference_mode])
        x = torch.randn(2, 4, 3, 3, dtype=torch.float64).requires_grad_(draw.random() < 0.5)
        expected, result = (outcome(net, x, mode) for net in (theirs, ours))
        if isinstance(result, RuntimeError):
            clear = "genesis.torch.fuse" in str(result) or "modified" in str(result)
            assert clear or isinstance(expected, RuntimeError), f"seed {seed}: {result}"
        if isinstance(expected, RuntimeError) or isinstance(result, RuntimeError):
            return "refused"
        torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6, msg=lambda text: f"seed {seed}: {text}")
    return "same"


if __name__ == "__main__":
    print(Counter(map(run, range(*map(int, sys.argv[1:3])))))
