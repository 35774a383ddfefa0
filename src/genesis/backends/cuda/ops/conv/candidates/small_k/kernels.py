"""Convolution to a few channels (a mask, a score) and its gradients: no matrix to speak of, so plain multiply-adds.

All taps are unrolled, so that their loads are on the way together. Pairs are (height, width); arrays are NHWC, weights
KRSC, both dense.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow, _follow_and_hold, _let_next_begin
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.conv.kernels.epilogue import _activated, _biased

_SIZES = ["num_pixels", "out_size", "size", "stride", "padding", "dilation", "pixels_per_split"]


@triton.jit
def _place(index, shape):
    """(image, row, column) of the index-th pixel of images with this (height, width)."""
    column = index % shape[1]
    rest = index // shape[1]
    return (rest // shape[0]).to(tl.int64), rest % shape[0], column


@triton.jit(do_not_specialize=_SIZES)
def _small_k_kernel(
    out_ptr,
    input_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    num_pixels,
    num_inputs,
    out_size,
    size,
    stride,
    padding,
    dilation,
    RELU: tl.constexpr,
    OUTPUTS: tl.constexpr,
    OUTPUT_BLOCK: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per BLOCK_M pixels, all outputs."""
    _follow(PDL)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    pixel_mask = pixels < num_pixels
    image, row, column = _place(pixels, out_size)
    outputs = tl.arange(0, OUTPUT_BLOCK)
    output_mask = outputs < OUTPUTS
    total = tl.zeros((BLOCK_M, OUTPUT_BLOCK, BLOCK_C), tl.float32)
    for first in range(0, num_inputs, BLOCK_C):
        channels = first + tl.arange(0, BLOCK_C)
        channel_mask = channels < num_inputs
        for tap in tl.static_range(TAPS_Y * TAPS_X):
            y = row * stride[0] - padding[0] + tap // TAPS_X * dilation[0]
            x = column * stride[1] - padding[1] + tap % TAPS_X * dilation[1]
            inside = pixel_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
            offsets = ((image * size[0] + y) * size[1] + x) * num_inputs
            mask = inside[:, None] & channel_mask[None, :]
            values = tl.load(input_ptr + offsets[:, None] + channels[None, :], mask=mask, other=0).to(tl.float32)
            offsets = (outputs * (TAPS_Y * TAPS_X) + tap) * num_inputs
            mask = output_mask[:, None] & channel_mask[None, :]
            weights = tl.load(weight_ptr + offsets[:, None] + channels[None, :], mask=mask, other=0).to(tl.float32)
            total += values[:, None, :] * weights[None, :, :]
    result = _biased(tl.sum(total, axis=2), outputs, output_mask, bias_ptr)
    places = pixels.to(tl.int64)[:, None] * OUTPUTS + outputs[None, :]
    mask = pixel_mask[:, None] & output_mask[None, :]
    residual = None
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + places, mask=mask, other=0)
    result = _activated(result, residual, RELU)
    tl.store(out_ptr + places, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _small_k_input_grad_kernel(
    out_ptr,
    grad_ptr,
    weight_ptr,
    bias_ptr,
    num_pixels,
    num_inputs,
    out_size,
    size,
    stride,
    padding,
    dilation,
    OUTPUTS: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per BLOCK_M of the input's pixels and BLOCK_C of its channels. out_size: of the gradient given."""
    _follow(PDL)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    pixel_mask = pixels < num_pixels
    image, row, column = _place(pixels, size)
    channels = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel_mask = channels < num_inputs
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for tap in tl.static_range(TAPS_Y * TAPS_X):
        y = row + padding[0] - tap // TAPS_X * dilation[0]
        x = column + padding[1] - tap % TAPS_X * dilation[1]
        met = pixel_mask & (y >= 0) & (x >= 0) & (y % stride[0] == 0) & (x % stride[1] == 0)
        y = y // stride[0]
        x = x // stride[1]
        met = met & (y < out_size[0]) & (x < out_size[1])
        offsets = ((image * out_size[0] + y) * out_size[1] + x) * OUTPUTS
        for output in tl.static_range(OUTPUTS):
            grads = tl.load(grad_ptr + offsets + output, mask=met, other=0).to(tl.float32)
            place = (output * (TAPS_Y * TAPS_X) + tap) * num_inputs
            weights = tl.load(weight_ptr + place + channels, mask=channel_mask, other=0).to(tl.float32)
            total += grads[:, None] * weights[None, :]
    result = _biased(total, channels, channel_mask, bias_ptr)
    places = pixels.to(tl.int64)[:, None] * num_inputs + channels[None, :]
    mask = pixel_mask[:, None] & channel_mask[None, :]
    tl.store(out_ptr + places, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _small_k_weight_grad_kernel(
    out_ptr,
    grad_ptr,
    input_ptr,
    num_pixels,
    num_inputs,
    out_size,
    size,
    stride,
    padding,
    dilation,
    pixels_per_split,
    OUTPUTS: tl.constexpr,
    TAPS_Y: tl.constexpr,
    TAPS_X: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per output and tap, per split of the pixels, per BLOCK_C channels. out: (splits, weight), float32."""
    _follow_and_hold(PDL)
    output = tl.program_id(0) // (TAPS_Y * TAPS_X)
    tap = tl.program_id(0) % (TAPS_Y * TAPS_X)
    split = tl.program_id(1)
    channels = tl.program_id(2) * BLOCK_C + tl.arange(0, BLOCK_C)
    channel_mask = channels < num_inputs
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    begin = split * pixels_per_split
    end = tl.minimum(begin + pixels_per_split, num_pixels)
    for first in range(begin, end, BLOCK_M):
        pixels = first + tl.arange(0, BLOCK_M)
        pixel_mask = pixels < end
        image, row, column = _place(pixels, out_size)
        grads = tl.load(grad_ptr + pixels.to(tl.int64) * OUTPUTS + output, mask=pixel_mask, other=0).to(tl.float32)
        y = row * stride[0] - padding[0] + tap // TAPS_X * dilation[0]
        x = column * stride[1] - padding[1] + tap % TAPS_X * dilation[1]
        inside = pixel_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
        offsets = ((image * size[0] + y) * size[1] + x) * num_inputs
        mask = inside[:, None] & channel_mask[None, :]
        values = tl.load(input_ptr + offsets[:, None] + channels[None, :], mask=mask, other=0).to(tl.float32)
        total += grads[:, None] * values
    _let_next_begin(PDL)
    place = (split.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * num_inputs
    tl.store(out_ptr + place + channels, tl.sum(total, axis=0), mask=channel_mask)


def _specimens(dtype):
    geometry = (1500, 20, (28, 28), (30, 30), (2, 2), (1, 1), (1, 1))
    taps = {"OUTPUTS": 3, "TAPS_Y": 3, "TAPS_X": 3, "BLOCK_M": 32, "BLOCK_C": 32}
    epilogue = {"OUTPUT_BLOCK": 4, "RELU": True}
    return [
        Specimen(_small_k_kernel, (dtype, dtype, dtype, dtype, dtype, *geometry), {**taps, **epilogue}),
        Specimen(_small_k_input_grad_kernel, (dtype, dtype, dtype, dtype, *geometry), taps),
        Specimen(_small_k_weight_grad_kernel, (dtypes.float32, dtype, dtype, *geometry, 512), taps),
    ]


SPECIMENS = [*_specimens(dtypes.float32), *_specimens(dtypes.bfloat16)]
