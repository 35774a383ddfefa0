"""A convolutional network as PyTorch's users write one: helpers of scripting, drop path, a Function of its own."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

torch.fx.wrap("channel_shuffle")


@torch.jit.script
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, groups, c // groups, h, w).transpose(1, 2).reshape(n, c, h, w)


class SwishFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate = x.sigmoid()
        return grad * gate * (1 + x * (1 - gate))


class DropPath(nn.Module):
    def __init__(self, drop_prob: float = 0.0) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return x
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(1 - self.drop_prob)
        return x * mask.div_(1 - self.drop_prob)


class Block(nn.Module):
    expansion: Final[int] = 2

    def __init__(self, width: int, kernel_size: int = 3, norm_layer=nn.BatchNorm2d, drop_path: float = 0.0) -> None:
        super().__init__()
        hidden, (height, _) = width * self.expansion, _pair(kernel_size)
        self.conv1 = nn.Conv2d(width, hidden, 1, bias=False)
        self.norm1 = norm_layer(hidden)
        self.conv2 = nn.Conv2d(hidden, hidden, kernel_size, padding=height // 2, groups=2, bias=False)
        self.norm2 = norm_layer(hidden)
        self.conv3 = nn.Conv2d(hidden, width, 1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1), nn.Hardsigmoid())
        self.drop_path = DropPath(drop_path)

    @torch.jit.unused
    def describe(self) -> str:
        return f"{self.expansion}x"

    def forward(self, x: Tensor) -> Tensor:
        y = SwishFunction.apply(self.norm1(self.conv1(x)))
        y = channel_shuffle(y, 2)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.conv3(y)
        y *= self.gate(y)
        return x + self.drop_path(y)


class ResidualNet(nn.Module):
    def __init__(self, depths=(1, 2), width: int = 8, num_classes: int = 5) -> None:
        super().__init__()
        rates = torch.linspace(0, 0.1, sum(depths)).tolist()
        stages = OrderedDict(stem=nn.Conv2d(3, width, 3, stride=2, padding=1))
        for number, depth in enumerate(depths):
            blocks = nn.ModuleList()
            blocks += [
                Block(width, norm_layer=partial(nn.BatchNorm2d, eps=1e-3), drop_path=rates.pop(0)) for _ in range(depth)
            ]
            stages[f"stage{number}"] = nn.Sequential(*blocks)
        self.features = nn.Sequential(stages)
        self.head = nn.Linear(width, num_classes)
        self.register_buffer("scale", torch.ones(size=(1, width, 1, 1)), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
                nn.init.constant_(module.weight, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if not torch.jit.is_scripting() and not torch.compiler.is_compiling():
            torch._assert(x.shape[1] == 3, "pictures have three channels")
        features = self.features(x) * self.scale
        out = torch.flatten(F.adaptive_avg_pool2d(features, 1), 1)
        return {"out": self.head(out), "features": features}
