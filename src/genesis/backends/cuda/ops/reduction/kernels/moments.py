"""Mean and sum of squared deviations, along a walk (see reduction.py); merging after Chan, Golub & LeVeque 1979."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.reduction.kernels.reduction import (
    _COLUMN_ARGS,
    _COLUMNS,
    _FLOAT_TYPES,
    _ROW_ARGS,
    _ROWS,
    _columns,
    _kept_rows,
    _offset,
    _split,
    _stored_at,
)


@triton.jit
def _moments_kernel(
    count_ptr,
    mean_ptr,
    squares_ptr,
    x_ptr,
    counts,
    kept,
    outer,
    inner,
    ACCUMULATE: tl.constexpr,
    KEPT_RANK: tl.constexpr,
    OUTER_RANK: tl.constexpr,
    INNER_RANK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """Per row and split: the number of elements, their mean, Σ (x − mean)².

    Each lane sums deviations from the first value that it saw, so that a mean far from 0 cancels nothing.
    """
    rows, row_mask = _kept_rows(counts, WIDE, BLOCK_KEPT)
    row_offsets = _offset(rows, kept, KEPT_RANK)
    count = tl.zeros((BLOCK_INNER,), ACCUMULATE)
    shift = tl.zeros((BLOCK_KEPT, BLOCK_INNER), ACCUMULATE)
    sums = tl.zeros((BLOCK_KEPT, BLOCK_INNER), ACCUMULATE)
    squares = tl.zeros((BLOCK_KEPT, BLOCK_INNER), ACCUMULATE)
    first, last = _split(counts)
    for tile in range(first, last):
        _, offsets, column_mask = _columns(tile, counts, outer, inner, OUTER_RANK, INNER_RANK, WIDE, BLOCK_INNER)
        mask = row_mask[:, None] & column_mask[None, :]
        values = tl.load(x_ptr + row_offsets[:, None] + offsets[None, :], mask=mask, other=0).to(ACCUMULATE)
        shift = tl.where(mask & (count == 0)[None, :], values, shift)
        count += column_mask.to(ACCUMULATE)
        delta = tl.where(mask, values - shift, 0.0)
        sums += delta
        squares += delta * delta
    count = tl.broadcast_to(count[None, :], (BLOCK_KEPT, BLOCK_INNER))
    offset = sums / tl.maximum(count, 1.0)
    total, mean, squares = _merged(count, shift, offset, squares - sums * offset)
    at = _stored_at(counts, rows, WIDE)
    tl.store(count_ptr + at, total, mask=row_mask)
    tl.store(mean_ptr + at, mean, mask=row_mask)
    tl.store(squares_ptr + at, squares, mask=row_mask)


@triton.jit
def _merged(count, shift, offset, squares):
    """The moments of each row from those of its columns, whose means are shift + offset."""
    pivot = tl.max(tl.where(count > 0, shift, -float("inf")), 1)
    mean = (shift - pivot[:, None]) + offset  # small numbers, whose differences lose nothing
    total = tl.sum(count, 1)
    whole = tl.sum(tl.where(count > 0, libdevice.mul_rn(count, mean), 0.0), 1) / total
    deviation = tl.where(count > 0, mean - whole[:, None], 0.0)
    return total, pivot + whole, tl.sum(squares + count * deviation * deviation, 1)


@triton.jit
def _all_moments(count_ptr, mean_ptr, squares_ptr, rows, num_kept, num_splits, BLOCK_SPLITS: tl.constexpr):
    """The moments of rows from those of all their splits."""
    splits = tl.arange(0, BLOCK_SPLITS)
    offsets = splits[None, :] * num_kept + rows[:, None]
    mask = (rows < num_kept)[:, None] & (splits < num_splits)[None, :]
    count = tl.load(count_ptr + offsets, mask=mask, other=0)
    mean = tl.load(mean_ptr + offsets, mask=mask, other=0)
    squares = tl.load(squares_ptr + offsets, mask=mask, other=0)
    return _merged(count, mean, tl.zeros_like(mean), squares)


@triton.jit
def _variance_kernel(
    out_ptr,
    count_ptr,
    mean_ptr,
    squares_ptr,
    num_kept,
    num_splits,
    correction,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Σ (x − mean)² / max(n − correction, 0)"""
    rows = tl.program_id(0) * BLOCK_KEPT + tl.arange(0, BLOCK_KEPT)
    count, _, squares = _all_moments(count_ptr, mean_ptr, squares_ptr, rows, num_kept, num_splits, BLOCK_SPLITS)
    variance = libdevice.div_rn(squares, tl.maximum(count - correction, 0.0))
    tl.store(out_ptr + rows, variance.to(out_ptr.dtype.element_ty), mask=rows < num_kept)


SPECIMENS = [
    *(
        Specimen(_moments_kernel, (out, out, out, dtype, *args), {"ACCUMULATE": accumulate, **constants})
        for dtype, out, accumulate in _FLOAT_TYPES
        for args, constants in ((_ROW_ARGS, _ROWS), (_COLUMN_ARGS, _COLUMNS))
    ),
    *(
        Specimen(
            _variance_kernel,
            (dtype, out, out, out, 64, 100, 1.0),
            {"BLOCK_KEPT": 16, "BLOCK_SPLITS": 128},
        )
        for dtype, out, _ in _FLOAT_TYPES
    ),
]
