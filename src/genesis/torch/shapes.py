"""Shapes, strides and geometry of a convolution's result, from its operands' shapes and its settings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from genesis.records import ConvGeometry

Pair = tuple[int, int]
SomeTensor = TypeVar("SomeTensor", Tensor, Tensor | None)


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)  # that kernels of norms and poolings take


def is_normalized(x: Tensor) -> bool:
    """Return whether kernels normalize these images without a convolution: channels last, of more than one pixel."""
    shape = x.shape
    if x.dim() != 4 or x.dtype not in FLOATS or not all(isinstance(size, int) and size for size in shape):
        return False
    if shape[1] == 1 or shape[2] * shape[3] == 1:  # both orders of memory are the same
        return False
    return x.stride() == torch.empty(shape, device="meta", memory_format=torch.channels_last).stride()


class Plan(NamedTuple):
    """A convolution as the op takes it, and the layout that its output has in PyTorch."""

    geometry: ConvGeometry
    output_shape: torch.Size
    channels: torch.Size  # the shape of a parameter with one number per channel
    num_rows: int  # values per channel
    strides: tuple[int, ...]  # that PyTorch's layers would give the output
    contiguous: bool  # they are those of NCHW, and the op's values, in channels-last, lie otherwise
    fits_both: bool  # of one pixel or channel: values in channels-last are contiguous too, whatever the strides
    is_ambiguous: bool  # and their strides are those of channels-last: PyTorch's layers disagree on which it is


@functools.lru_cache(maxsize=4096)
def plan(
    shape: torch.Size, weight_shape: torch.Size, stride: Pair, padding: Pair | str, dilation: Pair, groups: int,
    strides: tuple[int, ...] | None, weight_strides: tuple[int, ...],
) -> Plan | None:  # fmt: skip
    """Plan a convolution of an input of this shape.

    Args:
        strides: of the input, None where PyTorch convolves in NCHW only.
    Returns: None for what the op does not take: "same" with asymmetric padding, a wrong shape, an empty result.
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
    geometry = ConvGeometry(stride, padding, dilation, groups)
    in_order = strides is not None and (
        suggests_channels_last(shape, strides) or suggests_channels_last(weight_shape, weight_strides)
    )
    order = torch.channels_last if in_order else torch.contiguous_format
    output_strides = torch.empty(output_shape, device="meta", memory_format=order).stride()
    fits_both = height * width == 1 or weight_shape[0] == 1
    orders = (not in_order and not fits_both, fits_both, in_order and fits_both)
    return Plan(geometry, output_shape, channels, shape[0] * height * width, output_strides, *orders)


def suggests_channels_last(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    """PyTorch's suggest_memory_format(), which C++ alone can call: False where both orders fit."""
    if strides[1] == 0:
        return False
    least = 0
    for axis in (1, 3, 2, 0):
        if shape[axis] == 0 or strides[axis] < least or (axis == 0 and least == strides[1]):
            return False
        least = strides[axis] * max(shape[axis], 1)
    return True


def order_of(images: Tensor) -> torch.memory_format:
    """Channels-last or contiguous: the order in which the images lie."""
    is_last = suggests_channels_last(images.shape, images.stride())
    return torch.channels_last if is_last else torch.contiguous_format


def in_channels_last(x: SomeTensor) -> SomeTensor:
    """Images, or a weight, as Genesis' kernels on CUDA take them: a compiler makes the copy a part of what computes
    them."""
    if x is None or not _are_copied(x) or order_of(x) is torch.channels_last:
        return x
    return x.contiguous(memory_format=torch.channels_last)


def in_order(x: Tensor | None, order: torch.memory_format) -> Tensor | None:
    return None if x is None else x.contiguous(memory_format=order)


def _are_copied(x: Tensor) -> bool:
    return x.is_cuda


def only_contiguous(dtype: torch.dtype, on_cuda: bool) -> bool:
    """Whether PyTorch has no convolution in channels-last order for this dtype."""
    return on_cuda and dtype is torch.float64


def geometry_of(stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int) -> ConvGeometry:
    """The record of a schema's arguments, which are lists of two."""
    return ConvGeometry((stride[0], stride[1]), (padding[0], padding[1]), (dilation[0], dilation[1]), groups)


def empty_images(shape: Sequence[int], like: Tensor) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def empty_output(
    input: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    """A result of the op without values."""
    sizes = [
        (input.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in (0, 1)
    ]
    return empty_images((input.shape[0], weight.shape[0], *sizes), input)
