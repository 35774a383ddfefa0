"""Convolution: NHWC in memory, NCHW in shape. Forward, both gradients, and the forward with a prepacked weight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.contract import Pair
from genesis.backends.cuda import array, driver, tiles
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.kernels import conv as kernels
from genesis.backends.cuda.kernels.pointwise import COMPUTE
from genesis.backends.cuda.launch import launch
from genesis.backends.cuda.storage import copy
from genesis.backends.cuda.tiles import Tile
from genesis.dtypes import DType
from genesis.shapes import Shape, channels_last_strides

# By bytes per element, from large to small.
_TILES = {
    2: (Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 64, 64, 4, 3), Tile(64, 64, 64, 4, 3)),
    4: (Tile(128, 128, 32, 8, 3), Tile(128, 64, 32, 4, 3), Tile(64, 64, 32, 4, 3)),
    8: (Tile(64, 64, 16, 4, 3), Tile(32, 32, 16, 4, 3)),
}
_DEPTHWISE_BLOCK = 4096  # results per program
_FLAT_BELOW = 16  # channels; fewer fill no block of terms
_GROUP = 8
_SPLIT_LIMIT = 64 << 20  # bytes of partial sums


class Axis(NamedTuple):
    """Which input each result takes along one axis: i · step + start + tap · spread; and the weight's taps it meets."""

    out_first: int  # the results are out_first, out_first + out_step, …
    out_step: int
    out_size: int
    step: int
    start: int
    spread: int
    tap_first: int
    tap_step: int
    taps: int


def conv_forward(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, stride: Pair, padding: Pair, dilation: Pair,
    groups: int,
) -> DeviceArray:  # fmt: skip
    return _forward(input, _packed(weight), bias, None, None, stride, padding, dilation, groups)


def conv_input_grad(
    grad: DeviceArray, weight: DeviceArray, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair,
    groups: int, bias: DeviceArray | None = None,
) -> DeviceArray:  # fmt: skip
    _require_float("conv_input_grad", grad.dtype)
    out = array.empty(input_shape, grad.dtype, grad.device_index, channels_last_strides(input_shape))
    grad, weight = _channels_inner(grad, groups), _packed(weight)
    rows, columns = (
        input_grad_axes(input_shape[2 + i], weight.shape[2 + i], stride[i], padding[i], dilation[i]) for i in (0, 1)
    )
    for row in rows:
        for column in columns:
            _gather(out, grad, weight, bias, None, None, (row, column), groups, transposed=True)
    return out


