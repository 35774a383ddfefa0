"""Random straight-line forwards, fused and not: python -m tests.torch.fuzz_forwards FIRST_SEED LAST_SEED.

Layers are shared, results and slices of them are kept, used again and changed in place, modes change between calls. A
third of the models only infers, where what is between chains computes on channels-last values; half of them in float32,
for which norms have kernels. What PyTorch computes the fused model computes too, or it says why not.
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
CHANNELS = 8
RELUS: list[Callable[[Tensor], Tensor]] = [F.relu, torch.relu, torch.relu_, Tensor.relu_, lambda x: F.relu(x, True)]
ADDS: list[Callable[[Tensor, Tensor], Tensor]] = [torch.add, Tensor.add_, Tensor.add, lambda x, y: x + y]
ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    F.silu, torch.sigmoid, Tensor.tanh_, lambda x: F.hardswish(x, True), lambda x: F.leaky_relu(x, 0.1), F.relu6,
]  # fmt: skip
OTHERS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: x - y, lambda x, y: x / 2, lambda x, y: x.sub_(1), lambda x, y: x * y.mean((2, 3), keepdim=True),
    lambda x, y: F.max_pool2d(x, 3, 1, 1), lambda x, y: F.avg_pool2d(x, 3, 1, 1), lambda x, y: x.clone(),
    lambda x, y: x.mul_(F.adaptive_avg_pool2d(y, 1)), lambda x, y: x.contiguous(), lambda x, y: x.transpose(2, 3),
]  # fmt: skip


def _write(x: Tensor, part: Tensor, value: Tensor) -> Tensor:
    part.copy_(value)
    return x


SLICES: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, y: torch.cat([x, y], 1)[:, :CHANNELS],
    lambda x, y: x[:, :CHANNELS],  # the same memory
    lambda x, y: x.narrow(1, 0, CHANNELS),
    lambda x, y: torch.cat(x.chunk(2, 1)[::-1], 1),
    lambda x, y: torch.cat([x[:, :2], y[:, 2:]], 1),
    lambda x, y: torch.cat(torch.split(x, [1, 7], 1)[::-1], 1),
    lambda x, y: (x[:, 2:5].add_(y[:, 2:5]), x)[1],
    lambda x, y: (F.relu(x[:, ::2], inplace=True), x)[1],
    lambda x, y: (F.silu(x.narrow(1, 0, CHANNELS), inplace=True), x)[1],
    lambda x, y: (x[:, :CHANNELS].mul_(0.5), x)[1],
    lambda x, y: (x[:1].add_(y[1:]), x)[1],
    lambda x, y: _write(x, x[:, 1:3], y[:, 3:5]),
    lambda x, y: (x.__setitem__((slice(None), slice(0, 2)), 0.5), x)[1],
    lambda x, y: x.chunk(2, 1)[0].repeat(1, 2, 1, 1),
]


class Straight(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        kernels = ((1, False), (3, True), (1, True))
        self.convs = nn.ModuleList(
            [nn.Conv2d(CHANNELS, CHANNELS, size, padding=size // 2, bias=bias) for size, bias in kernels]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(CHANNELS, momentum=momentum) for momentum in (0.1, 0.1, None)])
        self.relus = nn.ModuleList([nn.ReLU(), nn.ReLU(inplace=True)])
        self.to(dtype_of(seed))

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
        if kind < 0.27:
            return draw.choice(list(self.convs))(x)
        if kind < 0.45:
            return draw.choice(list(self.norms))(x)
        if kind < 0.57:
            return draw.choice([*self.relus, *RELUS])(x)
        if kind < 0.62:
            return draw.choice(ACTIVATIONS)(x)
        if kind < 0.72:
            return draw.choice(ADDS)(x, y)
        if kind < 0.78:
            return x.mul_(0.5) if draw.random() < 0.5 else x * 2
        if kind < 0.84:
            return draw.choice(OTHERS)(x, y)
        if kind < 0.95:
            return draw.choice(SLICES)(x, y)
        return x + draw.choice(list(self.norms)).running_mean.clone().view(1, -1, 1, 1)


def dtype_of(seed: int) -> torch.dtype:
    return torch.float32 if seed % 2 else torch.float64


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
    """Of some calls: "same", or "refused" by PyTorch or by a clear error. Raises: AssertionError: anything else."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    theirs = Straight(seed)
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    only_infers, tolerance = seed % 3 == 0, 1e-6 if dtype_of(seed) is torch.float64 else 1e-4
    for _ in range(6 if only_infers else 4):
        training = draw.random() < 0.7 and not only_infers
        theirs.train(training)
        ours.train(training)
        mode = draw.choice([torch.enable_grad, torch.enable_grad, torch.no_grad, torch.inference_mode])
        mode = torch.no_grad if only_infers else mode
        x = torch.randn(2, CHANNELS, 3, 3, dtype=dtype_of(seed)).requires_grad_(draw.random() < 0.5)
        expected, result = (outcome(net, x, mode) for net in (theirs, ours))
        if isinstance(result, RuntimeError):
            clear = "genesis.torch.fuse" in str(result) or "modified" in str(result)
            assert clear or isinstance(expected, RuntimeError), f"seed {seed}: {result}"
        if isinstance(expected, RuntimeError) or isinstance(result, RuntimeError):
            return "refused"
        torch.testing.assert_close(
            result, expected, rtol=tolerance, atol=tolerance, msg=lambda text: f"seed {seed}: {text}"
        )
    return "same"


if __name__ == "__main__":
    print(Counter(map(run, range(*map(int, sys.argv[1:3])))))
