"""Layers that enlarge or frame images: Upsample, PixelShuffle, paddings."""

from __future__ import annotations

from typing import Any

from genesis import functional as F
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = ["PixelShuffle", "ReflectionPad2d", "ReplicationPad2d", "Upsample", "ZeroPad2d"]


class Upsample(Module):
    """Interpolate to a size or by a factor.

    Args:
        size: of the result's spatial dimensions, or
        scale_factor: by how much they grow.
        mode: "nearest", "linear", "bilinear", "bicubic" or "trilinear".
        align_corners: let the corner elements keep their values.
        recompute_scale_factor: use the factor of the rounded size.

    Example:
        >>> nn.Upsample(scale_factor=2)(genesis.ones(1, 3, 4, 4)).shape
        (1, 3, 8, 8)
    """

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.size = size
        if isinstance(scale_factor, tuple):
            self.scale_factor: Any = tuple(float(factor) for factor in scale_factor)
        else:
            self.scale_factor = float(scale_factor) if scale_factor else None
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Any:
        return F.interpolate(
            input, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        size = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{size}, mode={self.mode!r}"


class PixelShuffle(Module):
    """(N, C·r², H, W) as (N, C, H·r, W·r).

    Source: Shi et al. 2016, arXiv:1609.05158.
    """

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Any:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class _Pad2d(Module):
    """A border around images: one width, or (left, right, top, bottom)."""

    mode: str

    def __init__(self, padding: int | tuple[int, int, int, int]) -> None:
        super().__init__()
        self.padding = (padding,) * 4 if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Tensor) -> Any:
        return F.pad(input, self.padding, mode=self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad2d(_Pad2d):
    """A border of zeros: one width, or (left, right, top, bottom)."""

    mode = "constant"


class ReflectionPad2d(_Pad2d):
    """A border that mirrors the image: one width, or (left, right, top, bottom)."""

    mode = "reflect"


class ReplicationPad2d(_Pad2d):
    """A border that repeats the image's edge: one width, or (left, right, top, bottom)."""

    mode = "replicate"
