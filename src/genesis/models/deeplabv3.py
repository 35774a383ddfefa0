"""DeepLabV3: semantic segmentation with kernels of several dilations and the mean of the whole image in parallel.

Source: Chen, Papandreou, Schroff & Adam 2017, arXiv:1706.05587, figure 5. Names and keys are torchvision's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.models.fcn import FCNHead
from genesis.models.fused_sequential import FusedSequential
from genesis.models.registry import register
from genesis.models.segmentation import SegmentationModel, dilated_resnet50


class DeepLabV3(SegmentationModel):
    """A backbone with a DeepLabHead and an optional auxiliary FCNHead. See `genesis.models.SegmentationModel`."""


class DeepLabHead(FusedSequential):
    """ASPP, a 3×3 convolution, and a 1×1 convolution to the classes: (N, C, H, W) → (N, num_classes, H, W)."""

    def __init__(self, in_channels: int, num_classes: int, atrous_rates: Sequence[int] = (12, 24, 36)) -> None:
        super().__init__(
            ASPP(in_channels, atrous_rates),
            nn.Conv2d(256, 256, 3, padding=1, bias=False),
            nn.BatchNorm2d(256),
            nn.ReLU(),
            nn.Conv2d(256, num_classes, 1),
        )


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: a 1×1, a dilated 3×3 per rate, and the image's mean, in parallel.

    Shape: (N, in_channels, H, W) → (N, out_channels, H, W).
    """

    def __init__(self, in_channels: int, atrous_rates: Sequence[int], out_channels: int = 256) -> None:
        super().__init__()
        self.convs = nn.ModuleList([
            nn.ConvBNReLU(in_channels, out_channels, 1),
            *[nn.ConvBNReLU(in_channels, out_channels, 3, dilation=rate) for rate in atrous_rates],
            ASPPPooling(in_channels, out_channels),
        ])  # fmt: skip
        self.project = FusedSequential(
            nn.Conv2d(len(self.convs) * out_channels, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
            nn.Dropout(0.5),
        )

    def forward(self, input: genesis.Tensor) -> genesis.Tensor:
        return self.project(genesis.cat([conv(input) for conv in self.convs], dim=1))


class ASPPPooling(FusedSequential):
    """The image's mean after a 1×1 convolution, broadcast to every position: (N, C, H, W) → (N, out_channels, H, W)."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(in_channels, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(),
        )

    def forward(self, input: genesis.Tensor) -> genesis.Tensor:
        return F.interpolate(super().forward(input), size=input.shape[2:], mode="bilinear", align_corners=False)


@register
def deeplabv3_resnet50(
    *,
    num_classes: int = 21,
    aux_loss: bool | None = None,
    weights_backbone: str | os.PathLike[str] | None = None,
) -> DeepLabV3:
    """DeepLabV3 on a dilated ResNet-50.

    Args:
        num_classes: logits per pixel.
        aux_loss: whether to add an auxiliary head.
        weights_backbone: a file with weights of resnet50 for the backbone.
        weights: a file with weights of the whole model.
    Shape: (N, 3, H, W) → {"out": (N, num_classes, H, W)}, and "aux" alike with aux_loss.

    Example:
        >>> net = genesis.models.deeplabv3_resnet50(num_classes=5, aux_loss=True)
        >>> net.classifier[-1].out_channels, net.aux_classifier[-1].out_channels
        (5, 5)
    """
    aux_classifier = FCNHead(1024, num_classes) if aux_loss else None
    return DeepLabV3(dilated_resnet50(weights_backbone), DeepLabHead(2048, num_classes), aux_classifier)
