"""What a convolution's settings make of an input's shape."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

Geometry = tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]


class Plan(NamedTuple):
    """Stride, padding, dilation, groups; the output's shape; and how many values a channel has."""

    geometry: Geometry
    output_shape: torch.Size
    channels: torch.Size  # the shape of what is one number per channel
    num_rows: int


@functools.lru_cache(maxsize=4096)
def plan(
    shape: torch.Size, weight_shape: torch.Size, stride: tuple[int, ...], padding: Any, dilation: tuple[int, ...],
    groups: int,
) -> Plan | None:  # fmt: skip
    """None for what the op does not take: "same" with a pixel more on one side, a wrong shape, nothing."""
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
    geometry: Any = (stride, padding, dilation, groups)
    return Plan(geometry, output_shape, channels, shape[0] * height * width)
