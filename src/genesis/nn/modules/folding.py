"""Layers that rearrange images: patches as columns, channels among groups, pixels as channels."""

from __future__ import annotations

from genesis import functional as F
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = ["ChannelShuffle", "Fold", "PixelUnshuffle", "Unfold"]

Size = int | tuple[int, ...]


class _Windows(Module):
    def __init__(self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.dilation = dilation
        self.padding = padding
        self.stride = stride

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Unfold(_Windows):
    """Each patch of an image as a column (im2col).

    Args:
        kernel_size, dilation, padding, stride: as in `F.unfold`.
    Shape: (N, C, H, W) → (N, C·R·S, L), or without N.

    Example:
        >>> nn.Unfold(2)(genesis.ones(1, 3, 4, 4)).shape
        (1, 12, 9)
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(_Windows):
    """Sum columns into an image (col2im).

    Args:
        output_size, kernel_size, dilation, padding, stride: as in `F.fold`.
    Shape: (N, C·R·S, L) → (N, C, H, W), or without N.

    Example:
        >>> nn.Fold((4, 4), 2)(genesis.ones(1, 12, 9)).shape
        (1, 3, 4, 4)
    """

    def __init__(
        self, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"


class ChannelShuffle(Module):
    """Deal out the channels of groups in turn.

    Args:
        groups: number of groups, which divides the channels.
    Shape: (N, C, …); the output has the same.
    Source: Zhang et al. 2018, arXiv:1707.01083.

    Example:
        >>> nn.ChannelShuffle(2)(genesis.arange(4.0).reshape(1, 4, 1)).flatten().tolist()
        [0.0, 2.0, 1.0, 3.0]
    """

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        return F.channel_shuffle(input, self.groups)

    def extra_repr(self) -> str:
        return f"groups={self.groups}"


class PixelUnshuffle(Module):
    """Rearrange pixels into channels, (N, C, H·r, W·r) → (N, C·r², H, W): the inverse of PixelShuffle.

    Args:
        downscale_factor: r.

    Example:
        >>> nn.PixelUnshuffle(2)(genesis.ones(1, 2, 6, 6)).shape
        (1, 8, 3, 3)
    """

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"
