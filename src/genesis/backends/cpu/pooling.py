"""Pooling and interpolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape

if TYPE_CHECKING:
    from torch._ops import OpOverloadPacket

aten = torch.ops.aten


def max_pool2d(
    x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil_mode: bool,
    find: str | None = "indices",
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    halves = kernel_size == stride == (2, 2) and padding == (0, 0) and dilation == (1, 1) and not ceil_mode
    if halves and find is None:
        return _halved(x), None
    return aten.max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)


def _halved(x: Tensor) -> Tensor:
    """The largest of each 2 × 2 window: a fraction of the time that torch's pooling takes, which finds indices too."""
    height, width = x.shape[2:]
    rows = torch.maximum(x[:, :, : height - 1 : 2], x[:, :, 1::2])
    return torch.maximum(rows[..., : width - 1 : 2], rows[..., 1::2])


def max_pool2d_backward(
    grad: Tensor, input_shape: Shape, found: Tensor, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair,
    ceil_mode: bool,
) -> Tensor:  # fmt: skip
    channels_last = found.dim() == 4 and found.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if channels_last and not found.is_contiguous() else torch.contiguous_format
    x = torch.empty(input_shape, dtype=grad.dtype, memory_format=order)  # asked for its shape and order only
    return aten.max_pool2d_with_indices_backward(grad, x, kernel_size, stride, padding, dilation, ceil_mode, found)


def avg_pool2d(
    x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    return aten.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool2d_backward(
    grad: Tensor, x: Tensor, kernel_size: Pair, stride: Pair, padding: Pair,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    return aten.avg_pool2d_backward(
        grad, x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def adaptive_avg_pool2d(x: Tensor, output_size: Pair) -> Tensor:
    if tuple(output_size) == (1, 1) and x.dtype is torch.float32 and x.numel() > 0:
        return x.mean((-2, -1), keepdim=True)  # torch's kernel for channels-last adds up one by one, this one in a tree
    return aten._adaptive_avg_pool2d(x, output_size)


def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    return aten._adaptive_avg_pool2d_backward(grad, x)


def adaptive_max_pool2d(x: Tensor, output_size: Pair) -> tuple[Tensor, Tensor]:
    return aten.adaptive_max_pool2d(x, output_size)


def adaptive_max_pool2d_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    return aten.adaptive_max_pool2d_backward(grad, x, indices)


def interpolate(x: Tensor, size: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]) -> Tensor:
    return _upsample(mode, len(size))(x, size, *_corners(mode, align_corners), *scales)


def interpolate_backward(
    grad: Tensor, input_shape: Shape, mode: str, align_corners: bool, scales: tuple[float | None, ...]
) -> Tensor:
    backward = _upsample(mode, len(input_shape) - 2, "_backward")
    return backward(grad, grad.shape[2:], input_shape, *_corners(mode, align_corners), *scales)


def _upsample(mode: str, spatial_dims: int, suffix: str = "") -> OpOverloadPacket:
    name = {"nearest": "nearest", "nearest-exact": "_nearest_exact"}.get(mode, mode)
    family = f"_upsample{name}" if name.startswith("_") else f"upsample_{name}"
    return getattr(aten, f"{family}{spatial_dims}d{suffix}")


def _corners(mode: str, align_corners: bool) -> tuple[bool, ...]:
    return () if mode.startswith("nearest") else (align_corners,)
