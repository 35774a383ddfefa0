"""A small model, a fused copy of it, and whether the two agree."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

import genesis.torch


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
