"""Networks to grow: one of each way in which channels are wired."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import genesis
import genesis.nn.functional as F
from genesis import models, nn
from genesis.tensor import Tensor


class Case(NamedTuple):
    """How to build a network, the shape of an input, and where it can become wider, deeper, and have branches."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    wide: tuple[str, ...]
    deep: tuple[str, ...]
    branched: tuple[str, ...]


def small() -> nn.Module:
    """Two convolutions and a linear layer, of 4×4 pictures."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, padding=1), nn.Flatten(),
        nn.Linear(48, 2),
    )  # fmt: skip


def original() -> nn.Module:
    """A multi-branch network for 8×8 digits, of 66,410 parameters."""
    branches = [
        nn.Branch(nn.ConvBNReLU(20, 32, 3, padding=1), nn.Conv2d(32, 36, 1, bias=False), gate=0.5),
        nn.Branch(nn.ConvBNReLU(20, 36, 3, padding=1), gate=0.5),
    ]
    return nn.Sequential(
        nn.ConvBNReLU(1, 20, 3, padding=1),
        nn.MultiBranch(nn.ConvBNReLU(20, 36, 3, padding=1), branches),
        nn.MaxPool2d(2),
        nn.ConvBNReLU(36, 48, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(48 * 4, 150),
        nn.ReLU(),
        nn.Linear(150, 10),
    )


def vgg() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6),
        nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(32, 12), nn.ReLU(), nn.Dropout(0.0), nn.Linear(12, 5),
    )  # fmt: skip


class Residual(nn.Module):
    """Two stages of residual blocks with plain layers, the second with a downsampling shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv2d(6, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1))
        self.block = nn.Sequential(nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8))
        self.shortcut = nn.Conv2d(6, 8, 1, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        x = F.relu(x + self.inner(x))
        x = F.relu(self.block(x) + self.shortcut(x))
        return self.head(x.mean((2, 3)))


class Dense(nn.Module):
    """Each layer takes all that came before it, joined, with a norm over the join."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(4 + 3 * i), nn.ReLU(), nn.Conv2d(4 + 3 * i, 3, 3, padding=1)) for i in range(3)
        )
        self.transition = nn.Conv2d(13, 6, 1)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Any:
        parts = [self.first(x)]
        for layer in self.layers:
            parts.append(layer(genesis.cat(parts, dim=1)))
        return self.head(F.adaptive_avg_pool2d(self.transition(genesis.cat(parts, dim=1)), 1).flatten(1))


def mobile() -> nn.Module:
    """Expansion, depthwise convolution, projection; grouped convolution and group norm."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Conv2d(8, 12, 1), nn.GroupNorm(3, 12), nn.SiLU(), nn.Conv2d(12, 6, 3, groups=3, padding=1), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(6 * 16, 5),
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10), nn.LayerNorm(10), nn.GELU(), nn.Linear(10, 8),
        nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 5),
    )  # fmt: skip


class Tied(nn.Module):
    """A convolution that runs twice, on its own output too, an embedding used both ways round, a scale per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.scale = nn.Parameter(genesis.rand(1, 4, 1, 1) + 0.5)
        self.last = nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.first(x))
        x = F.relu(self.twice(x)) * self.scale
        return self.last(F.relu(self.twice(x))).mean((2, 3))


def up() -> nn.Module:
    """Transposed convolution, pixel shuffle, interpolation."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(4, 6, 2, stride=2), nn.InstanceNorm2d(6),
        nn.Conv2d(6, 12, 1), nn.PixelShuffle(2), nn.LeakyReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(3, 2, 1),
    )  # fmt: skip


CASES = {
    "original": Case(original, (4, 1, 8, 8), ("0", "1.main", "3", "6", "1"), ("1", "3", "7"), ("1", "3", "6")),
    "vgg": Case(vgg, (4, 3, 8, 8), ("0", "3", "7", "12"), ("2", "9", "13"), ("0", "3", "12")),
    "residual": Case(Residual, (4, 3, 8, 8), ("stem.0", "inner.0", "block", "shortcut"), ("stem", "inner"), ("block",)),
    "dense": Case(Dense, (4, 3, 8, 8), ("first", "layers.0", "layers.2.2", "transition"), ("layers.1",), ("layers.0",)),
    "mobile": Case(mobile, (4, 3, 8, 8), ("0", "1", "4", "7", "10"), ("6", "11"), ("7", "1")),
    "mlp": Case(mlp, (4, 1, 8, 8), ("0", "6"), ("5", "8"), ("3", "6")),
    "tied": Case(Tied, (4, 3, 8, 8), ("first",), ("first",), ("last",)),
    "up": Case(up, (4, 2, 8, 8), ("0", "2", "4"), ("1", "5"), ("2", "4")),
    "unet": Case(
        lambda: models.create("unet", width=4, depth=3), (4, 1, 8, 8),
        ("encoder.0.1", "encoder.1.0", "encoder.2.1", "upsample.0", "decoder.0.0"), ("encoder.0", "decoder.1"),
        ("encoder.1.1", "upsample.1"),
    ),
}  # fmt: skip
LARGE = {
    "resnet18": Case(
        lambda: models.create("resnet18", num_classes=5), (4, 3, 64, 64), ("layer1", "layer2.0.conv1", "conv1"),
        ("layer3",), ("layer2",),
    ),
    "resnet50": Case(
        lambda: models.create("resnet50", num_classes=5, zero_init_residual=True), (8, 3, 32, 32),
        ("layer1", "layer2.0.conv2", "conv1"), ("layer2",), ("layer4",),
    ),
    # With the random weights that 50 norms in a row make most of: each small difference is a thousand times as large.
    "resnet50_random": Case(
        lambda: models.create("resnet50", num_classes=5), (8, 3, 32, 32), ("layer1", "layer2.0.conv2"), (), (),
    ),
}  # fmt: skip
