"""Convolution as an implicit matrix product, for any strides: results × channels, summed over taps and input channels.

One kernel serves the forward and the input's gradient. Along each axis the result at i takes, at tap t, the input at

    i · step + start + t · spread

which is stride, −padding, dilation in the forward; the gradient of the input is such a sum for each residue of its
position modulo the stride, with the taps that meet it (../candidate.py works them out). Taps outside of the input
are zero.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _begin, _end
from genesis.backends.cuda.launch.tiles import DOT_PRECISION
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.matmul.kernels import _grouped
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE

# Sizes that change from layer to layer, and of which no faster code could be made.
SIZES = [
    "is_beside", "num_pixels", "out_size", "size", "taps", "step", "start", "spread", "num_splits",
]  # fmt: skip


@triton.jit
def _pixel(index, out_size, WIDE: tl.constexpr):
    """(image, row, column) of the index-th result."""
    column = index % out_size[1]
    rest = index // out_size[1]
    image = rest // out_size[0]
    if WIDE:
        image = image.to(tl.int64)
    return image, rest % out_size[0], column


@triton.jit
def _multiple(number, VECTOR: tl.constexpr):
    """A number that VECTOR divides: the compiler, which by itself knows only whether 16 does, then loads wide."""
    return number if VECTOR == 1 else number // VECTOR * VECTOR


@triton.jit
def _place(image, y, x, strides, VECTOR: tl.constexpr):
    """Return where the channels of a pixel begin; VECTOR divides the strides."""
    place = image * _multiple(strides[0], VECTOR)
    return place + y * _multiple(strides[2], VECTOR) + x * _multiple(strides[3], VECTOR)


@triton.jit
def _beyond_parts(left_peaks, right_peaks):
    """Are there factors or products that the bfloat16 parts of float32 can't hold?

    The parts of a number below 2⁻¹¹⁰ are denormal, which tensor cores take for zero; beside a larger number of its tile
    it does not count. The largest numbers, rounded to bfloat16, are infinite.
    """
    left, right = tl.max(left_peaks), tl.max(right_peaks)
    small = (left < 2.0**-80) | (right < 2.0**-80) | (left * right < 2.0**-100)
    return (left > 0) & (right > 0) & (small | (left > 3.38e38) | (right > 3.38e38))


@triton.jit
def _finish(result, channels, channel_mask, bias_ptr, residual_ptr, residual_offsets, mask, RELU: tl.constexpr):
    """The epilogue: act(result + bias + residual)."""
    if bias_ptr is not None:
        result += tl.load(bias_ptr + channels, mask=channel_mask, other=0).to(result.dtype)[None, :]
    if residual_ptr is not None:
        result += tl.load(residual_ptr + residual_offsets, mask=mask, other=0).to(result.dtype)
    if RELU:
        result = tl.where(result < 0, 0, result)  # NaN stays NaN
    return result


@triton.jit(do_not_specialize=SIZES)
def _conv_kernel(
    out_ptr,
    input_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    is_beside,
    num_pixels,
    num_outputs,
    num_inputs,
    out_size,
    size,
    taps,
    step,
    start,
    spread,
    out_strides,
    input_strides,
    weight_strides,
    weight_group_stride,
    residual_strides,
    FLAT: tl.constexpr,
    TRANSPOSED: tl.constexpr,
    RELU: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_VECTOR: tl.constexpr,
    OUTPUT_VECTOR: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per tile of results × channels of one group.

    Pairs are (height, width), strides (image, channel, height, width), weight_strides (output, input, height, width);
    num_outputs and num_inputs count the channels of a group. FLAT: taps and few channels are summed as one dimension.
    INPUT_VECTOR divides num_inputs and the input's strides, OUTPUT_VECTOR num_outputs and the result's. TRANSPOSED:
    the weight's outputs lie side by side, not its inputs; it need not be told where both are 1.
    """
    _begin(is_beside, PDL)
    num_inputs, num_outputs = _multiple(num_inputs, INPUT_VECTOR), _multiple(num_outputs, OUTPUT_VECTOR)
    WEIGHT_VECTOR: tl.constexpr = OUTPUT_VECTOR if TRANSPOSED else INPUT_VECTOR
    weight_step = weight_strides[0] if TRANSPOSED else _multiple(weight_strides[0], WEIGHT_VECTOR)
    weight_input_step = _multiple(weight_strides[1], WEIGHT_VECTOR) if TRANSPOSED else weight_strides[1]
    weight_row = _multiple(weight_strides[2], WEIGHT_VECTOR)
    weight_column = _multiple(weight_strides[3], WEIGHT_VECTOR)
    input_row, input_column = _multiple(input_strides[2], INPUT_VECTOR), _multiple(input_strides[3], INPUT_VECTOR)
    pixel_tiles = tl.cdiv(num_pixels, BLOCK_M)
    channel_tiles = tl.cdiv(num_outputs, BLOCK_N)
    program = tl.program_id(0)
    group = program // (pixel_tiles * channel_tiles)
    pixel_tile, channel_tile = _grouped(program % (pixel_tiles * channel_tiles), pixel_tiles, channel_tiles, GROUP)
    pixels = pixel_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = channel_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    pixel_mask = pixels < num_pixels
    output_mask = outputs < num_outputs
    image, row, column = _pixel(pixels, out_size, WIDE)
    top = row * step[0] + start[0]
    left = column * step[1] + start[1]
    image_ptrs = input_ptr + image * _multiple(input_strides[0], INPUT_VECTOR) + group * num_inputs * input_strides[1]
    output_ptrs = weight_ptr + outputs * weight_step + group * _multiple(weight_group_stride, WEIGHT_VECTOR)

    accumulator = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    peaks = tl.zeros((BLOCK_M, BLOCK_K), COMPUTE)
    weight_peaks = tl.zeros((BLOCK_K, BLOCK_N), COMPUTE)
    terms = tl.arange(0, BLOCK_K)
    if FLAT:
        num_terms = taps[0] * taps[1] * num_inputs
        for first in range(0, num_terms, BLOCK_K):
            term = first + terms
            inputs = term % num_inputs
            tap = term // num_inputs
            tap_row = tap // taps[1]
            tap_column = tap % taps[1]
            y = top[:, None] + (tap_row * spread[0])[None, :]
            x = left[:, None] + (tap_column * spread[1])[None, :]
            inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1]) & (term < num_terms)[None, :]
            offsets = y * input_row + x * input_column + (inputs * input_strides[1])[None, :]
            values = tl.load(image_ptrs[:, None] + offsets, mask=pixel_mask[:, None] & inside, other=0)
            offsets = inputs * weight_input_step + tap_row * weight_row + tap_column * weight_column
            mask = (term < num_terms)[:, None] & output_mask[None, :]
            weights = tl.load(output_ptrs[None, :] + offsets[:, None], mask=mask, other=0)
            accumulator = tl.dot(values, weights, accumulator, input_precision=PRECISION, out_dtype=COMPUTE)
            if PRECISION == "bf16x6":
                peaks = tl.maximum(peaks, tl.abs(values))
                weight_peaks = tl.maximum(weight_peaks, tl.abs(weights))
    else:
        chunks = tl.cdiv(num_inputs, BLOCK_K)
        for i in range(taps[0] * taps[1] * chunks):
            tap = i // chunks
            tap_row = tap // taps[1]
            tap_column = tap % taps[1]
            inputs = (i % chunks) * BLOCK_K + terms
            y = top + tap_row * spread[0]
            x = left + tap_column * spread[1]
            inside = pixel_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
            ptrs = image_ptrs + y * input_row + x * input_column
            mask = inside[:, None] & (inputs < num_inputs)[None, :]
            values = tl.load(ptrs[:, None] + (inputs * input_strides[1])[None, :], mask=mask, other=0)
            offsets = inputs * weight_input_step + tap_row * weight_row + tap_column * weight_column
            mask = (inputs < num_inputs)[:, None] & output_mask[None, :]
            weights = tl.load(output_ptrs[None, :] + offsets[:, None], mask=mask, other=0)
            accumulator = tl.dot(values, weights, accumulator, input_precision=PRECISION, out_dtype=COMPUTE)
            if PRECISION == "bf16x6":
                peaks = tl.maximum(peaks, tl.abs(values))
                weight_peaks = tl.maximum(weight_peaks, tl.abs(weights))
    if PRECISION == "bf16x6":  # noqa: SIM102  (the first is decided when it is compiled)
        if _beyond_parts(peaks, weight_peaks):  # multiply-adds, one term after the other
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
            for i in range(taps[0] * taps[1] * num_inputs):
                tap = i // num_inputs
                y = top + tap // taps[1] * spread[0]
                x = left + tap % taps[1] * spread[1]
                inside = pixel_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
                offsets = y * input_row + x * input_column + i % num_inputs * input_strides[1]
                values = tl.load(image_ptrs + offsets, mask=inside, other=0)
                offset = i % num_inputs * weight_input_step
                offset += tap // taps[1] * weight_row + tap % taps[1] * weight_column
                weights = tl.load(output_ptrs + offset, mask=output_mask, other=0)
                accumulator += values[:, None] * weights[None, :]

    channels = group * num_outputs + outputs
    mask = pixel_mask[:, None] & output_mask[None, :]
    residual_offsets = None
    if residual_ptr is not None:
        place = _place(image, row, column, residual_strides, OUTPUT_VECTOR)
        residual_offsets = place[:, None] + (channels * residual_strides[1])[None, :]
    result = _finish(accumulator, channels, output_mask, bias_ptr, residual_ptr, residual_offsets, mask, RELU)
    place = _place(image, row, column, out_strides, OUTPUT_VECTOR)
    offsets = place[:, None] + (channels * out_strides[1])[None, :]
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=mask)
    _end(is_beside, PDL)


