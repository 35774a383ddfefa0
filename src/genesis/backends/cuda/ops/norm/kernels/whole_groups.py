"""Group norm in one pass over memory: a program holds a sample's whole group; group_norm.py has the larger ones."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.activation.kernels.activation import _silu_backward_kernel, _silu_kernel
from genesis.backends.cuda.ops.activation.kernels.fused import _activated
from genesis.backends.cuda.ops.norm.kernels.group_norm import _before_activation, _offsets
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _group(
    num_places, num_groups, place_step, channel_step, PER_GROUP: tl.constexpr, WIDE: tl.constexpr,
    BLOCK_PLACES: tl.constexpr, BLOCK_CHANNELS: tl.constexpr,
):  # fmt: skip
    """This program's sample, its channels, which of them it has, the offsets and which of those."""
    sample = tl.program_id(0) // num_groups
    if WIDE:
        sample = sample.to(tl.int64)
    members = tl.arange(0, BLOCK_CHANNELS)
    channels = tl.program_id(0) % num_groups * PER_GROUP + members
    if WIDE:
        channels = channels.to(tl.int64)
    places = tl.arange(0, BLOCK_PLACES)
    offsets = sample * num_groups * PER_GROUP * num_places
    offsets += _offsets(places, channels, place_step, channel_step, WIDE)
    channel_mask = members < PER_GROUP
    return sample, channels, channel_mask, offsets, (places < num_places)[:, None] & channel_mask[None, :]


@triton.jit
def _whole_group_kernel(
    y_ptr,
    mean_ptr,
    inverse_std_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    num_places,
    num_groups,
    place_step,
    channel_step,
    count,
    eps,
    FORWARD: tl.constexpr,
    NUMBER: tl.constexpr,
    PER_GROUP: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    PDL: tl.constexpr,
):
    _follow(PDL)
    _, channels, channel_mask, offsets, mask = _group(
        num_places, num_groups, place_step, channel_step, PER_GROUP, WIDE, BLOCK_PLACES, BLOCK_CHANNELS
    )
    x = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    mean = tl.sum(x) / count
    x = tl.where(mask, x - mean, 0.0)
    inverse_std = libdevice.rsqrt(tl.sum(libdevice.mul_rn(x, x)) / count + eps)
    tl.store(mean_ptr + tl.program_id(0), mean)
    tl.store(inverse_std_ptr + tl.program_id(0), inverse_std)
    y = x * inverse_std
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + channels, mask=channel_mask, other=0).to(COMPUTE)[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + channels, mask=channel_mask, other=0).to(COMPUTE)[None, :]
    tl.store(y_ptr + offsets, _activated(y, FORWARD, NUMBER).to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _whole_group_backward_kernel(
    grad_input_ptr,
    sums_ptr,
    grad_ptr,
    x_ptr,
    mean_ptr,
    inverse_std_ptr,
    weight_ptr,
    bias_ptr,
    num_places,
    num_groups,
    place_step,
    channel_step,
    count,
    BACKWARD: tl.constexpr,
    NUMBER: tl.constexpr,
    PER_GROUP: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_PLACES: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    PDL: tl.constexpr,
):
    """The input's gradient; and per channel, for those of weight and bias, Σ grad and Σ grad·(x − mean)."""
    _follow(PDL)
    sample, channels, channel_mask, offsets, mask = _group(
        num_places, num_groups, place_step, channel_step, PER_GROUP, WIDE, BLOCK_PLACES, BLOCK_CHANNELS
    )
    grad = tl.load(grad_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    x = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    inverse_std = tl.load(inverse_std_ptr + tl.program_id(0))
    centered = tl.where(mask, x - tl.load(mean_ptr + tl.program_id(0)), 0.0)
    weight = tl.full((BLOCK_CHANNELS,), 1, COMPUTE)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + channels, mask=channel_mask, other=0).to(COMPUTE)
    scale = weight * inverse_std
    grad = _before_activation(grad, centered, scale, bias_ptr, channels, channel_mask, BACKWARD, NUMBER)
    grad = tl.where(mask, grad, 0.0)
    sums = tl.sum(grad, 0)
    products = tl.sum(libdevice.mul_rn(grad, centered), 0)
    if sums_ptr is not None:
        at = sample * 2 * num_groups * PER_GROUP + channels
        tl.store(sums_ptr + at, sums, mask=channel_mask)
        tl.store(sums_ptr + at + num_groups * PER_GROUP, products, mask=channel_mask)
    if grad_input_ptr is not None:
        average = tl.sum(libdevice.mul_rn(sums, weight)) / count
        slope = tl.sum(libdevice.mul_rn(products, weight)) / count * inverse_std * inverse_std
        result = ((grad * weight[None, :] - average) - centered * slope) * inverse_std
        tl.store(grad_input_ptr + offsets, result.to(grad_input_ptr.dtype.element_ty), mask=mask)


def _specimens(dtype, wide, places, channels, num_warps):
    tile = {"COMPUTE": COMPUTE[dtype], "WIDE": False, "BLOCK_PLACES": places, "BLOCK_CHANNELS": channels}
    tile |= {"PER_GROUP": 40, "num_warps": num_warps}
    shape = (places, 32, 1280, 1, 40.0 * places)
    forward = {**tile, "FORWARD": _silu_kernel, "NUMBER": None}
    yield Specimen(_whole_group_kernel, (dtype, wide, wide, dtype, dtype, dtype, *shape, 1e-5), forward)
    backward = {**tile, "BACKWARD": _silu_backward_kernel, "NUMBER": None}
    arrays = (dtype, wide, dtype, dtype, wide, wide, dtype, dtype)
    yield Specimen(_whole_group_backward_kernel, (*arrays, *shape), backward)


SPECIMENS = [
    *_specimens(dtypes.bfloat16, dtypes.float32, 256, 64, 16),
    *_specimens(dtypes.float64, dtypes.float64, 64, 64, 8),
]
