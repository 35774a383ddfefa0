"""Convolutions that run alone in compiled graphs, on a GPU: no farther from float64 than twice PyTorch's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::Warning:torch")]


class LayerNormBlock(nn.Module):
    """Depthwise convolution, layer norm over channels, and 1×1 convolutions, as in ConvNeXt."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(32, 32, 7, padding=3, groups=32)
        self.norm = nn.LayerNorm(32)
        self.expand, self.reduce = nn.Conv2d(32, 64, 1), nn.Conv2d(64, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + self.reduce(F.gelu(self.expand(y)))


class PreActivationBlock(nn.Module):
    """Norm, ReLU, convolution without a bias; the results are concatenated, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(32 + 8 * i) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(32 + 8 * i, 8, 3, padding=1, bias=False) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(F.relu(norm(x)))], 1)
        return x


class GatedBlock(nn.Module):
    """Grouped convolutions with SiLU, squeeze and excitation, and a strided one of odd channels."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(32, 32, 3, padding=1, groups=4)
        self.squeeze, self.excite = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)
        self.strided = nn.Conv2d(32, 18, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.grouped(x))
        gate = self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True))))
        return self.strided(F.silu(y * gate.sigmoid() + x))


def step(model: Any, x: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    for parameter in model.parameters():
        parameter.grad = None
    y = model(x)
    (y.double() * torch.linspace(-1, 1, y.numel(), device="cuda").view(y.shape)).sum().backward()
    return [each.detach().double() for each in (y, x.grad, *(p.grad for p in model.parameters()))]


@pytest.mark.parametrize("make", [LayerNormBlock, PreActivationBlock, GatedBlock])
def test_a_step_is_as_accurate_as_pytorchs(make: type[nn.Module]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    plain = make().cuda().to(memory_format=torch.channels_last)
    compiled = genesis.torch.compile(copy.deepcopy(plain))
    x = torch.randn(8, 32, 20, 20, device="cuda").to(memory_format=torch.channels_last)
    exact = step(copy.deepcopy(plain).double(), x.double())
    for _ in range(4):  # until it is replayed
        with torch.autocast("cuda", torch.bfloat16):
            ours, theirs = step(compiled, x), step(plain, x)
    report = genesis.torch.report(compiled)
    assert report.graphs
    assert all(graph.captured for graph in report.graphs)
    assert not any("left" in line for line in str(report).splitlines() if "conv" in line), str(report)
    for found, other, truth in zip(ours, theirs, exact, strict=True):
        scale = truth.norm() + 1e-30
        assert (found - truth).norm() / scale <= 2 * (other - truth).norm() / scale + 1e-6
