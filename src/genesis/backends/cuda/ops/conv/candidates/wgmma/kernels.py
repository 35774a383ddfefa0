"""Float32 weights as sums of two float16 parts: what the float32-accurate kernels on tensor cores multiply with.

    w · scale = high + low,   |w · scale − high − low| ≤ 2⁻²² |w · scale|, or 2⁻²⁵ where that is more

The scale, a power of two per result's channel, brings the largest magnitude to [2¹⁴, 2¹⁵), so that low needs no scale
of its own and low · high + high · low + high · high is one chain of sums (Ootomo & Yokota 2022, arXiv:2203.03341).
Infinities are left out of the scale and stand in low, with ±1 in high: so infinite times finite, infinite and zero come
out as in float32. NaN stands in low.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen

_INFINITY: tl.constexpr = tl.constexpr(0x7F800000)  # the magnitudes from here up are no numbers
_LARGEST_DENORMAL_POWER: tl.constexpr = tl.constexpr(0x00400000)  # the bits of 2 ** −127
_GREATEST_SCALE: tl.constexpr = tl.constexpr(126)  # as a power of two; with it, denormal numbers are held exactly


@triton.jit
def _magnitude(values):
    """The bits of |values|, which are ordered as the numbers are; 0 for infinities and NaN."""
    bits = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    return tl.where(bits < _INFINITY, bits, 0)


@triton.jit
def _scale_exponent(magnitude):
    """Exponent of the scale for a row with this largest magnitude."""
    exponent = tl.maximum(tl.minimum(14 + 127 - (magnitude >> 23), _GREATEST_SCALE), 14 - _GREATEST_SCALE)
    return tl.where(magnitude > 0, exponent, 0)


@triton.jit
def _power_of_2(exponent):
    """2^exponent as float32; exponent within −149 … 127."""
    denormal = _LARGEST_DENORMAL_POWER >> tl.maximum(-127 - exponent, 0)
    return tl.where(exponent >= -126, (exponent + 127) << 23, denormal).to(tl.float32, bitcast=True)


@triton.jit
def _split(values, scale):
    """(high, low): float16 parts of values · scale."""
    scaled = values * scale
    high = scaled.to(tl.float16)
    low = (scaled - high.to(tl.float32)).to(tl.float16)
    special = (values.to(tl.int32, bitcast=True) & 0x7FFFFFFF) >= _INFINITY
    sign = tl.where(values > 0, 1.0, tl.where(values < 0, -1.0, 0.0)).to(tl.float16)
    return tl.where(special, sign, high), tl.where(special, values.to(tl.float16), low)


@triton.jit
def _weights(weight_ptr, rows, elements, num_rows, num_taps, num_channels, strides, PADDED: tl.constexpr):
    """The tile (rows, elements) of the weight, its elements counted as tap · PADDED + channel."""
    channels = elements % PADDED
    taps = elements // PADDED
    mask = (rows < num_rows)[:, None] & ((taps < num_taps) & (channels < num_channels))[None, :]
    offsets = (rows * strides[0])[:, None] + (taps * strides[1] + channels * strides[2])[None, :]
    return tl.load(weight_ptr + offsets, mask=mask, other=0)


@triton.jit
def _permuted(values, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """In each 16 channels, 4 i + j (j < 4) goes to the place 2 i + j % 2 + 8 (j // 2).

    A thread of the tensor core then finds its four terms side by side in the activations.
    """
    groups = tl.reshape(values, (ROWS, BLOCK // 16, 4, 2, 2))
    return tl.reshape(tl.permute(groups, (0, 1, 3, 2, 4)), (ROWS, BLOCK))


@triton.jit
def _split_weight_kernel(
    high_ptr,
    low_ptr,
    inverse_ptr,
    weight_ptr,
    num_rows,
    num_taps,
    num_channels,
    strides,
    PADDED: tl.constexpr,
    RAISED: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Both parts of a weight: (rows, taps, PADDED) without gaps, channels in _permuted's order; or the high ones only.

    inverse (rows): 2 ** −RAISED / scale. strides: (row, tap, channel) of the weight. One program per ROWS rows.
    """
    _follow(PDL)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = rows < num_rows
    row_size = num_taps * PADDED
    largest = tl.zeros((ROWS, BLOCK), tl.int32)
    for first in range(0, row_size, BLOCK):
        elements = first + tl.arange(0, BLOCK)
        values = _weights(weight_ptr, rows, elements, num_rows, num_taps, num_channels, strides, PADDED)
        largest = tl.maximum(largest, _magnitude(values))
    exponent = _scale_exponent(tl.max(largest, axis=1))
    tl.store(inverse_ptr + rows, _power_of_2(-RAISED - exponent), mask=row_mask)
    scale = _power_of_2(exponent)[:, None]
    for first in range(0, row_size, BLOCK):
        elements = first + tl.arange(0, BLOCK)
        values = _weights(weight_ptr, rows, elements, num_rows, num_taps, num_channels, strides, PADDED)
        targets = rows.to(tl.int64)[:, None] * row_size + elements[None, :]
        mask = row_mask[:, None] & (elements < row_size)[None, :]
        if PARTS == 2:
            high, low = _split(values, scale)
            tl.store(low_ptr + targets, _permuted(low, ROWS, BLOCK), mask=mask)
        else:
            high = (values * scale).to(tl.float16)
        tl.store(high_ptr + targets, _permuted(high, ROWS, BLOCK), mask=mask)


_f32, _f16 = dtypes.float32, dtypes.float16
SPECIMENS = [
    Specimen(
        _split_weight_kernel,
        (_f16, _f16, _f32, _f32, 64, 9, 60, strides),
        {"PADDED": 64, "RAISED": 16, "PARTS": parts, "ROWS": rows, "BLOCK": 1024, "num_warps": 8},
    )
    for rows, strides, parts in ((1, (540, 60, 1), 2), (8, (1, 60, 540), 2), (1, (540, 60, 1), 1))
]
