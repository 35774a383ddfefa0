"""The networks of Genesis in PyTorch, module by module, with the same keys, and a step of their training."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UNet(nn.Module):
    """genesis.models.unet."""

    def __init__(self, in_channels: int = 1, num_classes: int = 1, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        pairs = list(pairwise(widths))
        self.encoder = nn.ModuleList(map(two_convolutions, [in_channels, *widths], widths))
        self.upsample = nn.ModuleList(nn.ConvTranspose2d(coarse, fine, 2, 2) for fine, coarse in pairs)
        self.decoder = nn.ModuleList(two_convolutions(2 * fine, fine) for fine, _ in pairs)
        self.head = nn.Conv2d(width, num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.encoder):
            if level > 0:
                skips.append(x)
                x = F.max_pool2d(x, 2)
            x = block(x)
        for level in reversed(range(len(skips))):
            x = self.decoder[level](torch.cat([skips[level], self.upsample[level](x)], 1))
        return self.head(x)


class BasicBlock(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet18(nn.Module):
    """genesis.models.resnet18, as torchvision writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        inplanes = 64
        for index, planes in enumerate((64, 128, 256, 512)):
            stride = 1 if index == 0 else 2
            stage = nn.Sequential(BasicBlock(inplanes, planes, stride), BasicBlock(planes, planes, 1))
            setattr(self, f"layer{index + 1}", stage)
            inplanes = planes
        self.fc = nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


def two_convolutions(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(conv_bn_relu(in_channels, out_channels), conv_bn_relu(out_channels, out_channels))


def conv_bn_relu(in_channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def training_step(model: nn.Module, input: Tensor, lr: float) -> Callable[[], None]:
    """A step of SGD with momentum on the mean square of the result."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    def step() -> None:
        loss = model(input).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
