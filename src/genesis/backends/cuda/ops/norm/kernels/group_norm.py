"""Group norm in two passes over memory, in either order of it; norm.py has the formulas.

A sample is a matrix of places and channels, whose steps in memory are arguments: (C, 1) for channels last, (1, P) for
channels first. A program has a tile of both. What all places of a channel share (mean, weight, …) is a row of the tile.
The first pass leaves partial results per sample and split of its places, which are merged in a fixed order; the second
walks backwards, as the end of what the first has read is still in the cache. What is summed along lanes is a product by
mul_rn; see ops/reduction/.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.activation.kernels.activation import _silu_backward_kernel, _silu_kernel
from genesis.backends.cuda.ops.activation.kernels.fused import _activated, _through
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _tile(program, num_channels, num_splits, WIDE: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    """The sample, the split of its places, and the channels of a program."""
    num_blocks = tl.cdiv(num_channels, BLOCK_CHANNELS)
    channels = program % num_blocks * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    sample = program // num_blocks // num_splits
    split = program // num_blocks % num_splits
    if WIDE:
        sample = sample.to(tl.int64)
        channels = channels.to(tl.int64)
    return sample, split, channels


@triton.jit
def _offsets(places, channels, place_step, channel_step, WIDE: tl.constexpr):
    if WIDE:
        places = places.to(tl.int64)
    return places[:, None] * place_step + channels[None, :] * channel_step


@triton.jit
def _group_moments_kernel(
    mean_ptr,
    squares_ptr,
    x_ptr,
    num_places,
    num_channels,
    place_step,
    channel_step,
    num_splits,
    places_per_split,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Per sample, split, and WIDTH channels of one group: the mean and Σ (x − mean)².

    Of deviations from a channel's mean in the first tile: a mean far from 0 cancels nothing, nor does a first value.
    """
    _follow(PDL)
    sample, split, channels = _tile(tl.program_id(0), num_channels, num_splits, WIDE, BLOCK_CHANNELS)
    channel_mask = (channels < num_channels)[None, :]
    lanes = tl.arange(0, BLOCK_PLACES)
    first = split * places_per_split
    last = tl.minimum(first + places_per_split, num_places)
    x_ptr += sample * num_channels * num_places
    places = first + lanes
    offsets = _offsets(places, channels, place_step, channel_step, WIDE)
    values = tl.load(x_ptr + offsets, mask=(places < last)[:, None] & channel_mask, other=0).to(COMPUTE)
    share = 1.0 / (tl.minimum(last - first, BLOCK_PLACES) + tl.zeros((1,), COMPUTE))
    shift = tl.sum(libdevice.mul_rn(values, tl.broadcast_to(share[None, :], values.shape)), 0)
    sums = tl.zeros((BLOCK_PLACES, BLOCK_CHANNELS), COMPUTE)
    squares = tl.zeros((BLOCK_PLACES, BLOCK_CHANNELS), COMPUTE)
    for start in range(first, last, BLOCK_PLACES):
        places = start + lanes
        mask = (places < last)[:, None] & channel_mask
        offsets = _offsets(places, channels, place_step, channel_step, WIDE)
        values = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
        delta = tl.where(mask, values - shift[None, :], 0.0)
        sums += delta
        squares += delta * delta
    count = (last - first) + tl.zeros((BLOCK_CHANNELS,), COMPUTE)
    total = tl.sum(sums, 0)
    offset = total / count
    mean, spread = _merged(shift, offset, tl.sum(squares, 0) - total * offset, count, WIDTH, BLOCK_CHANNELS)
    block = tl.program_id(0) % tl.cdiv(num_channels, BLOCK_CHANNELS)
    parts = block * (BLOCK_CHANNELS // WIDTH) + tl.arange(0, BLOCK_CHANNELS // WIDTH)
    num_parts = num_channels // WIDTH
    at = (sample * num_splits + split) * num_parts + parts
    tl.store(mean_ptr + at, mean, mask=parts < num_parts)
    tl.store(squares_ptr + at, spread, mask=parts < num_parts)


@triton.jit
def _merged(shift, offset, squares, count, WIDTH: tl.constexpr, BLOCK_CHANNELS: tl.constexpr):
    """Mean and Σ (x − mean)² of each WIDTH channels, whose means are shift + offset, of count values each."""
    shift = tl.reshape(shift, (BLOCK_CHANNELS // WIDTH, WIDTH))
    offset = tl.reshape(offset, (BLOCK_CHANNELS // WIDTH, WIDTH))
    squares = tl.reshape(squares, (BLOCK_CHANNELS // WIDTH, WIDTH))
    count = tl.reshape(count, (BLOCK_CHANNELS // WIDTH, WIDTH))
    pivot = tl.max(shift, 1)
    mean = (shift - pivot[:, None]) + offset  # small numbers, whose differences lose nothing
    whole = tl.sum(mean, 1) / WIDTH
    deviation = mean - whole[:, None]
    return pivot + whole, tl.sum(squares + count * deviation * deviation, 1)


@triton.jit
def _group_statistics_kernel(
    mean_ptr,
    inverse_std_ptr,
    means_ptr,
    squares_ptr,
    num_rows,
    num_groups,
    num_places,
    num_splits,
    places_per_split,
    parts_per_group,
    eps,
    COMPUTE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Merge the parts of each row, a sample's group: those of all splits."""
    _follow(PDL)
    rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row_mask = rows < num_rows
    num_items = num_splits * parts_per_group
    starts = (rows // num_groups * num_splits * num_groups + rows % num_groups) * parts_per_group
    pivot = tl.load(means_ptr + starts, mask=row_mask, other=0)[:, None]
    whole = tl.zeros((BLOCK_ROWS,), COMPUTE)
    for first in range(0, num_items, BLOCK_ITEMS):
        items = first + tl.arange(0, BLOCK_ITEMS)
        splits = items // parts_per_group
        at = starts[:, None] + (splits * num_groups * parts_per_group + items % parts_per_group)[None, :]
        mask = row_mask[:, None] & (items < num_items)[None, :]
        count = tl.minimum(places_per_split, num_places - splits * places_per_split).to(COMPUTE) * WIDTH
        mean = tl.load(means_ptr + at, mask=mask, other=0) - pivot
        whole += tl.sum(tl.where(mask, libdevice.mul_rn(tl.broadcast_to(count[None, :], mean.shape), mean), 0.0), 1)
    total = (tl.zeros((BLOCK_ROWS,), COMPUTE) + num_places) * (parts_per_group * WIDTH)
    whole = whole / total
    squares = tl.zeros((BLOCK_ROWS,), COMPUTE)
    for first in range(0, num_items, BLOCK_ITEMS):
        items = first + tl.arange(0, BLOCK_ITEMS)
        splits = items // parts_per_group
        at = starts[:, None] + (splits * num_groups * parts_per_group + items % parts_per_group)[None, :]
        mask = row_mask[:, None] & (items < num_items)[None, :]
        count = tl.minimum(places_per_split, num_places - splits * places_per_split).to(COMPUTE) * WIDTH
        deviation = tl.load(means_ptr + at, mask=mask, other=0) - pivot - whole[:, None]
        spread = tl.load(squares_ptr + at, mask=mask, other=0) + count[None, :] * deviation * deviation
        squares += tl.sum(tl.where(mask, spread, 0.0), 1)
    tl.store(mean_ptr + rows, tl.reshape(pivot, (BLOCK_ROWS,)) + whole, mask=row_mask)
    tl.store(inverse_std_ptr + rows, libdevice.rsqrt(squares / total + eps), mask=row_mask)


@triton.jit
def _group_apply_kernel(
    y_ptr,
    x_ptr,
    mean_ptr,
    inverse_std_ptr,
    weight_ptr,
    bias_ptr,
    num_places,
    num_channels,
    place_step,
    channel_step,
    num_blocks,
    per_group,
    FORWARD: tl.constexpr,
    NUMBER: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    PDL: tl.constexpr,
):
    _follow(PDL)
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    sample, block, channels = _tile(program, num_channels, num_blocks, WIDE, BLOCK_CHANNELS)
    channel_mask = channels < num_channels
    places = block * BLOCK_PLACES + tl.arange(0, BLOCK_PLACES)
    mask = (places < num_places)[:, None] & channel_mask[None, :]
    offsets = sample * num_channels * num_places + _offsets(places, channels, place_step, channel_step, WIDE)
    x = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    at = sample * (num_channels // per_group) + channels // per_group
    mean = tl.load(mean_ptr + at, mask=channel_mask, other=0)
    scale = tl.load(inverse_std_ptr + at, mask=channel_mask, other=0)
    if weight_ptr is not None:
        scale *= tl.load(weight_ptr + channels, mask=channel_mask, other=0).to(COMPUTE)
    y = (x - mean[None, :]) * scale[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + channels, mask=channel_mask, other=0).to(COMPUTE)[None, :]
    y = _activated(y, FORWARD, NUMBER)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _before_activation(
    grad, centered, scale, bias_ptr, channels, channel_mask, BACKWARD: tl.constexpr, NUMBER: tl.constexpr
):
    """The gradient of what is activated, which is computed again: centered·scale + bias, scale by channel."""
    if BACKWARD is not None:
        value = centered * scale[None, :]
        if bias_ptr is not None:
            value += tl.load(bias_ptr + channels, mask=channel_mask, other=0).to(scale.dtype)[None, :]
        grad = _through(grad, value, BACKWARD, NUMBER)
    return grad


@triton.jit
def _group_sums_kernel(
    sums_ptr,
    grad_ptr,
    x_ptr,
    mean_ptr,
    inverse_std_ptr,
    weight_ptr,
    bias_ptr,
    num_places,
    num_channels,
    place_step,
    channel_step,
    num_splits,
    places_per_split,
    per_group,
    BACKWARD: tl.constexpr,
    NUMBER: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Per sample and split: Σ grad of all channels, then Σ grad·(x − mean) of all."""
    _follow(PDL)
    sample, split, channels = _tile(tl.program_id(0), num_channels, num_splits, WIDE, BLOCK_CHANNELS)
    channel_mask = channels < num_channels
    at = sample * (num_channels // per_group) + channels // per_group
    mean = tl.load(mean_ptr + at, mask=channel_mask, other=0)[None, :]
    scale = tl.load(inverse_std_ptr + at, mask=channel_mask, other=0)
    if weight_ptr is not None:
        scale *= tl.load(weight_ptr + channels, mask=channel_mask, other=0).to(COMPUTE)
    sums = tl.zeros((BLOCK_PLACES, BLOCK_CHANNELS), COMPUTE)
    products = tl.zeros((BLOCK_PLACES, BLOCK_CHANNELS), COMPUTE)
    first = split * places_per_split
    last = tl.minimum(first + places_per_split, num_places)
    base = sample * num_channels * num_places
    for start in range(first, last, BLOCK_PLACES):
        places = start + tl.arange(0, BLOCK_PLACES)
        mask = (places < last)[:, None] & channel_mask[None, :]
        offsets = base + _offsets(places, channels, place_step, channel_step, WIDE)
        grad = tl.load(grad_ptr + offsets, mask=mask, other=0).to(COMPUTE)
        centered = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE) - mean
        grad = _before_activation(grad, centered, scale, bias_ptr, channels, channel_mask, BACKWARD, NUMBER)
        sums += tl.where(mask, grad, 0.0)
        products += tl.where(mask, grad * centered, 0.0)
    stored = (sample * num_splits + split) * 2 * num_channels + channels
    tl.store(sums_ptr + stored, tl.sum(sums, 0), mask=channel_mask)
    tl.store(sums_ptr + stored + num_channels, tl.sum(products, 0), mask=channel_mask)


@triton.jit
def _group_gradients_kernel(
    average_ptr, slope_ptr, grad_weight_ptr, grad_bias_ptr, sums_ptr, inverse_std_ptr, weight_ptr,
    num_samples, num_groups, per_group, num_programs, scale,
    COMPUTE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_MEMBERS: tl.constexpr, BLOCK_SAMPLES: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """By the first programs, the averages over a sample's groups; by the others, gradients of weight and bias."""
    _follow(PDL)
    num_channels = num_groups * per_group
    if tl.program_id(0) < num_programs:
        if average_ptr is not None:  # else there are no such programs
            rows = tl.program_id(0) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
            row_mask = rows < num_samples * num_groups
            group = rows % num_groups * per_group
            average = tl.zeros((BLOCK_ROWS, BLOCK_MEMBERS), COMPUTE)
            slope = tl.zeros((BLOCK_ROWS, BLOCK_MEMBERS), COMPUTE)
            for first in range(0, per_group, BLOCK_MEMBERS):
                members = first + tl.arange(0, BLOCK_MEMBERS)
                mask = row_mask[:, None] & (members < per_group)[None, :]
                channels = group[:, None] + members[None, :]
                at = (rows // num_groups * 2 * num_channels)[:, None] + channels
                sums = tl.load(sums_ptr + at, mask=mask, other=0)
                products = tl.load(sums_ptr + at + num_channels, mask=mask, other=0)
                if weight_ptr is not None:
                    weight = tl.load(weight_ptr + channels, mask=mask, other=0).to(COMPUTE)
                    sums = libdevice.mul_rn(sums, weight)
                    products = libdevice.mul_rn(products, weight)
                average += sums
                slope += products
            tl.store(average_ptr + rows, tl.sum(average, 1) * scale, mask=row_mask)
            tl.store(slope_ptr + rows, tl.sum(slope, 1) * scale, mask=row_mask)
    else:
        channels = (tl.program_id(0) - num_programs) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
        channel_mask = channels < num_channels
        grad_weight = tl.zeros((BLOCK_SAMPLES, BLOCK_CHANNELS), COMPUTE)
        grad_bias = tl.zeros((BLOCK_SAMPLES, BLOCK_CHANNELS), COMPUTE)
        for first in range(0, num_samples, BLOCK_SAMPLES):
            samples = first + tl.arange(0, BLOCK_SAMPLES)
            mask = (samples < num_samples)[:, None] & channel_mask[None, :]
            at = samples[:, None] * 2 * num_channels + channels[None, :]
            grad_bias += tl.load(sums_ptr + at, mask=mask, other=0)
            products = tl.load(sums_ptr + at + num_channels, mask=mask, other=0)
            known = samples[:, None] * num_groups + (channels // per_group)[None, :]
            grad_weight += libdevice.mul_rn(products, tl.load(inverse_std_ptr + known, mask=mask, other=0))
        if grad_weight_ptr is not None:
            tl.store(grad_weight_ptr + channels, tl.sum(grad_weight, 0), mask=channel_mask)
        if grad_bias_ptr is not None:
            tl.store(grad_bias_ptr + channels, tl.sum(grad_bias, 0), mask=channel_mask)


@triton.jit
def _group_apply_backward_kernel(
    grad_input_ptr,
    grad_ptr,
    x_ptr,
    mean_ptr,
    inverse_std_ptr,
    weight_ptr,
    bias_ptr,
    average_ptr,
    slope_ptr,
    num_places,
    num_channels,
    place_step,
    channel_step,
    num_blocks,
    per_group,
    BACKWARD: tl.constexpr,
    NUMBER: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    PDL: tl.constexpr,
):
    """r·(grad·w − average − (x − mean)·r²·slope): averages of grad·w and grad·w·(x − mean)."""
    _follow(PDL)
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    sample, block, channels = _tile(program, num_channels, num_blocks, WIDE, BLOCK_CHANNELS)
    channel_mask = channels < num_channels
    places = block * BLOCK_PLACES + tl.arange(0, BLOCK_PLACES)
    mask = (places < num_places)[:, None] & channel_mask[None, :]
    offsets = sample * num_channels * num_places + _offsets(places, channels, place_step, channel_step, WIDE)
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    x = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    at = sample * (num_channels // per_group) + channels // per_group
    inverse_std = tl.load(inverse_std_ptr + at, mask=channel_mask, other=0)
    scale = inverse_std
    if weight_ptr is not None:
        scale *= tl.load(weight_ptr + channels, mask=channel_mask, other=0).to(COMPUTE)
    centered = x - tl.load(mean_ptr + at, mask=channel_mask, other=0)[None, :]
    grad = _before_activation(grad, centered, scale, bias_ptr, channels, channel_mask, BACKWARD, NUMBER)
    average = tl.load(average_ptr + at, mask=channel_mask, other=0) * inverse_std
    slope = tl.load(slope_ptr + at, mask=channel_mask, other=0) * inverse_std * inverse_std * inverse_std
    result = (grad * scale[None, :] - average[None, :]) - centered * slope[None, :]
    tl.store(grad_input_ptr + offsets, result.to(grad_input_ptr.dtype.element_ty), mask=mask)


def _specimens(dtype, wide, steps, width, places, channels):
    tile = {"COMPUTE": COMPUTE[dtype], "WIDE": False, "BLOCK_PLACES": places, "BLOCK_CHANNELS": channels}
    shape = (4096, 320, *steps)
    yield Specimen(_group_moments_kernel, (wide, wide, dtype, *shape, 50, 96), {**tile, "WIDTH": width})
    merged = {"COMPUTE": COMPUTE[wide], "WIDTH": width, "BLOCK_ROWS": 2, "BLOCK_ITEMS": 512}
    numbers = (64, 32, 4096, 50, 96, 10 // width, 1e-5)
    yield Specimen(_group_statistics_kernel, (wide, wide, wide, wide, *numbers), merged)
    forward = {**tile, "FORWARD": _silu_kernel, "NUMBER": None}
    yield Specimen(_group_apply_kernel, (dtype, dtype, wide, wide, dtype, dtype, *shape, 64, 10), forward)
    backward = {**tile, "BACKWARD": _silu_backward_kernel, "NUMBER": None}
    arrays = (dtype, dtype, wide, wide, dtype, dtype)
    yield Specimen(_group_sums_kernel, (wide, *arrays, *shape, 50, 96, 10), {**backward, "num_warps": 8, "maxnreg": 80})
    tiles = {"BLOCK_ROWS": 64, "BLOCK_MEMBERS": 16, "BLOCK_SAMPLES": 16, "BLOCK_CHANNELS": 64}
    totals = (wide, wide, dtype, dtype, wide, wide, dtype, 2, 32, 10, 1, 1e-4)
    yield Specimen(_group_gradients_kernel, totals, {"COMPUTE": COMPUTE[wide], **tiles})
    totals = (None, None, dtype, dtype, wide, wide, None, 2, 32, 10, 0, 1e-4)  # of an input without a gradient
    yield Specimen(_group_gradients_kernel, totals, {"COMPUTE": COMPUTE[wide], **tiles})
    yield Specimen(_group_apply_backward_kernel, (dtype, *arrays, wide, wide, *shape, 64, 10), backward)


SPECIMENS = [
    *_specimens(dtypes.bfloat16, dtypes.float32, (320, 1), 2, 32, 64),
    *_specimens(dtypes.float32, dtypes.float32, (1, 4096), 2, 1024, 2),
    *_specimens(dtypes.float64, dtypes.float64, (320, 1), 2, 32, 32),
]
