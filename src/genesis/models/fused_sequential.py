"""A Sequential that runs convolution, batch norm and ReLU as one op, for models whose keys are those of Sequential."""

from __future__ import annotations

from typing import Self

from genesis import nn
from genesis.tensor import Tensor


class FusedSequential(nn.Sequential):
    """nn.Sequential that runs each Conv2d as one op with the BatchNorm2d, and the ReLU, that directly follow it.

    nn.ConvBNReLU is for these three alone; this is for longer sequences with torchvision's flat numbering.

    Args:
        modules: the layers, in order.
    Shape: the input of the first module → the output of the last.

    Example:
        >>> from genesis.models import FusedSequential
        >>> row = FusedSequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        >>> row(genesis.ones(2, 3, 10, 10)).shape, list(row.state_dict())[:3]
        ((2, 8, 4, 4), ['0.weight', '0.bias', '1.weight'])
    """

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self._fused: dict[nn.Module, nn.FusedConv] = {}

    def forward(self, input: Tensor) -> Tensor:
        x, parts, position = input, list(self), 0
        while position < len(parts):
            part, *following = parts[position : position + 3]
            if isinstance(part, nn.Conv2d) and following and isinstance(following[0], nn.BatchNorm2d):
                has_relu = isinstance(following[-1], nn.ReLU)
                x = self._fused_conv(part)(part, following[0], x, activation="relu" if has_relu else None)
                position += 3 if has_relu else 2
            else:
                x = part(x)
                position += 1
        return x

    def train(self, mode: bool = True) -> Self:
        self._fused.clear()  # what was folded for inference
        return super().train(mode)

    def _fused_conv(self, conv: nn.Conv2d) -> nn.FusedConv:
        if conv not in self._fused:
            self._fused[conv] = nn.FusedConv()
        return self._fused[conv]
