"""Layers that resize images: Upsample and PixelShuffle."""

from __future__ import annotations

from genesis import functional as F
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = ["PixelShuffle", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]


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


class UpsamplingNearest2d(Upsample):
    """Resize images by repeating pixels.

    Args:
        size: (H, W) of the output, or one number for both; or instead
        scale_factor: factor by which each dimension grows.
    Shape: (N, C, H, W), of a floating dtype.

    Example:
        >>> nn.UpsamplingNearest2d(scale_factor=2)(genesis.ones(1, 3, 4, 4)).shape
        (1, 3, 8, 8)
    """

    def __init__(
        self, size: int | tuple[int, ...] | None = None, scale_factor: float | tuple[float, ...] | None = None
    ) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """Resize images by bilinear interpolation that keeps the values of the corners.

    Args:
        size: (H, W) of the output, or one number for both; or instead
        scale_factor: factor by which each dimension grows.
    Shape: (N, C, H, W), of a floating dtype.

    Example:
        >>> nn.UpsamplingBilinear2d((3, 3))(genesis.ones(1, 3, 4, 4)).shape
        (1, 3, 3, 3)
    """

    def __init__(
        self, size: int | tuple[int, ...] | None = None, scale_factor: float | tuple[float, ...] | None = None
    ) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