@triton.jit(do_not_specialize=SIZES)
def _depthwise_kernel(
    out_ptr,
    input_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    is_beside,
    num_pixels,
    num_channels,
    outputs_per_input,
    inputs_per_output,
    out_size,
    size,
    taps,
    step,
    start,
    spread,
    out_strides,
    input_strides,
    weight_strides,
    residual_strides,
    RELU: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """Groups with one channel on the weight's input side: a channel takes one input, or a few (input gradient).

    weight_strides: (channel, height, width). Of outputs_per_input and inputs_per_output one is 1.
    """
    _begin(is_beside, PDL)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    pixel_mask = pixels < num_pixels
    channel_mask = channels < num_channels
    image, row, column = _pixel(pixels, out_size, WIDE)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    for i in range(taps[0] * taps[1] * inputs_per_output):
        tap = i // inputs_per_output
        tap_row = tap // taps[1]
        tap_column = tap % taps[1]
        inputs = channels // outputs_per_input * inputs_per_output + i % inputs_per_output
        weight_channels = channels * inputs_per_output + i % inputs_per_output
        y = row * step[0] + start[0] + tap_row * spread[0]
        x = column * step[1] + start[1] + tap_column * spread[1]
        inside = pixel_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
        place = image * input_strides[0] + y * input_strides[2] + x * input_strides[3]
        offsets = place[:, None] + (inputs * input_strides[1])[None, :]
        values = tl.load(input_ptr + offsets, mask=inside[:, None] & channel_mask[None, :], other=0).to(COMPUTE)
        offsets = weight_channels * weight_strides[0] + tap_row * weight_strides[1] + tap_column * weight_strides[2]
        weights = tl.load(weight_ptr + offsets, mask=channel_mask, other=0).to(COMPUTE)
        accumulator += values * weights[None, :]
    mask = pixel_mask[:, None] & channel_mask[None, :]
    residual_offsets = None
    if residual_ptr is not None:
        place = image * residual_strides[0] + row * residual_strides[2] + column * residual_strides[3]
        residual_offsets = place[:, None] + (channels * residual_strides[1])[None, :]
    result = _finish(accumulator, channels, channel_mask, bias_ptr, residual_ptr, residual_offsets, mask, RELU)
    place = image * out_strides[0] + row * out_strides[2] + column * out_strides[3]
    offsets = place[:, None] + (channels * out_strides[1])[None, :]
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=mask)
    _end(is_beside, PDL)


