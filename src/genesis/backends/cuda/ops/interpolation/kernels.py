"""Interpolation as a weighted sum along each axis; interpolation.py decides on the host which elements and weights.

Three spatial axes (depth, height, width); where an array has fewer, the first ones are of size 1 and have no table.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE

_SIZES = ["size", "counts"]  # for the others see ops/pooling/kernels/


@triton.jit
def _place(num_elements, num_channels, size, CHANNELS_LAST: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """This program's elements of a dense array: index, mask, image, channel, and position along the three axes."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    index = block * BLOCK + tl.arange(0, BLOCK)
    rest = index
    if CHANNELS_LAST:
        channel = rest % num_channels
        rest = rest // num_channels
    column = rest % size[2]
    rest = rest // size[2]
    row = rest % size[1]
    rest = rest // size[1]
    plane = rest % size[0]
    image = rest // size[0]
    if not CHANNELS_LAST:
        channel = image % num_channels
        image = image // num_channels
    return index, index < num_elements, image, channel, plane, row, column


@triton.jit
def _tap(indices_ptr, weights_ptr, at, tap, mask, TAPS: tl.constexpr):
    """(element, weight) of one tap of the outputs at, along one axis; anything where mask is false."""
    element = at
    weight = 1
    if indices_ptr is not None:
        element = tl.load(indices_ptr + at * TAPS + tap, mask=mask).to(at.dtype)
        if weights_ptr is not None:
            weight = tl.load(weights_ptr + at * TAPS + tap, mask=mask)
    return element, weight


