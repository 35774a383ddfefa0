"""Modules that use their input several times, and what there is to see of a step with them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.torch_resnet import BasicBlock, Bottleneck

Make = Callable[[], nn.Module]


def chain(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class InPlace(Bottleneck):
    """As torchvision writes it."""

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = nn.functional.relu_(self.bn1(self.conv1(x)))
        out = self.bn3(self.conv3(nn.functional.relu_(self.bn2(self.conv2(out)))))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return nn.functional.relu_(out)


class Thrice(nn.Module):
    """The input goes to three chains, one of which waits for another, and to a sum of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c3, self.b3 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        first = self.b1(self.c1(x))  # ends last: it takes the sum
        second = torch.relu(self.b2(self.c2(x)))
        third = torch.relu(self.b3(self.c3(x)) + second)
        return torch.relu(first + third) + x


BLOCKS: dict[str, tuple[Make, int]] = {  # and how many chains hand on their input
    "basic": (lambda: BasicBlock(8, 8, 1), 1),
    "basic, downsampling": (lambda: BasicBlock(8, 16, 2), 1),
    "bottleneck": (lambda: Bottleneck(8, 2, 1), 1),
    "bottleneck, downsampling": (lambda: Bottleneck(8, 4, 2), 1),
    "in place": (lambda: InPlace(8, 2, 1), 1),
    "in place, downsampling": (lambda: InPlace(8, 4, 2), 1),
    "thrice": (Thrice, 2),  # the last sum is PyTorch's
    "two of them": (lambda: nn.Sequential(chain(8, 8), Bottleneck(8, 2, 1), BasicBlock(8, 8, 1)), 2),
}


def gradients(model: nn.Module, x: Tensor, backward: Any = None) -> list[Tensor]:
    """The result, and the gradients of a leaf, of the model's input and of its parameters. backward: its context."""
    leaf = x.clone().requires_grad_()
    inner = leaf * 1.0
    inner.retain_grad()
    for parameter in model.parameters():
        parameter.grad = None
    y = model(inner)
    with backward or nullcontext():
        y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).reshape(y.shape))
    found = [leaf.grad, inner.grad, *[p.grad for p in model.parameters() if p.requires_grad]]
    return [y.detach(), *[each.clone() for each in found if each is not None]]


def agree(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


def same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert len(ours) == len(theirs)
    assert all(map(torch.equal, ours, theirs))
