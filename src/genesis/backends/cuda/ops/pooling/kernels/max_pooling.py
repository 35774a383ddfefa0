"""Pooling by the largest. Backwards gather, as those of means do; windows are described in the same way.

Where a value was found is told in one of two forms. Indices (int64) count the elements of the input's plane, row by
row: what users ask for. Places (uint8) count those of the window: an eighth of the bytes, and all the backward needs.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pooling.kernels.pooling import _SIZES, _element, _lanes, _last_window, _window


@triton.jit(do_not_specialize=_SIZES)
def _max_pool_kernel(
    out_ptr,
    found_ptr,
    x_ptr,
    num_elements,
    num_channels,
    out_size,
    size,
    kernel,
    stride,
    padding,
    dilation,
    x_strides,
    PLACES: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    COMPUTE: tl.constexpr,
    LOWEST: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """The first of equals; NaN wins. found: places if PLACES, else indices, or None.

    A window that lies in the padding altogether finds nothing, −1: the last place, which no element of the input has.
    """
    _follow(PDL)
    index, mask = _lanes(num_elements, WIDE, BLOCK)
    image, channel, row, column = _element(index, num_channels, out_size, CHANNELS_LAST)
    top, bottom = _window(row, out_size[0], size[0], kernel[0], stride[0], padding[0], dilation[0], ADAPTIVE)
    left, right = _window(column, out_size[1], size[1], kernel[1], stride[1], padding[1], dilation[1], ADAPTIVE)
    plane = x_ptr + image * x_strides[0] + channel * x_strides[1]
    best = tl.full((BLOCK,), LOWEST, COMPUTE)
    found = tl.full((BLOCK,), -1, tl.int32)
    for i in range(kernel[0]):
        y = top + i * dilation[0]
        inside_row = mask & (y >= 0) & (y < bottom) & (y < size[0])
        for j in range(kernel[1]):
            x = left + j * dilation[1]
            inside = inside_row & (x >= 0) & (x < right) & (x < size[1])
            value = tl.load(plane + y * x_strides[2] + x * x_strides[3], mask=inside, other=0).to(COMPUTE)
            taken = inside & ((found < 0) | (value > best) | (value != value))
            best = tl.where(taken, value, best)
            if PLACES:
                found = tl.where(taken, i * kernel[1] + j, found)
            else:
                found = tl.where(taken, (y * size[1] + x).to(tl.int32), found)
    tl.store(out_ptr + index, best.to(out_ptr.dtype.element_ty), mask=mask)
    if found_ptr is not None:
        tl.store(found_ptr + index, found.to(found_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _first_inside(start, dilation):
    """The first element of a window, along an axis, that is not in the padding before the input."""
    return (tl.maximum(-start, 0) + dilation - 1) // dilation


@triton.jit(do_not_specialize=[*_SIZES, "num_pixels"])
def _max_pool_pixels_kernel(
    out_ptr,
    places_ptr,
    x_ptr,
    num_pixels,
    num_channels,
    out_size,
    size,
    kernel,
    stride,
    padding,
    dilation,
    x_strides,
    LOWEST: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """The same where channels lie side by side, with places or None: what is computed for a pixel serves them all.

    x_strides: (image, row, column).
    """
    _follow(PDL)
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    pixels = block * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    present = (pixels < num_pixels)[:, None] & (channels < num_channels)[None, :]
    rest = pixels // out_size[1]
    top = rest % out_size[0] * stride[0] - padding[0]
    left = pixels % out_size[1] * stride[1] - padding[1]
    image = rest // out_size[0] * x_strides[0]
    best = tl.full((BLOCK_M, BLOCK_N), LOWEST, COMPUTE)
    if places_ptr is not None:  # of a window that holds nothing above LOWEST, the first element counts
        first = _first_inside(top, dilation[0]) * kernel[1] + _first_inside(left, dilation[1])
        place = tl.zeros((BLOCK_M, BLOCK_N), tl.int32) + first.to(tl.int32)[:, None]
    for i in range(kernel[0]):
        y = top + i * dilation[0]
        for j in range(kernel[1]):
            x = left + j * dilation[1]
            inside = (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
            source = x_ptr + (image + y * x_strides[1] + x * x_strides[2])[:, None] + channels[None, :]
            value = tl.load(source, mask=present & inside[:, None], other=LOWEST).to(COMPUTE)
            if places_ptr is not None:
                taken = (value > best) | (value != value)
                best = tl.where(taken, value, best)
                place = tl.where(taken, i * kernel[1] + j, place)
            else:
                best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    outputs = pixels[:, None] * num_channels + channels[None, :]
    tl.store(out_ptr + outputs, best.to(out_ptr.dtype.element_ty), mask=present)
    if places_ptr is not None:
        tl.store(places_ptr + outputs, place.to(places_ptr.dtype.element_ty), mask=present)


@triton.jit
def _step(i, window, kernel, stride, padding, dilation):
    """The element of a window that input i is, along an axis; −1 where it lies between or behind them."""
    offset = i - (window * stride - padding)
    step = offset // dilation
    return tl.where((step * dilation == offset) & (step < kernel), step, -1)


@triton.jit(do_not_specialize=_SIZES)
def _max_pool_backward_kernel(
    out_ptr,
    grad_ptr,
    found_ptr,
    num_elements,
    num_channels,
    out_size,
    size,
    kernel,
    stride,
    padding,
    dilation,
    reach,
    grad_strides,
    found_strides,
    PLACES: tl.constexpr,
    ADAPTIVE: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """grad where a window found this element. reach: how many windows it can lie in, along each axis."""
    _follow(PDL)
    index, mask = _lanes(num_elements, WIDE, BLOCK)
    image, channel, row, column = _element(index, num_channels, size, CHANNELS_LAST)
    bottom = _last_window(row, out_size[0], size[0], stride[0], padding[0], ADAPTIVE)
    right = _last_window(column, out_size[1], size[1], stride[1], padding[1], ADAPTIVE)
    grad_plane = grad_ptr + image * grad_strides[0] + channel * grad_strides[1]
    found_plane = found_ptr + image * found_strides[0] + channel * found_strides[1]
    total = tl.zeros((BLOCK,), COMPUTE)
    for i in range(reach[0]):
        y = bottom - i
        for j in range(reach[1]):
            x = right - j
            inside = mask & (y >= 0) & (x >= 0)
            if PLACES:
                row_step = _step(row, y, kernel[0], stride[0], padding[0], dilation[0])
                column_step = _step(column, x, kernel[1], stride[1], padding[1], dilation[1])
                inside = inside & (row_step >= 0) & (column_step >= 0)
                own = row_step * kernel[1] + column_step
            else:
                own = row * size[1] + column
            found = tl.load(found_plane + y * found_strides[2] + x * found_strides[3], mask=inside, other=0)
            value = tl.load(grad_plane + y * grad_strides[2] + x * grad_strides[3], mask=inside, other=0)
            total += tl.where(found == own, value.to(COMPUTE), 0)
    tl.store(out_ptr + index, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_cells", "cells", "out_size", "size"])
def _max_pool_backward_cells_kernel(
    out_ptr, grad_ptr, places_ptr, num_cells, num_channels, cells, out_size, size, grad_strides, places_strides,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, DILATION: tl.constexpr,
    COMPUTE: tl.constexpr, WIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The same from places, into an array whose channels lie side by side, or with one, for windows of few elements.

    A cell is the pixels from the first of one window to the first of the next. They lie in the same windows, which are
    loaded once; which of a window's elements a pixel is, is known when this is compiled.
    cells: how many there are along each axis of a plane; they cover the input and the padding before it.
    """
    _follow(PDL)
    HEIGHT: tl.constexpr = STRIDE[0]  # of a cell
    WIDTH: tl.constexpr = STRIDE[1]
    BOTTOM: tl.constexpr = (KERNEL[0] - 1) * DILATION[0] + 1  # of a window, counted from its first pixel
    RIGHT: tl.constexpr = (KERNEL[1] - 1) * DILATION[1] + 1
    ROWS: tl.constexpr = (BOTTOM + HEIGHT - 1) // HEIGHT  # of windows that a cell can lie in
    COLUMNS: tl.constexpr = (RIGHT + WIDTH - 1) // WIDTH
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    cell = block * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    present = (cell < num_cells)[:, None] & (channels < num_channels)[None, :]
    cell_column = cell % cells[1]
    rest = cell // cells[1]
    cell_row = rest % cells[0]
    image = rest // cells[0]
    grads = ()
    places = ()
    for i in tl.static_range(ROWS):
        for j in tl.static_range(COLUMNS):
            y = cell_row - i
            x = cell_column - j
            inside = present & ((y >= 0) & (y < out_size[0]) & (x >= 0) & (x < out_size[1]))[:, None]
            grad = image * grad_strides[0] + y * grad_strides[2] + x * grad_strides[3]
            place = image * places_strides[0] + y * places_strides[2] + x * places_strides[3]
            grad = tl.load(grad_ptr + grad[:, None] + (channels * grad_strides[1])[None, :], mask=inside, other=0)
            place = tl.load(places_ptr + place[:, None] + (channels * places_strides[1])[None, :], mask=inside, other=0)
            grads += (grad.to(COMPUTE),)
            places += (place,)
    for a in tl.static_range(HEIGHT):
        for b in tl.static_range(WIDTH):
            total = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
            for y in tl.static_range(a, BOTTOM, HEIGHT):
                for x in tl.static_range(b, RIGHT, WIDTH):
                    if y % DILATION[0] == 0 and x % DILATION[1] == 0:
                        found = places[y // HEIGHT * COLUMNS + x // WIDTH]
                        is_own = found == y // DILATION[0] * KERNEL[1] + x // DILATION[1]
                        total += tl.where(is_own, grads[y // HEIGHT * COLUMNS + x // WIDTH], 0)
            row = cell_row * HEIGHT - PADDING[0] + a
            column = cell_column * WIDTH - PADDING[1] + b
            inside = present & ((row >= 0) & (row < size[0]) & (column >= 0) & (column < size[1]))[:, None]
            pixel = (image * size[0] + row) * size[1] + column
            outputs = pixel[:, None] * num_channels + channels[None, :]
            tl.store(out_ptr + outputs, total.to(out_ptr.dtype.element_ty), mask=inside)


def _specimens(dtype, adaptive, channels_last):
    sizes = (100000, 64, (28, 28), (56, 56))
    strides = (200704, 1, 3584, 64) if channels_last else (200704, 3136, 56, 1)
    common = {"ADAPTIVE": adaptive, "CHANNELS_LAST": channels_last, "COMPUTE": COMPUTE[dtype]}
    common |= {"WIDE": dtype is dtypes.float64, "BLOCK": 1024}
    lowest = float("-inf") if dtype.is_floating_point else -(2**31)
    windows, reach = ((3, 3), (2, 2), (1, 1), (1, 1)), (2, 2)
    specimens = []
    for found in (dtypes.int64,) if adaptive else (dtypes.int64, dtypes.uint8, None):
        constants = {**common, "PLACES": found is dtypes.uint8}
        args = (dtype, found, dtype, *sizes, *windows, strides)
        specimens.append(Specimen(_max_pool_kernel, args, {**constants, "LOWEST": lowest}))
        if found is not None:
            args = (dtype, dtype, found, *sizes, *windows, reach, strides, strides)
            specimens.append(Specimen(_max_pool_backward_kernel, args, constants))
    return specimens


def _pixels_specimens(dtype, wide):
    lowest = float("-inf") if dtype.is_floating_point else 0
    constants = {"LOWEST": lowest, "COMPUTE": COMPUTE[dtype], "WIDE": wide, "BLOCK_M": 16, "BLOCK_N": 64}
    windows = ((3, 3), (2, 2), (1, 1), (1, 1))
    args = (dtype, 100000, 64, (28, 28), (56, 56), *windows, (200704, 3584, 64))
    return [Specimen(_max_pool_pixels_kernel, (dtype, places, *args), constants) for places in (None, dtypes.uint8)]


def _cells_specimen(dtype, wide, kernel, stride, dilation=1):
    windows = {"KERNEL": (kernel, kernel), "STRIDE": (stride, stride), "PADDING": (1, 1), "DILATION": (dilation,) * 2}
    constants = {**windows, "COMPUTE": COMPUTE[dtype], "WIDE": wide, "BLOCK_M": 16, "BLOCK_N": 64}
    strides = (50176, 1, 1792, 64)
    args = (dtype, dtype, dtypes.uint8, 100000, 64, (29, 29), (28, 28), (56, 56), strides, strides)
    return Specimen(_max_pool_backward_cells_kernel, args, constants)


SPECIMENS = [
    _cells_specimen(dtypes.bfloat16, False, 3, 2),
    _cells_specimen(dtypes.float16, True, 2, 2),
    _cells_specimen(dtypes.float32, False, 3, 1, 2),
    _cells_specimen(dtypes.float64, True, 5, 4),
    *_pixels_specimens(dtypes.float16, False),
    *_pixels_specimens(dtypes.bfloat16, True),
    *_pixels_specimens(dtypes.float64, False),
    *_pixels_specimens(dtypes.uint8, False),
    *_specimens(dtypes.float32, False, True),
    *_specimens(dtypes.bfloat16, True, False),
    *_specimens(dtypes.float64, False, False),
    *_specimens(dtypes.int32, False, True),
]
