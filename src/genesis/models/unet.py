"""U-Net: an encoder of halving resolutions and a decoder of doubling ones, joined by skip connections.

Source: Ronneberger, Fischer & Brox 2015, arXiv:1505.04597, figure 1; padded convolutions with batch norm, so that the
output has the size of the input.
"""

from __future__ import annotations

from itertools import pairwise

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.errors import ShapeError, describe
from genesis.models.registry import register


class UNet(nn.Module):
    """U-Net: `encoder` descends to the lowest resolution, `upsample` and `decoder` return to that of the input.

    Args:
        in_channels: channels of the input.
        num_classes: logits per pixel.
        width: channels of the finest level; each coarser one has twice as many.
        depth: number of levels.
    Shape: (N, in_channels, H, W) → (N, num_classes, H, W); H and W are multiples of 2^(depth − 1).
    Raises: ShapeError: the input has another shape.

    Example:
        >>> genesis.models.UNet(1, 2, width=4, depth=2)(genesis.ones(1, 1, 8, 8)).shape
        (1, 2, 8, 8)
    """

    def __init__(self, in_channels: int, num_classes: int, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]  # of the levels, from the finest to the coarsest
        self.encoder = nn.ModuleList(map(_two_convolutions, [in_channels, *widths], widths))
        self.upsample = nn.ModuleList(
            nn.ConvTranspose2d(coarse, fine, kernel_size=2, stride=2) for fine, coarse in pairwise(widths)
        )
        self.decoder = nn.ModuleList(_two_convolutions(2 * fine, fine) for fine in widths[:-1])
        self.head = nn.Conv2d(width, num_classes, kernel_size=1)

    def forward(self, input: genesis.Tensor) -> genesis.Tensor:
        self._check(input)
        x, skips = input, []
        for level, block in enumerate(self.encoder):
            if level > 0:
                skips.append(x)
                x = F.max_pool2d(x, 2)
            x = block(x)
        for level in reversed(range(len(skips))):
            x = self.decoder[level](genesis.cat([skips[level], self.upsample[level](x)], dim=1))
        return self.head(x)

    def _check(self, input: genesis.Tensor) -> None:
        multiple = 2 ** len(self.upsample)
        if input.ndim != 4 or input.shape[2] % multiple or input.shape[3] % multiple:
            expected = f"(N, C, H, W) with H and W multiples of {multiple}"
            raise ShapeError(describe("UNet", "input", expected, input.shape))


def _two_convolutions(in_channels: int, out_channels: int) -> nn.Module:
    return nn.Sequential(
        nn.ConvBNReLU(in_channels, out_channels, 3, padding=1),
        nn.ConvBNReLU(out_channels, out_channels, 3, padding=1),
    )


@register
def unet(in_channels: int = 1, num_classes: int = 1, width: int = 16, depth: int = 3) -> UNet:
    """U-Net with one logit per pixel and class.

    Args:
        in_channels: channels of the input.
        num_classes: logits per pixel.
        width: channels of the finest level; each coarser one has twice as many (the paper: 64).
        depth: number of levels (the paper: 5).
        weights: a file to load.
    Returns: the network; (N, in_channels, H, W) → (N, num_classes, H, W).
    Raises: ValueError: an argument is below 1.
    Example: >>> genesis.models.unet(width=4, depth=2)(genesis.ones(1, 1, 8, 8)).shape
    (1, 1, 8, 8)
    """
    for name, value in (
        ("in_channels", in_channels), ("num_classes", num_classes), ("width", width), ("depth", depth),
    ):  # fmt: skip
        if value < 1:
            raise ValueError(describe("unet", name, "at least 1", value))
    return UNet(in_channels, num_classes, width, depth)
