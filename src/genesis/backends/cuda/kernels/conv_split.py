"""Float32 as the sum of two float16 parts, with a power-of-two scale: what float32-accurate tensor core products take.

    v · scale = high + low,   |v · scale − high − low| ≤ 2⁻²² |v · scale|, or 2⁻²⁵ where that is more

The scale brings the largest magnitude to [2¹⁴, 2¹⁵), so that low needs no scale of its own and the three products
low · high, high · low, high · high can be summed in one chain (Ootomo & Yokota 2022, arXiv:2203.03341). Activations have
one scale, weights one per output channel.

Float16 has few exponents, so the split watches the range: infinities, NaN, numbers all but 0, and values so small
beside the largest that the parts can't hold them to float32's precision are reported in a flag, and the caller's other
kernel computes the result. Values that are small beside their neighbours in memory are no such case: there, the error
is below float32's own in the sums that they are part of.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch import Specimen

_INFINITY: tl.constexpr = tl.constexpr(0x7F800000)  # the magnitudes from here up are no numbers
_LEAST_EXPONENT: tl.constexpr = tl.constexpr(-100)  # below, the inverse scale is no normal float32 any more
_REACH: tl.constexpr = tl.constexpr(16)  # powers of two between the largest values of all and of a block


@triton.jit
def _magnitude(values):
    """The bits of |values|: integers that are ordered as the magnitudes are, with NaN above infinity."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _exponent(magnitude):
    return (magnitude >> 23) - 127


@triton.jit
def _power_of_2(exponent):
    """As float32; exponent within −126 … 127."""
    return ((exponent + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _scale_exponent(magnitude):
    """Of the scale for this largest magnitude; 0 where there is nothing to scale, or no way to."""
    usable = (magnitude < _INFINITY) & (_exponent(magnitude) >= _LEAST_EXPONENT)
    return tl.where(usable, 14 - _exponent(magnitude), 0)


@triton.jit
def _is_unusable(magnitude):
    """May no scale be made from this largest magnitude? Zero needs none."""
    return (magnitude >= _INFINITY) | ((magnitude > 0) & (_exponent(magnitude) < _LEAST_EXPONENT))


@triton.jit
def _split(values, scale):
    """(high, low): float16 parts of values · scale."""
    values *= scale
    high = values.to(tl.float16)
    low = (values - high.to(tl.float32)).to(tl.float16)
    return high, low


@triton.jit
def _magnitudes_kernel(partial_ptr, flag_ptr, x_ptr, num_elements, blocks_per_program, BLOCK: tl.constexpr):
    """partial (2, programs): the largest magnitude, and the least of the blocks' largest ones above zero. Clears flag."""
    program = tl.program_id(0)
    most = tl.zeros((BLOCK,), tl.int32)
    least = tl.full((), _INFINITY, tl.int32)
    first = program.to(tl.int64) * blocks_per_program * BLOCK
    for i in range(blocks_per_program):
        elements = first + i * BLOCK + tl.arange(0, BLOCK)
        magnitude = _magnitude(tl.load(x_ptr + elements, mask=elements < num_elements, other=0))
        most = tl.maximum(most, magnitude)
        largest = tl.max(magnitude, axis=0)
        least = tl.minimum(least, tl.where(largest > 0, largest, _INFINITY))
    tl.store(partial_ptr + program, tl.max(most, axis=0))
    tl.store(partial_ptr + tl.num_programs(0) + program, least)
    if program == 0:
        tl.store(flag_ptr, 0)


@triton.jit
def _reduced(partial_ptr, num_partials, PARTIALS: tl.constexpr):
    """(the largest magnitude, the least of the blocks' largest) of all that _magnitudes_kernel saw."""
    index = tl.arange(0, PARTIALS)
    mask = index < num_partials
    most = tl.max(tl.load(partial_ptr + index, mask=mask, other=0), axis=0)
    least = tl.min(tl.load(partial_ptr + num_partials + index, mask=mask, other=_INFINITY), axis=0)
    return most, least


@triton.jit
def _split_kernel(
    high_ptr,
    low_ptr,
    inverse_ptr,
    flag_ptr,
    partial_ptr,
    x_ptr,
    num_elements,
    num_partials,
    PARTIALS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Both parts of x, in its order, with one scale; inverse: 1 / scale. Sets flag where they can't stand for x."""
    most, least = _reduced(partial_ptr, num_partials, PARTIALS)
    exponent = _scale_exponent(most)
    if tl.program_id(0) == 0:
        tl.store(inverse_ptr, _power_of_2(-exponent))
        narrow = (least == _INFINITY) | (_exponent(most) - _exponent(least) <= _REACH)
        if _is_unusable(most) | (narrow == 0):
            tl.store(flag_ptr, 1)
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = elements < num_elements
    high, low = _split(tl.load(x_ptr + elements, mask=mask, other=0), _power_of_2(exponent))
    tl.store(high_ptr + elements, high, mask=mask)
    tl.store(low_ptr + elements, low, mask=mask)


@triton.jit
def _split_rows_kernel(
    high_ptr,
    low_ptr,
    inverse_ptr,
    flag_ptr,
    x_ptr,
    num_rows,
    row_size,
    shape,
    strides,
    row_stride,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Both parts of a weight, (rows, taps · columns) without gaps, with a scale per row; inverse: 1 / scale per row.

    shape: (taps, columns); strides: (tap, column) of x, whose rows are row_stride apart. One program per ROWS rows.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = rows < num_rows
    sources = x_ptr + rows.to(tl.int64) * row_stride
    targets = rows.to(tl.int64) * row_size
    most = tl.zeros((ROWS, BLOCK), tl.int32)
    for first in range(0, row_size, BLOCK):
        elements = first + tl.arange(0, BLOCK)
        offsets = elements // shape[1] * strides[0] + elements % shape[1] * strides[1]
        mask = row_mask[:, None] & (elements < row_size)[None, :]
        most = tl.maximum(most, _magnitude(tl.load(sources[:, None] + offsets[None, :], mask=mask, other=0)))
    largest = tl.max(most, axis=1)
    exponent = _scale_exponent(largest)
    tl.store(inverse_ptr + rows, _power_of_2(-exponent), mask=row_mask)
    if tl.max(_is_unusable(largest).to(tl.int32), axis=0) > 0:
        tl.store(flag_ptr, 1)
    scale = _power_of_2(exponent)
    for first in range(0, row_size, BLOCK):
        elements = first + tl.arange(0, BLOCK)
        offsets = elements // shape[1] * strides[0] + elements % shape[1] * strides[1]
        mask = row_mask[:, None] & (elements < row_size)[None, :]
        high, low = _split(tl.load(sources[:, None] + offsets[None, :], mask=mask, other=0), scale[:, None])
        tl.store(high_ptr + targets[:, None] + elements[None, :], high, mask=mask)
        tl.store(low_ptr + targets[:, None] + elements[None, :], low, mask=mask)


_f32, _f16, _i32 = dtypes.float32, dtypes.float16, dtypes.int32
SPECIMENS = [
    Specimen(_magnitudes_kernel, (_i32, _i32, _f32, 100_000, 7), {"BLOCK": 4096, "num_warps": 8}),
    Specimen(
        _split_kernel, (_f16, _f16, _f32, _i32, _i32, _f32, 100_000, 264), {"PARTIALS": 512, "BLOCK": 4096}
    ),
    Specimen(
        _split_rows_kernel, (_f16, _f16, _f32, _i32, _f32, 64, 576, (9, 64), (64, 1), 576), {"BLOCK": 512, "ROWS": 1}
    ),
]
