"""The statistics of a result's channels, by a pass over it: rows (pixels) × channels, channels innermost.

Each program sums every so-manieth block of rows, the last one first: it is what a kernel left in the cache last.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _folded(num_rows, num_channels, FOLD: tl.constexpr, VECTOR: tl.constexpr):
    """The matrix with FOLD rows side by side as one row: rows and columns. VECTOR divides the columns.

    The compiler then knows that rows begin where wide loads may, and blocks of columns have no part outside.
    """
    return num_rows // FOLD, num_channels * FOLD // VECTOR * VECTOR


@triton.jit
def _channels_of(columns, num_channels, FOLD: tl.constexpr):
    """The channels of columns of the folded matrix."""
    if FOLD == 1:
        channels = columns
    else:
        channels = columns % num_channels
    return channels


@triton.jit
def _tile(block, num_rows, num_columns, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN: tl.constexpr):
    """A block's rows, its columns, their elements, and which of them there are. EVEN: all blocks of rows are whole."""
    first = block.to(tl.int64) * BLOCK_M
    places = tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = columns < num_columns
    inside = tl.broadcast_to(mask[None, :], (BLOCK_M, BLOCK_N))
    if not EVEN:
        inside = inside & (first + places < num_rows)[:, None]
    elements = first * num_columns + (places[:, None] * num_columns + columns[None, :])
    return first + places, columns, mask, elements, inside


@triton.jit
def _count_of(index, num_parts, num_rows, BLOCK_M: tl.constexpr):
    """How many rows program `index` of num_parts sums: blocks index, index + num_parts, …, the last one cut off."""
    num_blocks = tl.cdiv(num_rows, BLOCK_M)
    rounds = num_blocks // num_parts  # divided once, and not for each index
    left = num_blocks - rounds * num_parts
    last = tl.where(left > 0, left, num_parts) - 1  # the program that has the last block
    blocks = rounds + tl.where(index < left, 1, 0)
    return blocks * BLOCK_M - tl.where(index == last, num_blocks * BLOCK_M - num_rows, 0)


@triton.jit(do_not_specialize=["num_rows", "num_channels"])
def _statistics_kernel(
    partial_ptr, x_ptr, num_rows, num_channels,
    COMPUTE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FOLD: tl.constexpr, EVEN: tl.constexpr,
    VECTOR: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """partial (3, part, channel): a part's first row, its means less that, its sums of squared deviations from them.

    A program has FOLD parts, side by side. Summed are differences from the first row, so that nothing cancels when the
    mean is large.
    """
    _follow(PDL)
    num_lines, num_columns = _folded(num_rows, num_channels, FOLD, VECTOR)
    index, num_parts = tl.program_id(0), tl.num_programs(0)
    num_blocks = tl.cdiv(num_lines, BLOCK_M)
    first = index.to(tl.int64) * BLOCK_M
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = columns < num_columns
    shift = tl.load(x_ptr + first * num_columns + columns, mask=mask, other=0).to(COMPUTE)
    total = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    squares = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    last = index + (num_blocks - 1 - index) // num_parts * num_parts
    for step in tl.range(0, num_blocks - index, num_parts, num_stages=STAGES):
        _, _, _, elements, inside = _tile(last - step, num_lines, num_columns, BLOCK_M, BLOCK_N, EVEN)
        difference = tl.load(x_ptr + elements, mask=inside, other=0).to(COMPUTE) - shift[None, :]
        if not EVEN:
            difference = tl.where(inside, difference, 0)
        total += difference
        squares += difference * difference
    shifted = tl.sum(total, axis=0)
    mean = libdevice.div_rn(shifted, _count_of(index, num_parts, num_lines, BLOCK_M).to(COMPUTE))
    out, plane = partial_ptr + index * num_columns + columns, num_parts * num_columns
    tl.store(out, shift, mask=mask)
    tl.store(out + plane, mean, mask=mask)
    tl.store(out + 2 * plane, tl.sum(squares, axis=0) - shifted * mean, mask=mask)


def _specimen(dtype):
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    block = {"COMPUTE": COMPUTE[dtype], "BLOCK_M": 16, "BLOCK_N": 64, "FOLD": 1, "EVEN": False, "VECTOR": 8}
    return Specimen(_statistics_kernel, (wide, dtype, 3000, 64), {**block, "STAGES": 3})


SPECIMENS = [_specimen(dtype) for dtype in (dtypes.float64, dtypes.float32, dtypes.bfloat16)]
