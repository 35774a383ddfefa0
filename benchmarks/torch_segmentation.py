"""VGG16-BN, and FCN and DeepLabV3 on a dilated ResNet-50, in PyTorch with torchvision's keys: to compare with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int, dilation: int, projects: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, dilation, dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if projects:
            self.downsample = nn.Sequential(
                nn.Conv2d(inplanes, 4 * planes, 1, stride, bias=False), nn.BatchNorm2d(4 * planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class DilatedResNet50(nn.Module):
    """Strides 2 up to the second stage; the third dilates by 2, the fourth by 4, one block later each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = stage(64, 64, 3, stride=1, dilations=(1, 1))
        self.layer2 = stage(256, 128, 4, stride=2, dilations=(1, 1))
        self.layer3 = stage(512, 256, 6, stride=1, dilations=(1, 2))
        self.layer4 = stage(1024, 512, 3, stride=1, dilations=(2, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        aux = self.layer3(self.layer2(self.layer1(x)))
        return aux, self.layer4(aux)


def stage(inplanes: int, planes: int, num_blocks: int, stride: int, dilations: tuple[int, int]) -> nn.Sequential:
    blocks = [Bottleneck(inplanes, planes, stride, dilations[0], projects=True)]
    blocks += [Bottleneck(4 * planes, planes, 1, dilations[1], projects=False) for _ in range(num_blocks - 1)]
    return nn.Sequential(*blocks)


def conv_bn_relu(in_channels: int, out_channels: int, kernel_size: int, dilation: int = 1) -> list[nn.Module]:
    padding = dilation * (kernel_size // 2)
    return [
        nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(),
    ]


class Pooled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(super().forward(x), size=x.shape[2:], mode="bilinear", align_corners=False)


class ASPP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rows = [nn.Sequential(*conv_bn_relu(2048, 256, 1))]
        rows += [nn.Sequential(*conv_bn_relu(2048, 256, 3, rate)) for rate in (12, 24, 36)]
        rows.append(Pooled(nn.AdaptiveAvgPool2d(1), *conv_bn_relu(2048, 256, 1)))
        self.convs = nn.ModuleList(rows)
        self.project = nn.Sequential(*conv_bn_relu(5 * 256, 256, 1), nn.Dropout(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(torch.cat([conv(x) for conv in self.convs], 1))


class Segmentation(nn.Module):
    def __init__(self, classifier: nn.Module, aux_classifier: nn.Module | None) -> None:
        super().__init__()
        self.backbone = DilatedResNet50()
        self.classifier = classifier
        self.aux_classifier = aux_classifier

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        aux, out = self.backbone(x)
        maps = {"out": self.classifier(out)}
        if self.aux_classifier is not None:
            maps["aux"] = self.aux_classifier(aux)
        return {
            name: F.interpolate(map, size=x.shape[2:], mode="bilinear", align_corners=False)
            for name, map in maps.items()
        }


def fcn_head(in_channels: int, num_classes: int) -> nn.Sequential:
    inner = in_channels // 4
    return nn.Sequential(*conv_bn_relu(in_channels, inner, 3), nn.Dropout(0.1), nn.Conv2d(inner, num_classes, 1))


def fcn_resnet50(num_classes: int = 21, aux_loss: bool = False) -> Segmentation:
    return Segmentation(fcn_head(2048, num_classes), fcn_head(1024, num_classes) if aux_loss else None)


def deeplabv3_resnet50(num_classes: int = 21, aux_loss: bool = False) -> Segmentation:
    head = nn.Sequential(ASPP(), *conv_bn_relu(256, 256, 3), nn.Conv2d(256, num_classes, 1))
    return Segmentation(head, fcn_head(1024, num_classes) if aux_loss else None)


def vgg_features() -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for num_convolutions, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(num_convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(*layers)


class VGG(nn.Module):
    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.features = vgg_features()
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
            nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(0.5),
            nn.Linear(4096, num_classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(self.features(x), 7), 1))


def vgg16_bn(num_classes: int = 1000) -> VGG:
    return VGG(num_classes)
