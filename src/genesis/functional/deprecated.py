"""Functions that PyTorch keeps for old code: other names, or values and indices under a name of their own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from genesis.autograd import Tensor
from genesis.functional.interpolation import interpolate
from genesis.functional.pooling import OutputSize, adaptive_max_pool2d, max_pool1d, max_pool2d
from genesis.functional.unpooling import adaptive_max_pool1d
from genesis.functional.windows import Size

__all__ = [
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "max_pool1d_with_indices",
    "max_pool2d_with_indices", "upsample", "upsample_bilinear", "upsample_nearest",
]  # fmt: skip


def upsample(
    input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest", align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """The old name of interpolate, with a warning. See `F.interpolate`."""
    _warn("upsample", "interpolate")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(
    input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None
) -> Tensor:
    """interpolate with mode "nearest", and a warning. See `F.interpolate`."""
    _warn("upsample_nearest", "interpolate")
    return interpolate(input, size, scale_factor, mode="nearest")


def upsample_bilinear(
    input: Tensor, size: Size | None = None, scale_factor: float | Sequence[float] | None = None
) -> Tensor:
    """interpolate with mode "bilinear" and aligned corners, and a warning. See `F.interpolate`."""
    _warn("upsample_bilinear", "interpolate(mode='bilinear', align_corners=True)")
    return interpolate(input, size, scale_factor, mode="bilinear", align_corners=True)


def _warn(old: str, new: str) -> None:
    warnings.warn(f"F.{old} is the old name of F.{new}", UserWarning, stacklevel=3)


def max_pool1d_with_indices(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, return_indices: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """max_pool1d with return_indices. See `F.max_pool1d`."""
    return max_pool1d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)


def max_pool2d_with_indices(
    input: Tensor, kernel_size: Size, stride: Size | None = None, padding: Size = 0, dilation: Size = 1,
    ceil_mode: bool = False, return_indices: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """max_pool2d with return_indices. See `F.max_pool2d`."""
    return max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices=True)


def adaptive_max_pool1d_with_indices(
    input: Tensor, output_size: OutputSize, return_indices: bool = True
) -> tuple[Tensor, Tensor]:
    """adaptive_max_pool1d with return_indices. See `F.adaptive_max_pool1d`."""
    values, indices = adaptive_max_pool1d(input, output_size, return_indices=True)
    return values, indices


def adaptive_max_pool2d_with_indices(
    input: Tensor, output_size: OutputSize, return_indices: bool = True
) -> tuple[Tensor, Tensor]:
    """adaptive_max_pool2d with return_indices. See `F.adaptive_max_pool2d`."""
    return adaptive_max_pool2d(input, output_size, return_indices=True)
