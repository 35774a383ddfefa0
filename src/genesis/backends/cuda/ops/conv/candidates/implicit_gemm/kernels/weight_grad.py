"""The weight's gradient as an implicit matrix product: per tap, outputs × inputs, summed over pixels.

gather.py says where along each axis the inputs of a result lie.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow_and_hold, _let_next_begin
from genesis.backends.cuda.launch.tiles import DOT_PRECISION
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.kernels.gather import (
    SIZES,
    _beyond_parts,
    _multiple,
    _pixel,
    _place,
)
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _divided(numbers, reciprocal):
    """numbers // divisor in three instructions; candidate.reciprocal(divisor) has the multiplier and the shift.

    Each thread makes two for each pixel that it loads: divisions were more than a third of the loop, in sm_90 assembly.
    """
    unsigned = numbers.to(tl.uint32)
    return ((tl.umulhi(unsigned, reciprocal[0].to(tl.uint32)) + unsigned) >> reciprocal[1].to(tl.uint32)).to(tl.int32)


@triton.jit(do_not_specialize=[*SIZES, "row_reciprocal", "image_reciprocal"])
def _conv_weight_grad_kernel(
    out_ptr,
    grad_ptr,
    input_ptr,
    num_pixels,
    num_outputs,
    num_inputs,
    row_reciprocal,
    image_reciprocal,
    out_size,
    size,
    taps,
    step,
    start,
    spread,
    num_splits,
    pixels_per_split,
    out_strides,
    grad_strides,
    input_strides,
    FLAT: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    INPUT_VECTOR: tl.constexpr,
    OUTPUT_VECTOR: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per tile of output channels × (tap, input channels) of one group, and per split of the pixels.

    The gradient has no gaps: its pixels lie one after the other. row_reciprocal divides by the pixels of a row,
    image_reciprocal by the rows of an image. out_strides: (split, output, input, height, width). FLAT: a tile crosses
    taps; else it lies in one. INPUT_VECTOR divides num_inputs and the input's strides, OUTPUT_VECTOR num_outputs and
    the gradient's.
    """
    _follow_and_hold(PDL)
    num_inputs, num_outputs = _multiple(num_inputs, INPUT_VECTOR), _multiple(num_outputs, OUTPUT_VECTOR)
    output_tiles = tl.cdiv(num_outputs, BLOCK_M)
    if FLAT:
        input_tiles = tl.cdiv(taps[0] * taps[1] * num_inputs, BLOCK_N)
    else:
        input_tiles = taps[0] * taps[1] * tl.cdiv(num_inputs, BLOCK_N)
    program = tl.program_id(0)
    input_tile = program % input_tiles
    program = program // input_tiles
    output_tile = program % output_tiles
    program = program // output_tiles
    split = program % num_splits
    group = program // num_splits
    outputs = output_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    if FLAT:
        term = input_tile * BLOCK_N + tl.arange(0, BLOCK_N)
        inputs = term % num_inputs
        tap = term // num_inputs
        input_mask = tap < taps[0] * taps[1]
    else:
        inputs = input_tile % tl.cdiv(num_inputs, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
        tap = input_tile // tl.cdiv(num_inputs, BLOCK_N)
        input_mask = inputs < num_inputs
    tap_row = tap // taps[1]
    tap_column = tap % taps[1]
    output_mask = outputs < num_outputs
    grad_ptrs = grad_ptr + (group * num_outputs + outputs) * grad_strides[1]
    input_ptrs = input_ptr + (group * num_inputs + inputs) * input_strides[1]

    accumulator = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    grad_peaks = tl.zeros((BLOCK_M, BLOCK_K), COMPUTE)
    peaks = tl.zeros((BLOCK_K, BLOCK_N), COMPUTE)
    begin = split * pixels_per_split
    end = min(begin + pixels_per_split, num_pixels)
    for first in range(begin, end, BLOCK_K):
        pixels = first + tl.arange(0, BLOCK_K)
        pixel_mask = pixels < end
        offsets = (pixels.to(tl.int64) if WIDE else pixels) * _multiple(grad_strides[3], OUTPUT_VECTOR)
        grads = tl.load(grad_ptrs[:, None] + offsets[None, :], mask=output_mask[:, None] & pixel_mask[None, :], other=0)
        rows = _divided(pixels, row_reciprocal)  # of all images
        image = _divided(rows, image_reciprocal)
        top = (rows - image * out_size[0]) * step[0] + start[0]
        left = (pixels - rows * out_size[1]) * step[1] + start[1]
        if WIDE:
            image = image.to(tl.int64)
        if FLAT:
            y = top[:, None] + (tap_row * spread[0])[None, :]
            x = left[:, None] + (tap_column * spread[1])[None, :]
            inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1]) & pixel_mask[:, None]
            offsets = _place(image[:, None], y, x, input_strides, INPUT_VECTOR)
        else:
            y = top + tap_row * spread[0]
            x = left + tap_column * spread[1]
            inside = ((y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1]) & pixel_mask)[:, None]
            offsets = _place(image, y, x, input_strides, INPUT_VECTOR)[:, None]
        values = tl.load(input_ptrs[None, :] + offsets, mask=inside & input_mask[None, :], other=0)
        accumulator = tl.dot(grads, values, accumulator, input_precision=PRECISION, out_dtype=COMPUTE)
        if PRECISION == "bf16x6":
            grad_peaks = tl.maximum(grad_peaks, tl.abs(grads))
            peaks = tl.maximum(peaks, tl.abs(values))
    if PRECISION == "bf16x6":  # noqa: SIM102  (the first is decided when it is compiled)
        if _beyond_parts(grad_peaks, peaks):  # multiply-adds, one pixel after the other
            accumulator = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
            for pixel in range(begin, end):
                image, row, column = _pixel(pixel, out_size, WIDE)
                offset = image * grad_strides[0] + row * grad_strides[2] + column * grad_strides[3]
                grads = tl.load(grad_ptrs + offset, mask=output_mask, other=0)
                y = row * step[0] + start[0] + tap_row * spread[0]
                x = column * step[1] + start[1] + tap_column * spread[1]
                inside = input_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
                offsets = image * input_strides[0] + y * input_strides[2] + x * input_strides[3]
                values = tl.load(input_ptrs + offsets, mask=inside, other=0)
                accumulator += grads[:, None] * values[None, :]

    _let_next_begin(PDL)
    rows = (group * num_outputs + outputs).to(tl.int64) * out_strides[1] + split.to(tl.int64) * out_strides[0]
    columns = inputs * out_strides[2] + tap_row * out_strides[3] + tap_column * out_strides[4]
    offsets = rows[:, None] + columns[None, :]
    mask = output_mask[:, None] & input_mask[None, :]
    tl.store(out_ptr + offsets, accumulator.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=SIZES)