@triton.jit(do_not_specialize=_SIZES)
def _interpolate_kernel(
    out_ptr,
    x_ptr,
    z_indices_ptr,
    y_indices_ptr,
    x_indices_ptr,
    z_weights_ptr,
    y_weights_ptr,
    x_weights_ptr,
    num_elements,
    num_channels,
    size,
    x_strides,
    TAPS: tl.constexpr,
    FIRST_AXIS: tl.constexpr,
    CHANNELS_LAST: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Per axis, from FIRST_AXIS on, a table of indices and one of weights: (output, tap). One tap has no weights."""
    index, mask, image, channel, plane, row, column = _place(
        num_elements, num_channels, size, CHANNELS_LAST, WIDE, BLOCK
    )
    base = x_ptr + image * x_strides[0] + channel * x_strides[1]
    total = tl.zeros((BLOCK,), COMPUTE)
    for i in tl.static_range(TAPS if FIRST_AXIS == 0 else 1):
        z, weight_z = _tap(z_indices_ptr, z_weights_ptr, plane, i, mask, TAPS)
        for j in tl.static_range(TAPS if FIRST_AXIS <= 1 else 1):
            y, weight_y = _tap(y_indices_ptr, y_weights_ptr, row, j, mask, TAPS)
            for k in tl.static_range(TAPS):
                x, weight_x = _tap(x_indices_ptr, x_weights_ptr, column, k, mask, TAPS)
                offsets = z * x_strides[2] + y * x_strides[3] + x * x_strides[4]
                value = tl.load(base + offsets, mask=mask, other=0).to(COMPUTE)
                if TAPS == 1:
                    total = value
                else:
                    total += value * (weight_z * weight_y * weight_x)
    tl.store(out_ptr + index, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _place_in_rows(num_segments, row_size, num_channels, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """This program's elements of a row (of channels within columns): index, mask, column, channel."""
    segment = tl.program_id(0) % num_segments
    if WIDE:
        segment = segment.to(tl.int64)
    index = segment * BLOCK + tl.arange(0, BLOCK)
    return index, index < row_size, index // num_channels, index % num_channels


@triton.jit
def _across(row_ptr, offsets, weights, mask, TAPS: tl.constexpr, COMPUTE: tl.constexpr):
    """A row of the input at the output's columns."""
    total = tl.load(row_ptr + offsets[0], mask=mask, other=0).to(COMPUTE)
    if TAPS > 1:
        total *= weights[0]
    for k in tl.static_range(1, TAPS):
        total += tl.load(row_ptr + offsets[k], mask=mask, other=0).to(COMPUTE) * weights[k]
    return total


@triton.jit(do_not_specialize=[*_SIZES, "num_segments", "num_groups", "rows_of_group"])
def _interpolate_rows_kernel(
    out_ptr,
    x_ptr,
    y_indices_ptr,
    x_indices_ptr,
    y_weights_ptr,
    x_weights_ptr,
    num_segments,
    num_groups,
    rows_of_group,
    row_size,
    num_channels,
    size,
    x_strides,
    TAPS: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same along two axes, where the channels lie side by side. A program has a segment of a few rows of out.

    Where an element comes from along x is looked up once for all these rows. And the rows of the input, interpolated
    along x, are kept from one row of out to the next: where an image grows, most come from the same ones.

    size: (height, width) of out, which is dense, its row_size being width · channels; x_strides: (image, row, column).
    Programs: images · num_groups (of rows_of_group rows) · num_segments.
    """
    index, mask, column, channel = _place_in_rows(num_segments, row_size, num_channels, WIDE, BLOCK)
    group = tl.program_id(0) // num_segments
    image = (group // num_groups).to(tl.int64)
    first = group % num_groups * rows_of_group
    x_ptr += image * x_strides[0]
    out_ptr += (image * size[0] + first) * row_size
    offsets = ()
    weights = ()
    rows = ()  # of the input
    kept = ()  # which ones they are
    for k in tl.static_range(TAPS):
        x, weight_x = _tap(x_indices_ptr, x_weights_ptr, column, k, mask, TAPS)
        offsets = offsets + (x * x_strides[2] + channel,)
        weights = weights + (weight_x,)
        rows = rows + (tl.zeros((BLOCK,), COMPUTE),)
        kept = kept + (tl.full((), -1, tl.int32),)
    for i in range(tl.minimum(rows_of_group, size[0] - first)):
        total = tl.zeros((BLOCK,), COMPUTE)
        new_rows = ()
        new_kept = ()
        for j in tl.static_range(TAPS):
            y, weight_y = _tap(y_indices_ptr, y_weights_ptr, first + i, j, None, TAPS)
            source = rows[j]
            if y != kept[j]:
                if y == kept[min(j + 1, TAPS - 1)]:
                    source = rows[min(j + 1, TAPS - 1)]
                else:
                    source = _across(x_ptr + y.to(tl.int64) * x_strides[1], offsets, weights, mask, TAPS, COMPUTE)
            if TAPS == 1:
                total = source
            else:
                total += source * weight_y
            new_rows = new_rows + (source,)
            new_kept = new_kept + (y,)
        rows = new_rows
        kept = new_kept
        tl.store(out_ptr + index, total.to(out_ptr.dtype.element_ty), mask=mask)
        out_ptr += row_size


@triton.jit
def _use(starts_ptr, outputs_ptr, weights_ptr, at, i, mask):
    """(output, weight, is there one) of the i-th use of the inputs at, along one axis."""
    output = at
    weight = 1
    used = mask
    if starts_ptr is not None:
        entry = tl.load(starts_ptr + at, mask=mask, other=0) + i
        used = mask & (entry < tl.load(starts_ptr + at + 1, mask=mask, other=0))
        output = tl.load(outputs_ptr + entry, mask=used, other=0).to(at.dtype)
        if weights_ptr is not None:
            weight = tl.load(weights_ptr + entry, mask=used, other=0)
    return output, weight, used


@triton.jit(do_not_specialize=_SIZES)
def _interpolate_backward_kernel(
    out_ptr,
    grad_ptr,
    z_starts_ptr,
    y_starts_ptr,
    x_starts_ptr,
    z_outputs_ptr,
    y_outputs_ptr,
    x_outputs_ptr,
    z_weights_ptr,
    y_weights_ptr,
    x_weights_ptr,
    num_elements,
    num_channels,
    size,
    counts,
    grad_strides,
    CHANNELS_LAST: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Each input gathers from the outputs that used it: input i's are entries starts[i] … starts[i + 1] of its axis.

    counts: the most uses of any input, along each axis.
    """
    index, mask, image, channel, plane, row, column = _place(
        num_elements, num_channels, size, CHANNELS_LAST, WIDE, BLOCK
    )
    base = grad_ptr + image * grad_strides[0] + channel * grad_strides[1]
    total = tl.zeros((BLOCK,), COMPUTE)
    for i in range(counts[0] * counts[1] * counts[2]):
        z, weight_z, used = _use(z_starts_ptr, z_outputs_ptr, z_weights_ptr, plane, i // (counts[1] * counts[2]), mask)
        y, weight_y, used = _use(y_starts_ptr, y_outputs_ptr, y_weights_ptr, row, i // counts[2] % counts[1], used)
        x, weight_x, used = _use(x_starts_ptr, x_outputs_ptr, x_weights_ptr, column, i % counts[2], used)
        offsets = z * grad_strides[2] + y * grad_strides[3] + x * grad_strides[4]
        value = tl.load(base + offsets, mask=used, other=0).to(COMPUTE)
        total += value * (weight_z * weight_y * weight_x)
    tl.store(out_ptr + index, total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=[*_SIZES, "num_segments", "most_uses"])
def _interpolate_rows_backward_kernel(
    out_ptr,
    grad_ptr,
    y_starts_ptr,
    x_starts_ptr,
    y_outputs_ptr,
    x_outputs_ptr,
    y_weights_ptr,
    x_weights_ptr,
    num_segments,
    most_uses,
    row_size,
    num_channels,
    size,
    grad_strides,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same along two axes, where the channels lie side by side. A program has a segment of a row of out.

    size: (height, width) of out, which is dense, its row_size being width · channels; most_uses: of any column;
    grad_strides: (image, row, column). Programs: images · height · num_segments.
    """
    index, mask, column, channel = _place_in_rows(num_segments, row_size, num_channels, WIDE, BLOCK)
    row = tl.program_id(0) // num_segments
    grad_ptr += (row // size[0]).to(tl.int64) * grad_strides[0]
    first = tl.load(y_starts_ptr + row % size[0])
    end = tl.load(y_starts_ptr + row % size[0] + 1)
    total = tl.zeros((BLOCK,), COMPUTE)
    for i in range(most_uses):
        x, weight_x, used = _use(x_starts_ptr, x_outputs_ptr, x_weights_ptr, column, i, mask)
        offsets = x * grad_strides[2] + channel
        down = tl.zeros((BLOCK,), COMPUTE)
        for entry in tl.range(first, end, loop_unroll_factor=4):
            y = tl.load(y_outputs_ptr + entry).to(tl.int64)
            value = tl.load(grad_ptr + y * grad_strides[1] + offsets, mask=used, other=0).to(COMPUTE)
            if y_weights_ptr is not None:
                value *= tl.load(y_weights_ptr + entry)
            down += value
        total += down * weight_x
    tl.store(out_ptr + row.to(tl.int64) * row_size + index, total.to(out_ptr.dtype.element_ty), mask=mask)


def _specimens(dtype, taps, axes, wide=False):
    number = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    first = 3 - axes
    table = (None,) * first + (dtypes.int32,) * axes
    weights = (None,) * 3 if taps == 1 else (None,) * first + (number,) * axes
    constants = {"CHANNELS_LAST": axes > 1, "COMPUTE": COMPUTE[dtype], "WIDE": wide, "BLOCK": 1024}
    sizes = (100000, 64, (16, 28, 28))
    strides = (3211264, 1, 50176, 1792, 64)
    forward = (dtype, dtype, *table, *weights, *sizes, strides)
    backward = (dtype, dtype, *table, *table, *weights, *sizes, (1, 4, 4), strides)
    specimens = [Specimen(_interpolate_kernel, forward, {**constants, "TAPS": taps, "FIRST_AXIS": first})]
    if dtype.is_floating_point:
        specimens.append(Specimen(_interpolate_backward_kernel, backward, constants))
    return specimens


def _rows_specimens(dtype, taps, channels, wide=False):
    number = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    table = (dtypes.int32, dtypes.int32)
    weights = (None, None) if taps == 1 else (number, number)
    sizes = (512 * channels, channels, (512, 512), (4096 * channels, 64 * channels, channels))
    constants = {"COMPUTE": COMPUTE[dtype], "WIDE": wide}
    forward = (dtype, dtype, *table, *weights, 11, 64, 8, *sizes)
    backward = (dtype, dtype, *table, *table, *weights, 11, 4, *sizes)
    return [
        Specimen(_interpolate_rows_kernel, forward, {**constants, "TAPS": taps, "BLOCK": 2048 // dtype.itemsize}),
        Specimen(_interpolate_rows_backward_kernel, backward, {**constants, "BLOCK": 1024 // dtype.itemsize}),
    ]


def _between_axes(out_dtype, grad_dtype):
    """A specimen for gradients along one axis after the other: the axis in turn has weights."""
    tables, sizes = (dtypes.int32, dtypes.int32), (64, 256, (64, 1), (4096 * 256, 64 * 256, 256))
    args = (out_dtype, grad_dtype, *tables, *tables, None, dtypes.float32, 1, 128, *sizes)
    constants = {"COMPUTE": COMPUTE[out_dtype], "WIDE": False, "BLOCK": 1024 // out_dtype.itemsize}
    return Specimen(_interpolate_rows_backward_kernel, args, constants)


SPECIMENS = [
    _between_axes(dtypes.float32, dtypes.bfloat16),
    _between_axes(dtypes.bfloat16, dtypes.float32),
    *_rows_specimens(dtypes.float16, 2, 21),
    *_rows_specimens(dtypes.bfloat16, 1, 64, wide=True),
    *_rows_specimens(dtypes.float64, 4, 64),
    *_specimens(dtypes.uint8, 1, 2),
    *_specimens(dtypes.bfloat16, 1, 3),
    *_specimens(dtypes.float32, 2, 2, wide=True),
    *_specimens(dtypes.float16, 2, 3),
    *_specimens(dtypes.float64, 4, 2),
    *_specimens(dtypes.float32, 2, 1),
]
