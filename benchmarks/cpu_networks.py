"""The networks of bench_cpu_nets.py, in PyTorch and in Genesis, with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch_networks import ResNet18, UNet
from torch_segmentation import deeplabv3_resnet50, stage, vgg16_bn

import genesis
from genesis import models

Both = tuple[torch.nn.Module, genesis.nn.Module]

# Expansion, channels, blocks and the first one's stride: table 2 of Sandler et al. 2018, arXiv:1801.04381.
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class ResNet50(torch.nn.Module):
    """genesis.models.resnet50, as torchvision writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(64)
        self.maxpool = torch.nn.MaxPool2d(3, 2, 1)
        self.layer1 = stage(64, 64, 3, stride=1, dilations=(1, 1))
        self.layer2 = stage(256, 128, 4, stride=2, dilations=(1, 1))
        self.layer3 = stage(512, 256, 6, stride=2, dilations=(1, 1))
        self.layer4 = stage(1024, 512, 3, stride=2, dilations=(1, 1))
        self.fc = torch.nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Map(torch.nn.Module):
    """The map of a segmentation network alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)["out"]


class GenesisMap(genesis.nn.Module):
    """The same of Genesis."""

    def __init__(self, model: genesis.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: genesis.Tensor) -> genesis.Tensor:
        return self.model(x)["out"]


def mobilenet_v2(nn: Any) -> Any:
    """MobileNetV2 of torch.nn or genesis.nn."""

    class InvertedResidual(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, inputs: int, outputs: int, expansion: int, stride: int) -> None:
            super().__init__()
            inner = inputs * expansion
            layers = conv_bn_relu6(inputs, inner, 1) if expansion != 1 else []
            layers += conv_bn_relu6(inner, inner, 3, stride, inner)
            self.conv = nn.Sequential(*layers, nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
            self.adds = stride == 1 and inputs == outputs

        def forward(self, x: Any) -> Any:
            return x + self.conv(x) if self.adds else self.conv(x)

    def conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(outputs), nn.ReLU6()]

    layers, channels = conv_bn_relu6(3, 32, 3, 2), 32
    for expansion, width, count, stride in _STAGES:
        for index in range(count):
            layers.append(InvertedResidual(channels, width, expansion, stride if index == 0 else 1))
            channels = width
    layers += conv_bn_relu6(channels, 1280, 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


def _deeplab() -> Both:
    return Map(deeplabv3_resnet50()), GenesisMap(models.deeplabv3_resnet50())


def _mobilenet() -> Both:
    ours = mobilenet_v2(genesis.nn)
    return mobilenet_v2(torch.nn), genesis.fuse(ours, genesis.zeros(1, 3, 64, 64))


NETWORKS: dict[str, tuple[Callable[[], Both], tuple[int, ...]]] = {
    "unet": (lambda: (UNet(), models.unet()), (4, 1, 128, 128)),
    "unet-b1": (lambda: (UNet(), models.unet()), (1, 1, 128, 128)),
    "resnet18": (lambda: (ResNet18(), models.resnet18()), (4, 3, 224, 224)),
    "resnet18-b1": (lambda: (ResNet18(), models.resnet18()), (1, 3, 224, 224)),
    "resnet50": (lambda: (ResNet50(), models.resnet50()), (4, 3, 224, 224)),
    "resnet50-b1": (lambda: (ResNet50(), models.resnet50()), (1, 3, 224, 224)),
    "vgg16_bn": (lambda: (vgg16_bn(), models.vgg16_bn()), (4, 3, 224, 224)),
    "vgg16_bn-b1": (lambda: (vgg16_bn(), models.vgg16_bn()), (1, 3, 224, 224)),
    "mobilenet_v2": (_mobilenet, (4, 3, 224, 224)),
    "mobilenet_v2-b1": (_mobilenet, (1, 3, 224, 224)),
    "deeplabv3": (_deeplab, (4, 3, 224, 224)),
    "deeplabv3-b1": (_deeplab, (1, 3, 224, 224)),
}


def create(name: str) -> tuple[torch.nn.Module, Any, torch.Tensor]:
    """Both networks, and an input.

    The weights are random, of statistics under which no layer's values grow without end.
    """
    build, shape = NETWORKS[name]
    torch.manual_seed(0)
    theirs, ours = build()
    for module in theirs.modules():
        if isinstance(module, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(module.weight)
    theirs.train()
    with torch.no_grad():
        for _ in range(3):
            theirs(torch.randn(2, *shape[1:2], 64, 64))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours, torch.randn(shape)
