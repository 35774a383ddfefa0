"""Pooling and interpolation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.records import Windows

if TYPE_CHECKING:
    from torch._ops import OpOverloadPacket

aten = torch.ops.aten


_HALVES = Windows((2, 2), (2, 2), (0, 0), (1, 1), False)


def max_pool2d(x: Tensor, windows: Windows, find: str | None = "indices") -> tuple[Tensor, Tensor | None]:
    if find is None and windows == _HALVES:
        return _halved(x), None
    return aten.max_pool2d_with_indices(x, *windows)


def _halved(x: Tensor) -> Tensor:
    """The largest of each 2 × 2 window: a fraction of the time that torch's pooling takes, which finds indices too."""
    height, width = x.shape[2:]
    rows = torch.maximum(x[:, :, : height - 1 : 2], x[:, :, 1::2])
    return torch.maximum(rows[..., : width - 1 : 2], rows[..., 1::2])


def max_pool2d_backward(grad: Tensor, input_shape: Shape, found: Tensor, windows: Windows) -> Tensor:
    channels_last = found.dim() == 4 and found.is_contiguous(memory_format=torch.channels_last)
    order = torch.channels_last if channels_last and not found.is_contiguous() else torch.contiguous_format
    x = torch.empty(input_shape, dtype=grad.dtype, memory_format=order)  # asked for its shape and order only
    return aten.max_pool2d_with_indices_backward(grad, x, *windows, found)


def avg_pool2d(x: Tensor, windows: Windows, count_include_pad: bool, divisor_override: int | None) -> Tensor:
    kernel_size, stride, padding, _, ceil_mode = windows
    return aten.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def avg_pool2d_backward(
    grad: Tensor, x: Tensor, windows: Windows, count_include_pad: bool, divisor_override: int | None
) -> Tensor:
    kernel_size, stride, padding, _, ceil_mode = windows
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
