"""Pooling by means, and the windows of all pooling.

Backwards gather: each element of the input looks up the windows that it lies in, so sums come in one order.

Windows are described by pairs (height, width): kernel, stride, padding, dilation, and the sizes of input and output.
ADAPTIVE windows follow from the sizes alone: output i covers input ⌊i·I/O⌋ up to ⌈(i+1)·I/O⌉.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE

# A kernel is compiled once for all values of these. Not so num_elements and num_channels: where they divide by 16,
# channels that lie side by side are loaded and stored together.
_SIZES = ["out_size", "size", "kernel", "stride", "padding", "dilation", "reach", "divisor"]


@triton.jit
def _lanes(num_elements, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """This program's elements, and which of them there are. WIDE: offsets need 64 bits."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    return index, index < num_elements


@triton.jit
def _element(index, num_channels, size, CHANNELS_LAST: tl.constexpr):
    """(image, channel, row, column) of an element, by its place in dense memory."""
    if CHANNELS_LAST:
        channel = index % num_channels
        rest = index // num_channels
        column = rest % size[1]
        rest = rest // size[1]
        row = rest % size[0]
        image = rest // size[0]
    else:
        column = index % size[1]
        rest = index // size[1]
        row = rest % size[0]
        rest = rest // size[0]
        channel = rest % num_channels
        image = rest // num_channels
    return image, channel, row, column


@triton.jit
def _window(i, out_size, size, kernel, stride, padding, dilation, ADAPTIVE: tl.constexpr):
    """(first, end) of output i's window along an axis, padding included."""
    if ADAPTIVE:
        first = i * size // out_size
        end = ((i + 1) * size + out_size - 1) // out_size
    else:
        first = i * stride - padding
        end = tl.minimum(first + (kernel - 1) * dilation + 1, size + padding)
    return first, end


