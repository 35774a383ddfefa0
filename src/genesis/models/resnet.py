"""ResNet: blocks that learn what to add to their input. Names, keys and initialisation are torchvision's.

Source: He, Zhang, Ren & Sun 2016, arXiv:1512.03385, figures 2 and 5, table 1. As in torchvision, the stride of a
bottleneck is in its 3×3 convolution (Goyal et al. 2017, arXiv:1706.02677).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self, TypedDict, Unpack

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.errors import describe
from genesis.models.registry import register


class ConvNorm(nn.Module):
    """Base of modules that have pairs of a convolution and its batch norm, and run each pair as one op."""

    def __init__(self) -> None:
        super().__init__()
        self._fused: dict[nn.Module, nn.FusedConv] = {}

    def conv_norm(
        self, conv: nn.Conv2d, norm: nn.BatchNorm2d, input: genesis.Tensor, residual: genesis.Tensor | None = None,
        activation: str | None = "relu",
    ) -> genesis.Tensor:  # fmt: skip
        """Compute activation(norm(conv(input)) + residual) as one op.

        Args:
            conv: any nn.Conv2d.
            norm: its nn.BatchNorm2d.
            input: (N, C, H, W), any floating dtype.
            residual: the shape of the result, or None.
            activation: "relu" or None.
        Returns: (N, K, P, Q).

        Example:
            >>> block = genesis.models.resnet.Block()
            >>> conv, norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
            >>> block.conv_norm(conv, norm, genesis.ones(1, 3, 5, 5)).shape
            (1, 8, 3, 3)
        """
        fused = self._fused.get(conv)
        if fused is None:
            fused = self._fused[conv] = nn.FusedConv()
        return fused(conv, norm, input, residual, activation)

    def train(self, mode: bool = True) -> Self:
        self._fused.clear()  # what was folded for inference
        return super().train(mode)


class Block(ConvNorm):
    """Base of the residual blocks: the shortcut past the convolutions."""

    expansion: int  # output channels per plane
    downsample: nn.Sequential | None

    def shortcut(self, input: genesis.Tensor) -> genesis.Tensor:
        """The input, projected to the shape of the block's output where that differs."""
        if self.downsample is None:
            return input
        conv, norm = self.downsample
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(norm, nn.BatchNorm2d)
        return self.conv_norm(conv, norm, input, activation=None)


class BasicBlock(Block):
    """Residual block of two 3×3 convolutions. (N, inplanes, H, W) → (N, planes, H / stride, W / stride)."""

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
    """Residual block of a 1×1 convolution to fewer channels, a 3×3 among these, and a 1×1 expansion.

    (N, inplanes, H, W) → (N, 4·planes, H / stride, W / stride).
    """

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
    """Residual network: stem, four stages of blocks at halving resolutions, global average pooling, classifier.

    Args:
        block: BasicBlock or Bottleneck.
        layers: number of blocks in each of the four stages.
        num_classes: outputs of the classifier.
        zero_init_residual: initialise each block as the identity (Goyal et al. 2017).
        groups, width_per_group: groups, and channels per group, of the bottlenecks' 3×3 convolutions (ResNeXt, wide
            ResNet).
        replace_stride_with_dilation: for each of the last three stages, whether it dilates its kernels instead of
            halving the resolution (for segmentation).
    Shape: (N, 3, H, W) → (N, num_classes).
    Raises: ValueError: replace_stride_with_dilation has not three entries; BasicBlock with groups or another width.

    Example:
        >>> from genesis.models.resnet import BasicBlock, ResNet
        >>> ResNet(BasicBlock, (1, 1, 1, 1), num_classes=5)(genesis.ones(2, 3, 32, 32)).shape
        (2, 5)
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
        """A stage of num_blocks blocks, the first of which changes resolution and channels."""
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
    """A 3×3 convolution without bias that keeps the image's size at stride 1."""
    return nn.Conv2d(in_planes, out_planes, 3, stride, padding=dilation, dilation=dilation, groups=groups, bias=False)


def conv1x1(in_planes: int, out_planes: int, stride: int = 1) -> nn.Conv2d:
    """A 1×1 convolution without bias."""
    return nn.Conv2d(in_planes, out_planes, 1, stride, bias=False)


class Options(TypedDict, total=False):
    """The arguments of ResNet that its constructors take."""

    num_classes: int
    zero_init_residual: bool
    groups: int
    width_per_group: int
    replace_stride_with_dilation: Sequence[bool] | None


@register
def resnet18(**options: Unpack[Options]) -> ResNet:
    """ResNet-18.

    Args:
        options: num_classes and others, see ResNet; weights: a file to load.
    Shape: (N, 3, H, W) → (N, num_classes).

    Example:
        >>> net = genesis.models.resnet18(num_classes=5)
        >>> sum(parameter.numel() for parameter in net.parameters())
        11179077
    """
    return ResNet(BasicBlock, (2, 2, 2, 2), **options)


@register
def resnet34(**options: Unpack[Options]) -> ResNet:
    """ResNet-34: blocks 3, 4, 6, 3. See `genesis.models.resnet18`.

    Args:
        options: num_classes and others, see ResNet; weights: a file to load.
    Shape: (N, 3, H, W) → (N, num_classes).
    """
    return ResNet(BasicBlock, (3, 4, 6, 3), **options)


@register
def resnet50(**options: Unpack[Options]) -> ResNet:
    """ResNet-50: bottlenecks 3, 4, 6, 3. See `genesis.models.resnet18`.

    Args:
        options: num_classes and others, see ResNet; weights: a file to load.
    Shape: (N, 3, H, W) → (N, num_classes).
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), **options)


@register
def resnet101(**options: Unpack[Options]) -> ResNet:
    """ResNet-101: bottlenecks 3, 4, 23, 3. See `genesis.models.resnet18`.

    Args:
        options: num_classes and others, see ResNet; weights: a file to load.
    Shape: (N, 3, H, W) → (N, num_classes).
    """
    return ResNet(Bottleneck, (3, 4, 23, 3), **options)
