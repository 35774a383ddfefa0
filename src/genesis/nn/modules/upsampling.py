"""Layers that enlarge or frame images: Upsample, PixelShuffle, paddings."""

from __future__ import annotations

from genesis import functional as F
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = ["PixelShuffle", "ReflectionPad2d", "ReplicationPad2d", "Upsample", "ZeroPad2d"]


class Upsample(Module):
    """Resize the spatial dimensions by interpolation, to a size or by a factor.

    Args:
        size: spatial sizes of the output, or one for all; or instead
        scale_factor: factor by which each spatial dimension grows.
        mode: "nearest" | "nearest-exact" | "area" | "linear" (1-d) | "bilinear" | "bicubic" (2-d) | "trilinear" (3-d).
        align_corners: keep the values of the corner elements; for the linear and cubic modes.
        recompute_scale_factor: compute with the factor that the rounded output size has.
    Shape: (N, C, …) with 1 to 3 spatial dimensions, of a floating dtype.

    Example:
        >>> nn.Upsample(scale_factor=2)(genesis.ones(1, 3, 4, 4)).shape
        (1, 3, 8, 8)
    """

    scale_factor: float | tuple[float, ...] | None

    def __init__(
        self, size: int | tuple[int, ...] | None = None, scale_factor: float | tuple[float, ...] | None = None,
        mode: str = "nearest", align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size = size
        if isinstance(scale_factor, tuple):
            self.scale_factor = tuple(float(factor) for factor in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        size = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{size}, mode={self.mode!r}"


class PixelShuffle(Module):
    """Rearrange channels into pixels, (N, C·r², H, W) → (N, C, H·r, W·r): sub-pixel upsampling.

    Args:
        upscale_factor: r.
    Source: Shi et al. 2016, arXiv:1609.05158.

    Example:
        >>> nn.PixelShuffle(2)(genesis.ones(1, 8, 3, 3)).shape
        (1, 2, 6, 6)
    """

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class _Pad2d(Module):
    """A border around images: one width, or (left, right, top, bottom)."""

    mode: str

    def __init__(self, padding: int | tuple[int, int, int, int]) -> None:
        super().__init__()
        self.padding = (padding,) * 4 if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, mode=self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad2d(_Pad2d):
    """Pad images with zeros.

    Args:
        padding: width of the border, or (left, right, top, bottom).
    Shape: (…, H, W) → (…, H + top + bottom, W + left + right), any dtype.

    Example:
        >>> nn.ZeroPad2d((1, 0, 0, 0))(genesis.ones(1, 1, 1, 1)).tolist()
        [[[[0.0, 1.0]]]]
    """

    mode = "constant"


class ReflectionPad2d(_Pad2d):
    """Pad images with their reflection at the edge; the edge itself is not repeated.

    Args:
        padding: width of the border, or (left, right, top, bottom); below the image's size.
    Shape: (N, C, H, W) or (C, H, W) → H + top + bottom, W + left + right.

    Example:
        >>> nn.ReflectionPad2d((2, 0, 0, 0))(genesis.tensor([[[1.0, 2.0, 3.0]]])).tolist()
        [[[3.0, 2.0, 1.0, 2.0, 3.0]]]
    """

    mode = "reflect"


class ReplicationPad2d(_Pad2d):
    """Pad images by repeating their edge.

    Args:
        padding: width of the border, or (left, right, top, bottom).
    Shape: (N, C, H, W) or (C, H, W) → H + top + bottom, W + left + right.

    Example:
        >>> nn.ReplicationPad2d((2, 0, 0, 0))(genesis.tensor([[[1.0, 2.0, 3.0]]])).tolist()
        [[[1.0, 1.0, 1.0, 2.0, 3.0]]]
    """

    mode = "replicate"
