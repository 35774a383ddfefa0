"""Convolution in groups of few channels: the forward, and the input's gradient for one residue of the positions.

A tensor core multiplies 16 terms at a time, more than a group has. So a tile spans PACK groups, whose channels lie side
by side in NHWC, and the weight is spread to a block-diagonal matrix while it is loaded: IN input by OUT output channels
per group on the diagonal, zeros elsewhere. Along each axis the result at i takes, at tap t, the input at
i · step + start + t · spread, and the weight's tap tap_first + t · tap_step: ../../implicit_gemm/ says why.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _begin, _end
from genesis.backends.cuda.launch.tiles import DOT_PRECISION
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.kernels.gather import _beyond_parts, _pixel
from genesis.backends.cuda.ops.conv.kernels.epilogue import _activated, _biased

# Sizes that change from layer to layer, and of which no faster code could be made.
SIZES = [
    "is_beside", "num_pixels", "out_size", "whole_size", "first_place", "place_step", "size", "taps", "weight_taps",
    "tap_first", "tap_step", "step", "start", "spread",
]  # fmt: skip


@triton.jit
def _inside(image, top, left, tap, taps, spread, size, pixel_mask):
    """The input's pixels at a tap, counted through all images, and which of them there are."""
    y = top + tap // taps[1] * spread[0]
    x = left + tap % taps[1] * spread[1]
    inside = pixel_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
    return (image * size[0] + y) * size[1] + x, inside


@triton.jit
def _weight_tap(tap, taps, weight_taps, tap_first, tap_step):
    row = tap_first[0] + tap // taps[1] * tap_step[0]
    return row * weight_taps[1] + tap_first[1] + tap % taps[1] * tap_step[1]


