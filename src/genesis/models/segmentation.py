"""What the segmentation models on a ResNet share: the backbone's two outputs, and heads whose maps grow to the image.

Names and keys are torchvision's.
"""

from __future__ import annotations

import os
from typing import Any

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.models.resnet import ConvNorm, ResNet, resnet50


class ResNetFeatures(ConvNorm):
    """A ResNet without its classifier: what its last two stages see.

    (N, 3, H, W) → {"aux": layer3's output, "out": layer4's}, at the resolutions of the stages.
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
    """A backbone, a head that classifies each place of its map, and the map enlarged to the size of the image.

    (N, 3, H, W) → {"out": (N, num_classes, H, W)}, and "aux" of the same shape where there is an auxiliary head.

    Args:
        backbone: an image → {"aux": (N, 1024, h, w), "out": (N, 2048, h, w)}.
        classifier: head for "out".
        aux_classifier: head for "aux", whose loss helps training; inference can do without: set it to None.
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
    """ResNet-50 whose last two stages keep the resolution of the second, 1/8 of the image's, and dilate instead.

    Args:
        weights: a file of resnet50's.
    Source: Chen et al. 2017, arXiv:1706.05587, section 3.1.
    """
    return ResNetFeatures(resnet50(weights=weights, replace_stride_with_dilation=(False, True, True)))


def _enlarged(map: genesis.Tensor, size: tuple[int, ...]) -> Any:
    return F.interpolate(map, size=size, mode="bilinear", align_corners=False)
