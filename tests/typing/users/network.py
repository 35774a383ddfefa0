"""A user's network: its layers, its forward, and what a call of it gives."""

from typing import assert_type

import genesis
from genesis import Tensor, nn


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.ConvBNReLU(channels, channels, 3), nn.Conv2d(channels, channels, 3, padding=1))
        self.scale = nn.Parameter(genesis.ones(1))

    def forward(self, input: Tensor) -> Tensor:
        return (input + self.scale * self.body(input)).relu()


class Classifier(nn.Module):
    """Blocks, then the mean over the plane, then classes; the features too, if they are asked for."""

    def __init__(self, channels: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(channels) for _ in range(2)])
        self.head = nn.Linear(channels, classes)

    def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
        for block in self.blocks:
            input = block(input)
        features = input.mean(dim=(2, 3))
        return self.head(features), features


x = genesis.randn(1, 8, 4, 4)
block = Block(8)
assert_type(block(x), Tensor)
assert_type(block.scale, nn.Parameter)
assert_type(block.to("cpu").eval(), Block)
model = Classifier()
assert_type(model(x), tuple[Tensor, Tensor])
assert_type(nn.ReLU()(x), Tensor)
assert_type(nn.Linear(8, 4)(x), Tensor)
assert_type(nn.Sequential(nn.ReLU(), nn.Flatten())(x), Tensor)
assert_type(nn.CrossEntropyLoss()(x, x), Tensor)