def conv_weight_grad(
    grad: DeviceArray, input: DeviceArray, weight_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> DeviceArray:
    _require_float("conv_weight_grad", grad.dtype)
    device, dtype = grad.device_index, grad.dtype
    num_outputs, num_inputs, *taps = weight_shape
    grad, input = _channels_inner(grad, groups), _channels_inner(input, groups)
    num_images, _, *out_size = grad.shape
    num_pixels = num_images * math.prod(out_size)
    depthwise = groups > 1 and num_inputs == 1
    flat = num_inputs < _FLAT_BELOW
    if depthwise:
        tile = _depthwise_tile(num_pixels, num_outputs)
        num_programs = math.prod(taps) * -(-num_outputs // tile.block_n)
    else:
        columns = num_inputs * math.prod(taps) if flat else num_inputs
        choice = _TILES[dtype.itemsize]
        tile = tiles.ranked(choice, num_outputs // groups, columns, num_pixels, groups, dtype, device)[0]
        num_programs = groups * tile.num_tiles(num_outputs // groups, columns) * (1 if flat else math.prod(taps))
    pixels_per_block = tile.block_m if depthwise else tile.block_k
    out = array.empty(weight_shape, dtype, device)
    compute = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    num_splits = _num_splits(num_programs, num_pixels, pixels_per_block, out.size * compute.itemsize, device)
    blocks = -(-num_pixels // pixels_per_block)
    pixels_per_split = -(-blocks // num_splits) * pixels_per_block
    target, out_strides = out, (0, *out.strides)
    if num_splits > 1:
        target = array.empty((num_splits, *weight_shape), compute, device)
        out_strides = (out.size, *channels_last_strides(weight_shape))

    geometry = (tuple(out_size), input.shape[2:], tuple(taps), stride, (-padding[0], -padding[1]), dilation)
    strides = (out_strides, grad.strides, input.strides)
    constants: dict[str, Any] = {"COMPUTE": COMPUTE[dtype], "WIDE": _is_wide(grad, input)}
    if depthwise:
        grid = (math.prod(taps) * num_splits, -(-num_outputs // tile.block_n))
        launch(
            kernels._depthwise_weight_grad_kernel, grid, target, grad, input, num_pixels, num_outputs,
            num_outputs // groups, *geometry, num_splits, pixels_per_split, *strides,
            **constants, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
        )  # fmt: skip
    else:
        launch(
            kernels._conv_weight_grad_kernel, (num_programs * num_splits,), target, grad, input, num_pixels,
            num_outputs // groups, num_inputs, *geometry, num_splits, pixels_per_split, *strides,
            **constants, PRECISION=tiles.DOT_PRECISION[dtype], FLAT=flat, **tile.constants,
        )  # fmt: skip
    if num_splits > 1:
        launch(
            kernels._sum_splits_kernel, (-(-out.size // 1024),), out, target, num_splits, out.size, num_inputs,
            math.prod(taps), COMPUTE=COMPUTE[dtype], BLOCK=1024,
        )  # fmt: skip
    return out


@dataclass(frozen=True)
class PackedWeight:
    """A weight with its input channels innermost, and what a convolution with it needs to know."""

    weight: DeviceArray
    bias: DeviceArray | None
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


def conv_prepack(
    weight: DeviceArray, bias: DeviceArray | None, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair,
    groups: int,
) -> PackedWeight:  # fmt: skip
    packed = copy(weight, channels_last_strides(weight.shape))
    return PackedWeight(packed, bias, stride, padding, dilation, groups)


def conv_prepacked(
    input: DeviceArray, packed: PackedWeight, residual: DeviceArray | None, activation: str | None
) -> DeviceArray:
    p = packed
    return _forward(input, p.weight, p.bias, residual, activation, p.stride, p.padding, p.dilation, p.groups)


def _forward(
    input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, residual: DeviceArray | None,
    activation: str | None, stride: Pair, padding: Pair, dilation: Pair, groups: int,
) -> DeviceArray:  # fmt: skip
    _require_float("conv_forward", input.dtype)
    row, column = (
        forward_axis(input.shape[2 + i], weight.shape[2 + i], stride[i], padding[i], dilation[i]) for i in (0, 1)
    )
    shape = (input.shape[0], weight.shape[0], row.out_size, column.out_size)
    out = array.empty(shape, input.dtype, input.device_index, channels_last_strides(shape))
    input = _channels_inner(input, groups)
    _gather(out, input, weight, bias, residual, activation, (row, column), groups, transposed=False)
    return out


def forward_axis(size: int, taps: int, stride: int, padding: int, dilation: int) -> Axis:
    """
    >>> forward_axis(5, 3, 2, 1, 1)
    Axis(out_first=0, out_step=1, out_size=3, step=2, start=-1, spread=1, tap_first=0, tap_step=1, taps=3)
    """
    out_size = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    return Axis(0, 1, out_size, stride, -padding, dilation, 0, 1, taps)


def input_grad_axes(size: int, taps: int, stride: int, padding: int, dilation: int) -> list[Axis]:
    """One axis per residue of the input's position modulo the stride.

    Position h takes part in result p at tap r if h = p · stride − padding + r · dilation. For h = residue + i · stride
    and r = first + t · every, p = i + (residue + padding − first · dilation) / stride − t · every · dilation / stride.

    >>> [(axis.out_first, axis.tap_first, axis.taps) for axis in input_grad_axes(5, 3, 2, 1, 1)]
    [(0, 1, 1), (1, 0, 2)]
    """
    every = stride // math.gcd(stride, dilation)
    axes = []
    for residue in range(min(stride, size)):
        matching = (r for r in range(min(every, taps)) if (residue + padding - r * dilation) % stride == 0)
        first = next(matching, None)
        count = 0 if first is None else -(-(taps - first) // every)
        first = first or 0
        start = (residue + padding - first * dilation) // stride
        out_size = -(-(size - residue) // stride)
        axes.append(Axis(residue, stride, out_size, 1, start, -(every * dilation // stride), first, every, count))
    return axes


def _gather(
    out: DeviceArray, input: DeviceArray, weight: DeviceArray, bias: DeviceArray | None, residual: DeviceArray | None,
    activation: str | None, axes: tuple[Axis, Axis], groups: int, transposed: bool,
) -> None:  # fmt: skip
    """out, at the positions that the axes name, = act(Σ input · weight + bias + residual).

    transposed: out has the channels that the weight counts as its inputs, input those of its outputs.
    """
    row, column = axes
    device, dtype = out.device_index, out.dtype
    num_images, out_channels = out.shape[:2]
    num_outputs, num_inputs = out_channels // groups, input.shape[1] // groups
    num_pixels = num_images * row.out_size * column.out_size
    if num_pixels == 0 or out_channels == 0:
        return
    if bias is not None and bias.strides != (1,):
        bias = copy(bias, (1,))
    n, c, h, w = out.strides
    place = out.view(
        (num_images, out_channels, row.out_size, column.out_size), (n, c, h * row.out_step, w * column.out_step),
        out.offset + row.out_first * h + column.out_first * w,
    )  # fmt: skip
    k, c, r, s = weight.strides
    first_tap = weight.view(weight.shape, weight.strides, weight.offset + row.tap_first * r + column.tap_first * s)
    tap_strides = (r * row.tap_step, s * column.tap_step)
    geometry = (
        (row.out_size, column.out_size), input.shape[2:], (row.taps, column.taps), (row.step, column.step),
        (row.start, column.start), (row.spread, column.spread),
    )  # fmt: skip
    residual_strides = None if residual is None else residual.strides
    constants: dict[str, Any] = {"COMPUTE": COMPUTE[dtype], "RELU": activation == "relu"}
    constants["WIDE"] = _is_wide(out, input, *([] if residual is None else [residual]))
    arrays = (place, input, first_tap, bias, residual)
    if groups > 1 and weight.shape[1] == 1:
        tile = _depthwise_tile(num_pixels, out_channels)
        grid = (-(-num_pixels // tile.block_m), -(-out_channels // tile.block_n))
        launch(
            kernels._depthwise_kernel, grid, *arrays, num_pixels, out_channels,
            1 if transposed else num_outputs, num_inputs if transposed else 1, *geometry,
            place.strides, input.strides, (k, *tap_strides), residual_strides,
            **constants, BLOCK_M=tile.block_m, BLOCK_N=tile.block_n,
        )  # fmt: skip
        return
    flat = num_inputs < _FLAT_BELOW
    num_terms = num_inputs * row.taps * column.taps if flat else num_inputs
    choice = _TILES[dtype.itemsize]
    tile = tiles.ranked(choice, num_pixels, num_outputs, num_terms, groups, dtype, device)[0]
    channel_strides = (c, k) if transposed else (k, c)
    group_stride = weight.shape[0] // groups * k
    launch(
        kernels._conv_kernel, (groups * tile.num_tiles(num_pixels, num_outputs),), *arrays, num_pixels, num_outputs,
        num_inputs, *geometry, place.strides, input.strides, (*channel_strides, *tap_strides), group_stride,
        residual_strides, **constants, PRECISION=tiles.DOT_PRECISION[dtype], FLAT=flat, GROUP=_GROUP, **tile.constants,
    )  # fmt: skip


def _channels_inner(x: DeviceArray, groups: int) -> DeviceArray:
    """x itself, or where its channels lie apart and are many enough to matter, a copy with them side by side."""
    if x.strides[1] == 1 or x.shape[1] // groups < _FLAT_BELOW:
        return x
    return copy(x, channels_last_strides(x.shape))


def _packed(weight: DeviceArray) -> DeviceArray:
    """The weight with its input channels side by side: a copy unless it has no taps or is stored so."""
    if weight.strides[1] == 1 or weight.shape[1] == 1 or weight.shape[2:] == (1, 1):
        return weight
    return copy(weight, channels_last_strides(weight.shape))


def _depthwise_tile(num_pixels: int, num_channels: int) -> Tile:
    block_n = min(tiles.power_of_2(num_channels), 128)
    return Tile(min(tiles.power_of_2(num_pixels), _DEPTHWISE_BLOCK // block_n), block_n, 1, 4, 1)


def _num_splits(num_programs: int, num_pixels: int, pixels_per_block: int, num_bytes: int, device: int) -> int:
    """So many that the multiprocessors are busy twice over, each with enough to do, in bounded memory."""
    wanted = 2 * driver.get().properties(device).multiprocessor_count // max(num_programs, 1)
    return max(1, min(wanted, num_pixels // (4 * pixels_per_block), _SPLIT_LIMIT // max(num_bytes, 1)))


def _is_wide(*arrays: DeviceArray) -> bool:
    """Do offsets need 64 bits?"""
    return any(sum(size * stride for size, stride in zip(x.shape, x.strides, strict=True)) >= 2**31 for x in arrays)


def _require_float(op: str, dtype: DType) -> None:
    if not dtype.is_floating_point:
        raise NotImplementedError(f"{op} has no cuda implementation for {dtype.name}")
