"""ResNet: blocks that learn what to add to their input. Names, keys and initialisation are torchvision's.

Source: He, Zhang, Ren & Sun 2016, arXiv:1512.03385, figures 2 and 5, table 1. As in torchvision, the stride of a
bottleneck is in its 3×3 convolution (Goyal et al. 2017, arXiv:1706.02677).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.errors import describe
from genesis.models.registry import register


class ConvNorm(nn.Module):
    """Base of what has pairs of a convolution and its batch norm under torchvision's names, and runs each as one op."""

    def __init__(self) -> None:
        super().__init__()
        self._fused: dict[nn.Module, nn.FusedConv] = {}

    def conv_norm(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, input: genesis.Tensor, residual: genesis.Tensor | None = None,
        activation: str | None = "relu",
    ) -> genesis.Tensor:  # fmt: skip
        """activation(norm(conv(input)) + residual)."""
        fused = self._fused.get(conv)
        if fused is None:
            fused = self._fused[conv] = nn.FusedConv()
        return fused(conv, norm, input, residual, activation)

    def train(self, mode: bool = True) -> Self:
        self._fused.clear()  # what was folded for inference
        return super().train(mode)


class Block(ConvNorm):
    """What the two kinds of blocks share: the way past the convolutions."""

    expansion: int  # channels of the result for each of planes
    downsample: nn.Sequential | None

    def shortcut(self, input: genesis.Tensor) -> genesis.Tensor:
        """The input, brought to the shape of the block's result where that differs."""
        if self.downsample is None:
            return input
        conv, norm = self.downsample
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        return self.conv_norm(conv, norm, input, activation=None)


class BasicBlock(Block):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Sequential | None = None, groups: int = 1,
        base_width: int = 64, dilation: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        for name, value, only in (
            ("groups", groups, 1),
            ("width_per_group", base_width, 64),
            ("dilation", dilation, 1),
        ):
            if value != only:
                raise ValueError(describe("BasicBlock", name, only, value))
        self.conv1 = conv3x3(inplanes, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = downsample

    def forward(self, input: genesis.Tensor) -> genesis.Tensor:
        x = self.conv_norm(self.conv1, self.bn1, input)
        return self.conv_norm(self.conv2, self.bn2, x, residual=self.shortcut(input))


class Bottleneck(Block):
    """A 1×1 convolution to fewer channels, a 3×3 among these, and a 1×1 back."""

    expansion = 4

    def __init__(
        self, inplanes: int, planes: int, stride: int = 1, downsample: nn.Sequential | None = None, groups: int = 1,
        base_width: int = 64, dilation: int = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        width = planes * base_width // 64 * groups
        self.conv1 = conv1x1(inplanes, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width, stride, groups, dilation)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv1x1(width, planes * self.expansion)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.downsample = downsample

    def forward(self, input: genesis.Tensor) -> genesis.Tensor:
        x = self.conv_norm(self.conv1, self.bn1, input)
        x = self.conv_norm(self.conv2, self.bn2, x)
        return self.conv_norm(self.conv3, self.bn3, x, residual=self.shortcut(input))


class ResNet(ConvNorm):
    """Stem, four stages of blocks at halving resolutions, average, classifier.

    (N, 3, H, W) → (N, num_classes).

    Args:
        block: BasicBlock or Bottleneck.
        layers: how many blocks each stage has.
        num_classes: outputs of the classifier.
        zero_init_residual: begin with blocks that pass their input on (Goyal et al. 2017).
        groups, width_per_group: of the 3×3 convolutions of bottlenecks (ResNeXt, wide ResNet).
        replace_stride_with_dilation: for the last three stages, whether they keep the resolution and spread their
            kernels instead (segmentation).
    """

    def __init__(
        self, block: type[BasicBlock | Bottleneck], layers: Sequence[int], num_classes: int = 1000,
        zero_init_residual: bool = False, groups: int = 1, width_per_group: int = 64,
        replace_stride_with_dilation: Sequence[bool] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        dilated = (False, False, False) if replace_stride_with_dilation is None else replace_stride_with_dilation
        if len(dilated) != 3:
            raise ValueError(describe("ResNet", "replace_stride_with_dilation", "None or three bools", dilated))
        self.inplanes, self.dilation = 64, 1
        self.groups, self.base_width = groups, width_per_group
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = self._stage(block, 64, layers[0])
        self.layer2 = self._stage(block, 128, layers[1], stride=2, dilate=dilated[0])
        self.layer3 = self._stage(block, 256, layers[2], stride=2, dilate=dilated[1])
        self.layer4 = self._stage(block, 512, layers[3], stride=2, dilate=dilated[2])
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        self._initialize(zero_init_residual)

    def forward(self, input: genesis.Tensor) -> genesis.Tensor:
        x = self.conv_norm(self.conv1, self.bn1, input)
        x = self.maxpool(x)
        x = self.layer1(x)
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        x = self.avgpool(x)
        return self.fc(F.flatten(x, 1))

    def _stage(
        self, block: type[BasicBlock | Bottleneck], planes: int, num_blocks: int, stride: int = 1, dilate: bool = False
    ) -> nn.Sequential:
        """num_blocks blocks, of which the first changes resolution and channels."""
        first_dilation = self.dilation
        if dilate:
            self.dilation, stride = self.dilation * stride, 1
        outplanes = planes * block.expansion
        downsample = None
        if stride != 1 or self.inplanes != outplanes:
            downsample = nn.Sequential(conv1x1(self.inplanes, outplanes, stride), nn.BatchNorm2d(outplanes))
        shared = (self.groups, self.base_width)
        blocks = [block(self.inplanes, planes, stride, downsample, *shared, first_dilation)]
        blocks += [block(outplanes, planes, 1, None, *shared, self.dilation) for _ in range(1, num_blocks)]
        self.inplanes = outplanes
        return nn.Sequential(*blocks)

    def _initialize(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.get_parameter("weight"))
            elif zero_init_residual and isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.get_parameter("weight"))


def conv3x3(in_planes: int, out_planes: int, stride: int = 1, groups: int = 1, dilation: int = 1) -> nn.Conv2d:
    """A 3×3 convolution that keeps the size at stride 1."""
    return nn.Conv2d(in_planes, out_planes, 3, stride, padding=dilation, dilation=dilation, groups=groups, bias=False)


def conv1x1(in_planes: int, out_planes: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_planes, out_planes, 1, stride, bias=False)


@register
def resnet18(**kwargs: Any) -> ResNet:
    """ResNet-18; arguments as of ResNet."""
    return ResNet(BasicBlock, (2, 2, 2, 2), **kwargs)


@register
def resnet34(**kwargs: Any) -> ResNet:
    """ResNet-34; arguments as of ResNet."""
    return ResNet(BasicBlock, (3, 4, 6, 3), **kwargs)


@register
def resnet50(**kwargs: Any) -> ResNet:
    """ResNet-50; arguments as of ResNet."""
    return ResNet(Bottleneck, (3, 4, 6, 3), **kwargs)


@register
def resnet101(**kwargs: Any) -> ResNet:
    """ResNet-101; arguments as of ResNet."""
    return ResNet(Bottleneck, (3, 4, 23, 3), **kwargs)