def _depthwise_weight_grad_kernel(
    out_ptr,
    grad_ptr,
    input_ptr,
    num_pixels,
    num_channels,
    outputs_per_input,
    out_size,
    size,
    taps,
    step,
    start,
    spread,
    num_splits,
    pixels_per_split,
    out_strides,
    grad_strides,
    input_strides,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program per tap, split of the pixels and block of channels. out_strides: as _conv_weight_grad_kernel's."""
    _follow_and_hold(PDL)
    tap = tl.program_id(0) // num_splits
    split = tl.program_id(0) % num_splits
    tap_row = tap // taps[1]
    tap_column = tap % taps[1]
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    channel_mask = channels < num_channels
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    begin = split * pixels_per_split
    end = min(begin + pixels_per_split, num_pixels)
    for first in range(begin, end, BLOCK_M):
        pixels = first + tl.arange(0, BLOCK_M)
        pixel_mask = pixels < end
        image, row, column = _pixel(pixels, out_size, WIDE)
        place = image * grad_strides[0] + row * grad_strides[2] + column * grad_strides[3]
        offsets = place[:, None] + (channels * grad_strides[1])[None, :]
        grads = tl.load(grad_ptr + offsets, mask=pixel_mask[:, None] & channel_mask[None, :], other=0).to(COMPUTE)
        y = row * step[0] + start[0] + tap_row * spread[0]
        x = column * step[1] + start[1] + tap_column * spread[1]
        inside = pixel_mask & (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
        place = image * input_strides[0] + y * input_strides[2] + x * input_strides[3]
        offsets = place[:, None] + (channels // outputs_per_input * input_strides[1])[None, :]
        values = tl.load(input_ptr + offsets, mask=inside[:, None] & channel_mask[None, :], other=0).to(COMPUTE)
        accumulator += grads * values
    _let_next_begin(PDL)
    result = tl.sum(accumulator, axis=0)
    offsets = split.to(tl.int64) * out_strides[0] + tap_row * out_strides[3] + tap_column * out_strides[4]
    offsets += channels * out_strides[1]
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=channel_mask)


def _specimen(dtype, flat, block, wide=False, vectors=(1, 1)):
    inputs, outputs = (3, 64) if flat else (64, 64)
    products = {"COMPUTE": COMPUTE[dtype], "WIDE": wide, "PRECISION": DOT_PRECISION[dtype], "FLAT": flat}
    products |= {"INPUT_VECTOR": vectors[0], "OUTPUT_VECTOR": vectors[1]}
    blocks = {"BLOCK_M": block, "BLOCK_N": 64, "BLOCK_K": 16, "num_warps": 4, "num_stages": 3}
    geometry = ((28, 28), (30, 30), (3, 3), (2, 2), (-1, -1), (1, 1))
    nhwc = (50176, 1, 1792, 64)
    arrays = (dtypes.float32 if dtype.itemsize < 8 else dtype, dtype, dtype)
    grad = (*arrays, 3000, outputs, inputs, (613566757, 5), (613566757, 5))  # by 28
    tail = (4, 800, (36864, 576, 1, 192, 64), nhwc, nhwc)
    return Specimen(_conv_weight_grad_kernel, (*grad, *geometry, *tail), {**products, **blocks})


def _depthwise_specimen(dtype):
    constants = {"COMPUTE": COMPUTE[dtype], "WIDE": False, "BLOCK_M": 32, "BLOCK_N": 64}
    geometry = ((28, 28), (30, 30), (3, 3), (2, 2), (-1, -1), (1, 1))
    nhwc = (50176, 1, 1792, 64)
    grad = (dtypes.float32, dtype, dtype, 3000, 64, 1, *geometry, 4, 800, (576, 9, 9, 3, 1), nhwc, nhwc)
    return Specimen(_depthwise_weight_grad_kernel, grad, constants)


SPECIMENS = [
    _specimen(dtypes.float32, False, 128),
    _specimen(dtypes.float32, True, 64),
    _specimen(dtypes.bfloat16, False, 128),
    _specimen(dtypes.float16, True, 64, wide=True),
    _specimen(dtypes.float64, False, 64),
    _specimen(dtypes.bfloat16, True, 64, vectors=(2, 4)),
    _depthwise_specimen(dtypes.bfloat16),
    _depthwise_specimen(dtypes.float32),
]