@triton.jit
def _multiply_adds(
    input_ptr, weight_ptr, pixels, outs, num_inputs, size, taps, weight_taps, tap_first, tap_step, spread,
    IN: tl.constexpr, OUT: tl.constexpr, TRANSPOSED: tl.constexpr, SHORT: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The tile by multiply-adds of each group's own terms. pixels: (image, top, left, mask); outs: (channels, mask).

    SHORT: a chain of sums per tap, which rounds less, and takes more registers.
    """
    image, top, left, pixel_mask = pixels
    channels, out_mask = outs
    num_weight_taps = weight_taps[0] * weight_taps[1]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tap in range(taps[0] * taps[1]):
        places, inside = _inside(image, top, left, tap, taps, spread, size, pixel_mask)
        weight_tap = _weight_tap(tap, taps, weight_taps, tap_first, tap_step)
        if SHORT:
            before = total
            total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for i in range(IN):
            offsets = places[:, None] * num_inputs + (channels // OUT * IN + i)[None, :]
            values = tl.load(input_ptr + offsets, mask=inside[:, None] & out_mask[None, :], other=0).to(tl.float32)
            if TRANSPOSED:
                offsets = ((channels // OUT * IN + i) * num_weight_taps + weight_tap) * OUT + channels % OUT
            else:
                offsets = (channels * num_weight_taps + weight_tap) * IN + i
            weights = tl.load(weight_ptr + offsets, mask=out_mask, other=0).to(tl.float32)
            total += values * weights[None, :]
        if SHORT:
            total += before
    return total


@triton.jit(do_not_specialize=SIZES)
def _grouped_conv_kernel(
    out_ptr,
    input_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    statistics_ptr,
    is_beside,
    num_pixels,
    num_groups,
    out_size,
    whole_size,
    first_place,
    place_step,
    size,
    taps,
    weight_taps,
    tap_first,
    tap_step,
    step,
    start,
    spread,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    PACK: tl.constexpr,
    WHOLE: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    RELU: tl.constexpr,
    STATISTICS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per tile of results × the channels of PACK groups.

    Pairs are (height, width). Results lie at first_place + place_step · i of whole_size; weight: (num_groups · OUT,
    *weight_taps, IN), or (num_groups · IN, *weight_taps, OUT) if TRANSPOSED. WHOLE: PACK divides num_groups.
    STATISTICS: (3, pixel tile, channel) as engine.candidate.Parts says. PRECISION: "multiply-adds", or one of tl.dot.
    """
    _begin(is_beside, PDL)
    group_tiles = tl.cdiv(num_groups, PACK)
    program = tl.program_id(0)
    pixel_tile = program // group_tiles
    first_group = program % group_tiles * PACK
    num_inputs = num_groups * IN
    num_outputs = num_groups * OUT
    pixels = pixel_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    pixel_mask = pixels < num_pixels
    ins = tl.arange(0, BLOCK_K)
    outs = tl.arange(0, BLOCK_N)
    if WHOLE:
        in_mask = ins < PACK * IN
        out_mask = outs < PACK * OUT
    else:
        groups_left = tl.minimum(num_groups - first_group, PACK)
        in_mask = ins < groups_left * IN
        out_mask = outs < groups_left * OUT
    image, row, column = _pixel(pixels, out_size, WIDE)
    top = row * step[0] + start[0]
    left = column * step[1] + start[1]
    channels = first_group * OUT + outs

    if PRECISION == "multiply-adds":
        total = _multiply_adds(
            input_ptr, weight_ptr, (image, top, left, pixel_mask), (channels, out_mask), num_inputs, size, taps,
            weight_taps, tap_first, tap_step, spread, IN, OUT, TRANSPOSED, True, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    else:
        num_weight_taps = weight_taps[0] * weight_taps[1]
        same_group = (ins // IN)[:, None] == (outs // OUT)[None, :]
        weight_mask = same_group & in_mask[:, None] & out_mask[None, :]
        if TRANSPOSED:
            weight_rows = (first_group * IN + ins)[:, None] * (num_weight_taps * OUT) + (outs % OUT)[None, :]
        else:
            weight_rows = channels[None, :] * (num_weight_taps * IN) + (ins % IN)[:, None]
        weight_ptrs = weight_ptr + weight_rows
        input_ptrs = input_ptr + first_group * IN + ins
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        peaks = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
        weight_peaks = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
        for tap in range(taps[0] * taps[1]):
            places, inside = _inside(image, top, left, tap, taps, spread, size, pixel_mask)
            mask = inside[:, None] & in_mask[None, :]
            values = tl.load(input_ptrs[None, :] + places[:, None] * num_inputs, mask=mask, other=0)
            weight_tap = _weight_tap(tap, taps, weight_taps, tap_first, tap_step)
            weights = tl.load(weight_ptrs + weight_tap * (OUT if TRANSPOSED else IN), mask=weight_mask, other=0)
            total = tl.dot(values, weights, total, input_precision=PRECISION, out_dtype=tl.float32)
            if PRECISION == "bf16x6":
                peaks = tl.maximum(peaks, tl.abs(values))
                weight_peaks = tl.maximum(weight_peaks, tl.abs(weights))
        if PACK > 1 or PRECISION == "bf16x6":
            # Zeros of the weight's matrix times another group's infinity or NaN.
            again = tl.max((total != total).to(tl.int32)) > 0
            if PRECISION == "bf16x6":
                again = again | _beyond_parts(peaks, weight_peaks)
            if again:
                total = _multiply_adds(
                    input_ptr, weight_ptr, (image, top, left, pixel_mask), (channels, out_mask), num_inputs, size, taps,
                    weight_taps, tap_first, tap_step, spread, IN, OUT, TRANSPOSED, False, BLOCK_M, BLOCK_N,
                )  # fmt: skip

    place = image * whole_size[0] + first_place[0] + row * place_step[0]
    place = place * whole_size[1] + first_place[1] + column * place_step[1]
    offsets = place[:, None] * num_outputs + channels[None, :]
    mask = pixel_mask[:, None] & out_mask[None, :]
    if BIAS:
        total = _biased(total, channels, out_mask, bias_ptr)
    residual = None
    if RESIDUAL:
        residual = tl.load(residual_ptr + offsets, mask=mask, other=0)
    stored = _activated(total, residual, RELU).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + offsets, stored, mask=mask)
    if STATISTICS:
        values = stored.to(tl.float32)
        count = tl.minimum(num_pixels - pixel_tile * BLOCK_M, BLOCK_M).to(tl.float32)
        mean = tl.sum(tl.where(mask, values, 0), axis=0) / count
        distance = tl.where(mask, values - mean[None, :], 0)
        parts = statistics_ptr + pixel_tile.to(tl.int64) * num_outputs + channels
        plane = tl.cdiv(num_pixels, BLOCK_M).to(tl.int64) * num_outputs
        tl.store(parts, mean, mask=out_mask)
        tl.store(parts + plane, tl.sum(distance, axis=0) / count, mask=out_mask)
        tl.store(parts + 2 * plane, tl.sum(distance * distance, axis=0), mask=out_mask)
    _end(is_beside, PDL)


def _specimen(dtype, precision, channels=(8, 8), pack=4, **options):
    ins, outs = channels
    constants = {
        "IN": ins, "OUT": outs, "PACK": pack, "WHOLE": True, "TRANSPOSED": False, "BIAS": False, "RESIDUAL": False,
        "RELU": False, "STATISTICS": False, "PRECISION": precision, "WIDE": False, "BLOCK_M": 64, "BLOCK_N": 32,
        "BLOCK_K": 32, "num_warps": 4, "num_stages": 3,
    }  # fmt: skip
    square, pair = (28, 28), (1, 1)
    sizes = (0, 3000, 32, square, square, (0, 0), pair, square, (3, 3), (3, 3), (0, 0), pair, pair, (-1, -1), pair)
    return Specimen(_grouped_conv_kernel, (*(dtype,) * 5, dtypes.float32, *sizes), {**constants, **options})


_f32, _bf16, _f16 = dtypes.float32, dtypes.bfloat16, dtypes.float16
SPECIMENS = [
    _specimen(_bf16, "ieee", BIAS=True, RESIDUAL=True, RELU=True, STATISTICS=True),
    _specimen(_f16, "ieee", (24, 12), 1, TRANSPOSED=True, WHOLE=False, WIDE=True, BLOCK_N=16),
    _specimen(_f32, DOT_PRECISION[_f32], (3, 3), 5, TRANSPOSED=True, WHOLE=False, BLOCK_N=16, BLOCK_K=16),
    _specimen(_f32, "multiply-adds", (4, 4), 8, BIAS=True),
]
