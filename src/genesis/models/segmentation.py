"""Base of the segmentation models on a ResNet: the backbone's two outputs, and heads whose maps are upsampled.

Names and keys are torchvision's.
"""

from __future__ import annotations

import os

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.models.resnet import ConvNorm, ResNet, resnet50


class ResNetFeatures(ConvNorm):
    """A ResNet without its classifier, whose outputs are those of its last two stages.

    Shape: (N, 3, H, W) → {"aux": (N, 1024, h, w) of layer3, "out": (N, 2048, h, w) of layer4}, for ResNet-50.
    """

    def __init__(self, resnet: ResNet) -> None:
        super().__init__()
        self.conv1, self.bn1, self.maxpool = resnet.conv1, resnet.bn1, resnet.maxpool
        self.layer1, self.layer2 = resnet.layer1, resnet.layer2
        self.layer3, self.layer4 = resnet.layer3, resnet.layer4

    def forward(self, input: genesis.Tensor) -> dict[str, genesis.Tensor]:
        x = self.maxpool(self.conv_norm(self.conv1, self.bn1, input))
        aux = self.layer3(self.layer2(self.layer1(x)))
        return {"aux": aux, "out": self.layer4(aux)}


class SegmentationModel(nn.Module):
    """Semantic segmentation: a backbone, a head that classifies each position of its map, and bilinear upsampling.

    Args:
        backbone: (N, 3, H, W) → {"aux": (N, 1024, h, w), "out": (N, 2048, h, w)}.
        classifier: head for "out".
        aux_classifier: head for "aux", whose loss helps training; set it to None for inference.
    Shape: (N, 3, H, W) → {"out": (N, num_classes, H, W)}, and "aux" of the same shape with an auxiliary head.

    Example:
        >>> class Backbone(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        ...     def forward(self, input):
        ...         return {"out": self.conv(input)}
        >>> net = genesis.models.SegmentationModel(Backbone(), nn.Conv2d(8, 5, 1))
        >>> net(genesis.ones(1, 3, 8, 8))["out"].shape
        (1, 5, 8, 8)
    """

    def __init__(self, backbone: nn.Module, classifier: nn.Module, aux_classifier: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.classifier = classifier
        self.aux_classifier = aux_classifier

    def forward(self, input: genesis.Tensor) -> dict[str, genesis.Tensor]:
        features = self.backbone(input)
        size = input.shape[2:]
        result = {"out": _enlarged(self.classifier(features["out"]), size)}
        if self.aux_classifier is not None:
            result["aux"] = _enlarged(self.aux_classifier(features["aux"]), size)
        return result


def dilated_resnet50(weights: str | os.PathLike[str] | None = None) -> ResNetFeatures:
    """Features of a ResNet-50 whose last two stages keep 1/8 of the image's resolution and dilate their kernels.

    Args:
        weights: a file with the weights of resnet50, or None.
    Source: Chen et al. 2017, arXiv:1706.05587, section 3.1.
    """
    return ResNetFeatures(resnet50(weights=weights, replace_stride_with_dilation=(False, True, True)))


def _enlarged(map: genesis.Tensor, size: tuple[int, ...]) -> genesis.Tensor:
    return F.interpolate(map, size=size, mode="bilinear", align_corners=False)