@triton.jit
def _last_window(i, out_size, size, stride, padding, ADAPTIVE: tl.constexpr):
    """The last output whose window can reach input i."""
    if ADAPTIVE:
        last = ((i + 1) * out_size - 1) // size
    else:
        last = tl.minimum((i + padding) // stride, out_size - 1)
    return last


@triton.jit
def _divisor(top, bottom, left, right, size, divisor, COUNT_PADDING: tl.constexpr):
    """Divisor of the sum over a window: divisor, or its elements with or without the padding's."""
    if divisor is not None:
        result = (top * 0 + divisor).to(tl.float32)
    elif COUNT_PADDING:
        result = ((bottom - top) * (right - left)).to(tl.float32)
    else:
        height = tl.minimum(bottom, size[0]) - tl.maximum(top, 0)
        width = tl.minimum(right, size[1]) - tl.maximum(left, 0)
        result = (height * width).to(tl.float32)
    return result


@triton.jit(do_not_specialize=_SIZES)
def _avg_pool_kernel(
    out_ptr,
    x_ptr,
    num_elements,
    num_channels,
    out_size,
    size,
    kernel,
    stride,
    padding,
    divisor,
    x_strides,
    ADAPTIVE: tl.constexpr,
    COUNT_PADDING: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    _follow(PDL)
    index, mask = _lanes(num_elements, WIDE, BLOCK)
    image, channel, row, column = _element(index, num_channels, out_size, CHANNELS_LAST)
    top, bottom = _window(row, out_size[0], size[0], kernel[0], stride[0], padding[0], 1, ADAPTIVE)
    left, right = _window(column, out_size[1], size[1], kernel[1], stride[1], padding[1], 1, ADAPTIVE)
    plane = x_ptr + image * x_strides[0] + channel * x_strides[1]
    total = tl.zeros((BLOCK,), COMPUTE)
    any_inside = mask & (bottom < top)  # nothing yet
    for i in range(kernel[0]):
        y = top + i
        inside_row = mask & (y >= 0) & (y < bottom) & (y < size[0])
        for j in range(kernel[1]):
            x = left + j
            inside = inside_row & (x >= 0) & (x < right) & (x < size[1])
            total += tl.load(plane + y * x_strides[2] + x * x_strides[3], mask=inside, other=0).to(COMPUTE)
            any_inside |= inside
    total = total / _divisor(top, bottom, left, right, size, divisor, COUNT_PADDING).to(COMPUTE)
    total = tl.where(any_inside, total, 0)  # a window in the padding only
    tl.store(out_ptr + index, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=_SIZES)
def _avg_pool_backward_kernel(
    out_ptr,
    grad_ptr,
    num_elements,
    num_channels,
    out_size,
    size,
    kernel,
    stride,
    padding,
    reach,
    divisor,
    grad_strides,
    ADAPTIVE: tl.constexpr,
    COUNT_PADDING: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The windows that an element lies in, each one's grad shared out. reach: how many there can be along each axis."""
    _follow(PDL)
    index, mask = _lanes(num_elements, WIDE, BLOCK)
    image, channel, row, column = _element(index, num_channels, size, CHANNELS_LAST)
    last_row = _last_window(row, out_size[0], size[0], stride[0], padding[0], ADAPTIVE)
    last_column = _last_window(column, out_size[1], size[1], stride[1], padding[1], ADAPTIVE)
    plane = grad_ptr + image * grad_strides[0] + channel * grad_strides[1]
    total = tl.zeros((BLOCK,), COMPUTE)
    for i in range(reach[0]):
        y = last_row - i
        top, bottom = _window(y, out_size[0], size[0], kernel[0], stride[0], padding[0], 1, ADAPTIVE)
        inside_row = mask & (y >= 0) & (top <= row) & (row < bottom)
        for j in range(reach[1]):
            x = last_column - j
            left, right = _window(x, out_size[1], size[1], kernel[1], stride[1], padding[1], 1, ADAPTIVE)
            inside = inside_row & (x >= 0) & (left <= column) & (column < right)
            grad = tl.load(plane + y * grad_strides[2] + x * grad_strides[3], mask=inside, other=0).to(COMPUTE)
            share = _divisor(top, bottom, left, right, size, divisor, COUNT_PADDING).to(COMPUTE)
            total += tl.where(inside, grad / share, 0)
    tl.store(out_ptr + index, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_blocks", "num_pixels"])
def _plane_mean_kernel(
    out_ptr,
    x_ptr,
    num_blocks,
    num_pixels,
    num_channels,
    image_stride,
    pixel_stride,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """One window, the whole plane, where channels lie side by side: (image, pixel, channel) → (image, channel).

    Programs: images · num_blocks (of BLOCK_N channels), each of which takes BLOCK_M pixels at a time.
    """
    _follow(PDL)
    image = (tl.program_id(0) // num_blocks).to(tl.int64)
    channels = tl.program_id(0) % num_blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    pixels = tl.arange(0, BLOCK_M)
    present = channels < num_channels
    places = (pixels * pixel_stride)[:, None] + channels[None, :]
    x_ptr += image * image_stride
    total = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    for first in range(0, num_pixels, BLOCK_M):
        mask = (pixels < num_pixels - first)[:, None] & present[None, :]
        total += tl.load(x_ptr + places, mask=mask, other=0).to(COMPUTE)
        x_ptr += BLOCK_M * pixel_stride
    result = tl.sum(total, 0)
    result = libdevice.div_rn(result, tl.zeros_like(result) + num_pixels)
    tl.store(out_ptr + image * num_channels + channels, result.to(out_ptr.dtype.element_ty), mask=present)


@triton.jit(do_not_specialize=["num_blocks", "num_parts", "out_size", "size"])
def _adaptive_avg_pool_backward_pixels_kernel(
    out_ptr,
    grad_ptr,
    num_blocks,
    num_parts,
    num_channels,
    out_size,
    size,
    grad_strides,
    COMPUTE: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Gradient of adaptive windows, where channels lie side by side. A program has a part of a row.

    From one edge of a window to the next, all pixels of a row lie in the same windows: what they get is computed once
    and stored as often as there are pixels.

    Programs: images · height · num_parts (of COLUMNS columns) · num_blocks (of BLOCK channels).
    """
    _follow(PDL)
    channels = tl.program_id(0) % num_blocks * BLOCK + tl.arange(0, BLOCK)
    present = channels < num_channels
    part = tl.program_id(0) // num_blocks
    start = part % num_parts * COLUMNS
    image_row = part // num_parts
    row = image_row % size[0]
    grad_ptr += (image_row // size[0]).to(tl.int64) * grad_strides[0]
    out_ptr += (image_row.to(tl.int64) * size[1] + start) * num_channels
    first_y = row * out_size[0] // size[0]
    last_y = _last_window(row, out_size[0], size[0], 1, 0, True)
    column = start
    stop = tl.minimum(start + COLUMNS, size[1])
    while column < stop:
        first_x = column * out_size[1] // size[1]
        last_x = _last_window(column, out_size[1], size[1], 1, 0, True)
        next_left, _ = _window(last_x + 1, out_size[1], size[1], 1, 1, 0, 1, True)
        _, first_right = _window(first_x, out_size[1], size[1], 1, 1, 0, 1, True)
        until = tl.minimum(tl.minimum(next_left, first_right), stop)
        total = tl.zeros((BLOCK,), COMPUTE)
        for y in range(first_y, last_y + 1):
            top, bottom = _window(y, out_size[0], size[0], 1, 1, 0, 1, True)
            grad_row = grad_ptr + y * grad_strides[2] + channels * grad_strides[1]
            for x in range(first_x, last_x + 1):
                left, right = _window(x, out_size[1], size[1], 1, 1, 0, 1, True)
                grad = tl.load(grad_row + x * grad_strides[3], mask=present, other=0).to(COMPUTE)
                total += libdevice.div_rn(grad, tl.zeros_like(grad) + (bottom - top) * (right - left))
        result = total.to(out_ptr.dtype.element_ty)
        for place in range(column - start, until - start):
            tl.store(out_ptr + place * num_channels + channels, result, mask=present)
        column = until


def _specimens(dtype, adaptive, channels_last):
    sizes = (100000, 64, (28, 28), (56, 56))
    strides = (200704, 1, 3584, 64) if channels_last else (200704, 3136, 56, 1)
    constants = {"ADAPTIVE": adaptive, "COUNT_PADDING": channels_last, "CHANNELS_LAST": channels_last}
    constants |= {"COMPUTE": COMPUTE[dtype], "WIDE": dtype is dtypes.float64, "BLOCK": 1024}
    kernel, stride, padding, reach, divisor = (3, 3), (2, 2), (1, 1), (2, 2), None if adaptive else 5
    return [
        Specimen(_avg_pool_kernel, (dtype, dtype, *sizes, kernel, stride, padding, divisor, strides), constants),
        Specimen(
            _avg_pool_backward_kernel,
            (dtype, dtype, *sizes, kernel, stride, padding, reach, divisor, strides),
            constants,
        ),
    ]


def _whole_rows_specimens(dtype):
    """Specimens of the kernels that take rows of channels as they lie."""
    few = {"COMPUTE": COMPUTE[dtype], "BLOCK_M": 32, "BLOCK_N": 256 // dtype.itemsize, "num_warps": 2}
    many = {"COMPUTE": COMPUTE[dtype], "BLOCK_M": 64, "BLOCK_N": 512 // dtype.itemsize, "num_warps": 8}
    spread = {"COMPUTE": COMPUTE[dtype], "COLUMNS": 16, "BLOCK": 512 // dtype.itemsize, "num_warps": 1}
    strides = (36864, 1, 6144, 1024)
    return [
        Specimen(_plane_mean_kernel, (dtype, dtype, 4, 49, 1024, 50176, 1024), few),
        Specimen(_plane_mean_kernel, (dtype, dtype, 4, 784, 1024, 802816, 1024), many),
        Specimen(
            _adaptive_avg_pool_backward_pixels_kernel, (dtype, dtype, 4, 2, 1024, (6, 6), (64, 65), strides), spread
        ),
    ]


SPECIMENS = [
    *_whole_rows_specimens(dtypes.float32),
    *_whole_rows_specimens(dtypes.bfloat16),
    *_whole_rows_specimens(dtypes.float64),
    *_specimens(dtypes.float32, False, True),
    *_specimens(dtypes.bfloat16, True, False),
    *_specimens(dtypes.float64, False, False),
]
