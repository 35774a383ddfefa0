"""FCN: a classification network made fully convolutional, so that it classifies each position of an image.

Source: Long, Shelhamer & Darrell 2015, arXiv:1411.4038; on a dilated ResNet instead of skips, as in torchvision.
"""

from __future__ import annotations

import os

from genesis import nn
from genesis.models.fused_sequential import FusedSequential
from genesis.models.registry import register
from genesis.models.segmentation import SegmentationModel, dilated_resnet50


class FCN(SegmentationModel):
    """A backbone with an FCNHead and an optional auxiliary FCNHead. See `genesis.models.SegmentationModel`."""


class FCNHead(FusedSequential):
    """A 3×3 convolution to a quarter of the channels, and a 1×1 convolution to the classes."""

    def __init__(self, in_channels: int, channels: int) -> None:
        inter_channels = in_channels // 4
        super().__init__(
            nn.Conv2d(in_channels, inter_channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(inter_channels),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Conv2d(inter_channels, channels, 1),
        )


@register
def fcn_resnet50(
    *,
    num_classes: int = 21,
    aux_loss: bool | None = None,
    weights_backbone: str | os.PathLike[str] | None = None,
) -> FCN:
    """FCN on a dilated ResNet-50.

    Args:
        num_classes: logits per pixel.
        aux_loss: whether to add an auxiliary head.
        weights_backbone: a file with weights of resnet50 for the backbone.
        weights: a file with weights of the whole model.
    Shape: (N, 3, H, W) → {"out": (N, num_classes, H, W)}, and "aux" alike with aux_loss.

    Example:
        >>> net = genesis.models.fcn_resnet50(num_classes=5)
        >>> net.classifier[-1].out_channels, net.aux_classifier
        (5, None)
    """
    aux_classifier = FCNHead(1024, num_classes) if aux_loss else None
    return FCN(dilated_resnet50(weights_backbone), FCNHead(2048, num_classes), aux_classifier)