def _specimens(dtype, flat, block, wide=False):
    inputs, outputs = (3, 64) if flat else (64, 64)
    compute = {"COMPUTE": COMPUTE[dtype], "WIDE": wide}
    products = {**compute, "PRECISION": DOT_PRECISION[dtype], "FLAT": flat, "TRANSPOSED": False}
    products |= {"INPUT_VECTOR": 1, "OUTPUT_VECTOR": 1}
    blocks = {"BLOCK_M": block, "BLOCK_N": 64, "BLOCK_K": 16, "num_warps": 4, "num_stages": 3}
    geometry = ((28, 28), (30, 30), (3, 3), (2, 2), (-1, -1), (1, 1))
    nhwc = (50176, 1, 1792, 64)
    sizes = (0, 3000, outputs, inputs, *geometry)
    conv = (dtype, dtype, dtype, dtype, None, *sizes, nhwc, nhwc, (576, 1, 192, 64), 0, None)
    residual = (dtype, dtype, dtype, None, dtype, *conv[5:-1], nhwc)
    return [
        Specimen(_conv_kernel, conv, {**products, **blocks, "RELU": False, "GROUP": 8}),
        Specimen(_conv_kernel, residual, {**products, **blocks, "RELU": True, "GROUP": 8}),
    ]


def _uneven_specimen(dtype, flat):
    """18 channels to 20, a gradient's weight."""
    how = {"PRECISION": DOT_PRECISION[dtype], "FLAT": flat, "TRANSPOSED": True, "RELU": False, "GROUP": 8}
    vectors = {"COMPUTE": COMPUTE[dtype], "WIDE": False, "INPUT_VECTOR": 2, "OUTPUT_VECTOR": 4}
    blocks = {"BLOCK_M": 128, "BLOCK_N": 32, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3}
    geometry = ((28, 28), (28, 28), (3, 3), (1, 1), (1, 1), (-1, -1))
    strides, sizes = ((15680, 1, 560, 20), (14112, 1, 504, 18), (1, 180, 60, 20), 3240, None), (1, 784, 20, 18)
    return Specimen(
        _conv_kernel, (dtype, dtype, dtype, None, None, *sizes, *geometry, *strides), {**how, **vectors, **blocks}
    )


def _depthwise_specimens(dtype):
    constants = {"COMPUTE": COMPUTE[dtype], "WIDE": False, "BLOCK_M": 32, "BLOCK_N": 64}
    geometry = ((28, 28), (30, 30), (3, 3), (2, 2), (-1, -1), (1, 1))
    nhwc = (50176, 1, 1792, 64)
    forward = (dtype, dtype, dtype, dtype, dtype, 0, 3000, 64, 1, 1, *geometry, nhwc, nhwc, (9, 3, 1), nhwc)
    return [
        Specimen(_depthwise_kernel, forward, {**constants, "RELU": True}),
    ]


SPECIMENS = [
    *_specimens(dtypes.float32, False, 128),
    *_specimens(dtypes.float32, True, 64),
    *_specimens(dtypes.bfloat16, False, 128),
    *_specimens(dtypes.float16, True, 64, wide=True),
    *_specimens(dtypes.float64, False, 64),
    _uneven_specimen(dtypes.bfloat16, False),
    _uneven_specimen(dtypes.float16, True),
    *_depthwise_specimens(dtypes.bfloat16),
    *_depthwise_specimens(dtypes.float32),
]
