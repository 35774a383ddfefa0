"""VGG-16 with batch norm: 3×3 convolutions and nothing else, until the classifier. Names, keys and initialisation are
torchvision's.

Source: Simonyan & Zisserman 2015, arXiv:1409.1556, table 1, column D; batch norm as in torchvision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict, Unpack

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.models.fused_sequential import FusedSequential
from genesis.models.registry import register

# Channels of the convolutions, stage by stage; after each stage the resolution halves.
STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
HIDDEN = 4096  # of the classifier


class VGG(nn.Module):
    """VGG: convolutional features, average pooling to 7×7, classifier. Made by `genesis.models.vgg16_bn`.

    Args:
        features: computes 512 channels.
        num_classes: outputs of the classifier.
        init_weights: draw convolutions by He's initialisation and linear layers with standard deviation 0.01, instead
            of by each layer's default.
        dropout: dropout probability of the classifier.
    Shape: (N, 3, H, W) → (N, num_classes), H and W at least 32.
    """

    def __init__(
        self, features: nn.Module, num_classes: int = 1000, init_weights: bool = True, dropout: float = 0.5
    ) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, HIDDEN), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(HIDDEN, num_classes),
        )  # fmt: skip
        if init_weights:
            self._initialize()

    def forward(self, input: genesis.Tensor) -> genesis.Tensor:
        x = self.features(input)
        x = self.avgpool(x)
        return self.classifier(F.flatten(x, 1))

    def _initialize(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                nn.init.zeros_(module.get_parameter("bias"))
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, 0, 0.01)
                nn.init.zeros_(module.get_parameter("bias"))


def _stages() -> Iterator[nn.Module]:
    in_channels = 3
    for stage in STAGES:
        for out_channels in stage:
            yield nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1)
            yield nn.BatchNorm2d(out_channels)
            yield nn.ReLU()
            in_channels = out_channels
        yield nn.MaxPool2d(kernel_size=2, stride=2)


class Options(TypedDict, total=False):
    """The arguments of VGG that its constructors take."""

    num_classes: int
    init_weights: bool
    dropout: float


@register
def vgg16_bn(**options: Unpack[Options]) -> VGG:
    """VGG-16 with batch norm.

    Args:
        options: num_classes and others, see VGG; weights: a file to load.
    Shape: (N, 3, H, W) → (N, num_classes), H and W at least 32.

    Example:
        >>> net = genesis.models.vgg16_bn(num_classes=5, init_weights=False)
        >>> sum(isinstance(layer, nn.Conv2d) for layer in net.features)
        13
    """
    return VGG(FusedSequential(*_stages()), **options)
