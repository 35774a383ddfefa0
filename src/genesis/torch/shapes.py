"""What a convolution's settings make of an input's shape."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from genesis.records import ConvGeometry


class Plan(NamedTuple):
    """The convolution's geometry, the output's shape and strides, and how many values a channel has."""

    geometry: ConvGeometry
    output_shape: torch.Size
    channels: torch.Size  # the shape of what is one number per channel
    num_rows: int
    strides: tuple[int, ...]  # that PyTorch's layers would give the output
    contiguous: bool  # they are those of NCHW; else channels-last, as the op has it


@functools.lru_cache(maxsize=4096)
def plan(
    shape: torch.Size, weight_shape: torch.Size, stride: tuple[int, ...], padding: Any, dilation: tuple[int, ...],
    groups: int, strides: tuple[int, ...] | None, weight_strides: tuple[int, ...],
) -> Plan | None:  # fmt: skip
    """strides: of the input, None where PyTorch convolves in NCHW only.

    Returns: None for what the op does not take: "same" with a pixel more on one side, a wrong shape, nothing.
    """
    if len(shape) != 4 or len(weight_shape) != 4 or groups < 1 or shape[1] != weight_shape[1] * groups:
        return None
    if weight_shape[0] % groups or 0 in weight_shape:
        return None
    reach = [dilation[i] * (weight_shape[2 + i] - 1) for i in (0, 1)]
    if padding == "same" and any(r % 2 for r in reach):
        return None
    if isinstance(padding, str):
        padding = (reach[0] // 2, reach[1] // 2) if padding == "same" else (0, 0)
    height, width = ((shape[2 + i] + 2 * padding[i] - reach[i] - 1) // stride[i] + 1 for i in (0, 1))
    if min(height, width, shape[0]) < 1:
        return None
    output_shape = torch.Size((shape[0], weight_shape[0], height, width))
    channels = torch.Size(weight_shape[:1])
    geometry = ConvGeometry(stride, padding, dilation, groups)  # type: ignore[arg-type]
    contiguous = strides is None or not (
        suggests_channels_last(shape, strides) or suggests_channels_last(weight_shape, weight_strides)
    )
    if not contiguous and (height * width == 1 or weight_shape[0] == 1):
        return None  # in both orders at once: each of PyTorch's layers takes it for another
    order = torch.contiguous_format if contiguous else torch.channels_last
    output_strides = torch.empty(output_shape, device="meta", memory_format=order).stride()
    return Plan(geometry, output_shape, channels, shape[0] * height * width, output_strides, contiguous)


def suggests_channels_last(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    """As PyTorch's suggest_memory_format() has it, which does not tell Python: not where both would do."""
    if strides[1] == 0:
        return False
    least = 0
    for axis in (1, 3, 2, 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def only_contiguous(dtype: torch.dtype, on_cuda: bool) -> bool:
    """Whether PyTorch has no convolution in channels-last order for this dtype."""
    return on_cuda and dtype is torch.float64
