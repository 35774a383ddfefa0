"""Reductions and the walk that they share (walk.py decides it): rows of a tile are kept, columns reduced.

    counts = (num_kept, num_tiles, tiles_per_split, num_inner_blocks, inner_size)
    kept, outer, inner = sizes, then strides, of the dimensions in each group, inner ones first

Program (i, s) reduces split s of block i of the kept elements and stores at s · num_kept + kept. With more than one
split these are partial results, which a second launch of the same kernel reduces in its turn. Each thread accumulates
its own lanes over the tiles; only at the end do lanes meet.

A product whose sum is taken across lanes is rounded by itself, with mul_rn. The compiler would join x·y with the first
addition of another lane's product, so that of two lanes each had its own exact and the other's rounded: they would not
agree on the sum, and where all that hold it store it, the last one would decide.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE

_NONE = tl.constexpr(0x7FFFFFFF)  # the index of a lane that has seen nothing


# --- the walk ---------------------------------------------------------------------------------------------------------
@triton.jit
def _offset(index, group, RANK: tl.constexpr):
    """In memory, of the element with this flat index in a group of dimensions."""
    if RANK == 1:
        offset = index * group[1]
    else:
        offset = (index % group[0]) * group[RANK]
        index = index // group[0]
        for k in tl.static_range(1, RANK):
            if k == RANK - 1:
                offset += index * group[RANK + k]
            else:
                offset += (index % group[k]) * group[RANK + k]
                index = index // group[k]
    return offset


@triton.jit
def _kept_rows(counts, WIDE: tl.constexpr, BLOCK_KEPT: tl.constexpr):
    """Flat indices of this program's kept elements, and which of them exist."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    rows = block * BLOCK_KEPT + tl.arange(0, BLOCK_KEPT)
    return rows, rows < counts[0]


@triton.jit
def _stored_at(counts, rows, WIDE: tl.constexpr):
    split = tl.program_id(1)
    if WIDE:
        split = split.to(tl.int64)
    return split * counts[0] + rows


@triton.jit
def _split(counts):
    """The first tile of this program's split, and the one after its last."""
    first = tl.program_id(1) * counts[2]
    return first, tl.minimum(first + counts[2], counts[1])


@triton.jit
def _columns(
    tile,
    counts,
    outer,
    inner,
    OUTER_RANK: tl.constexpr,
    INNER_RANK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """Columns of a tile: their inner indices, their offsets in memory, which of them exist."""
    if OUTER_RANK == 0:
        block = tile
    else:
        block = tile % counts[3]
    if WIDE:
        block = tl.cast(block, tl.int64)
    columns = block * BLOCK_INNER + tl.arange(0, BLOCK_INNER)
    offsets = _offset(columns, inner, INNER_RANK)
    if OUTER_RANK != 0:
        outer_index = tile // counts[3]
        if WIDE:
            outer_index = outer_index.to(tl.int64)
        offsets += _offset(outer_index, outer, OUTER_RANK)
    return columns, offsets, columns < counts[4]


# --- sum, mean, prod, amax, amin, all, any ----------------------------------------------------------------------------
@triton.jit
def _multiply(a, b):
    return a * b


@triton.jit
def _greatest(values):
    """Per row; NaN if there is one."""
    if values.dtype.is_floating():
        is_nan = values != values
        result = tl.max(tl.where(is_nan, -float("inf"), values), 1)
        result = tl.where(tl.max(is_nan.to(tl.int32), 1) != 0, float("nan"), result)
    else:
        result = tl.max(values, 1)
    return result


@triton.jit
def _least(values):
    """Per row; NaN if there is one."""
    if values.dtype.is_floating():
        is_nan = values != values
        result = tl.min(tl.where(is_nan, float("inf"), values), 1)
        result = tl.where(tl.max(is_nan.to(tl.int32), 1) != 0, float("nan"), result)
    else:
        result = tl.min(values, 1)
    return result


def _reduction_name(specialization):
    constants = specialization.constants
    return f"_{'test_' if constants['TEST'] else ''}{constants['OP']}_reduce_kernel"


@triton.jit(repr=_reduction_name)
def _reduce_kernel(
    out_ptr,
    x_ptr,
    divisor,
    counts,
    kept,
    outer,
    inner,
    OP: tl.constexpr,
    TEST: tl.constexpr,
    IDENTITY: tl.constexpr,
    COMPUTE: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    KEPT_RANK: tl.constexpr,
    OUTER_RANK: tl.constexpr,
    INNER_RANK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """OP: "sum" | "prod" | "max" | "min", of x, or with TEST of x ≠ 0; the result is divided by divisor unless None."""
    rows, row_mask = _kept_rows(counts, WIDE, BLOCK_KEPT)
    row_offsets = _offset(rows, kept, KEPT_RANK)
    accumulator = tl.full((BLOCK_KEPT, BLOCK_INNER), IDENTITY, ACCUMULATE)
    first, last = _split(counts)
    for tile in range(first, last):
        _, offsets, column_mask = _columns(tile, counts, outer, inner, OUTER_RANK, INNER_RANK, WIDE, BLOCK_INNER)
        mask = row_mask[:, None] & column_mask[None, :]
        loaded = tl.load(x_ptr + row_offsets[:, None] + offsets[None, :], mask=mask, other=0)
        if TEST:
            values = (loaded.to(COMPUTE) != 0).to(ACCUMULATE)
        else:
            values = loaded.to(ACCUMULATE)
        if IDENTITY != 0:  # what loads leave out is 0 already
            values = tl.where(mask, values, IDENTITY)
        if OP == "sum":
            accumulator += values
        elif OP == "prod":
            accumulator *= values
        elif OP == "max":
            accumulator = tl.where((values > accumulator) | (values != values), values, accumulator)
        else:
            accumulator = tl.where((values < accumulator) | (values != values), values, accumulator)
    if OP == "sum":
        result = tl.sum(accumulator, 1)
    elif OP == "prod":
        result = tl.reduce(accumulator, 1, _multiply)
    elif OP == "max":
        result = _greatest(accumulator)
    else:
        result = _least(accumulator)
    if divisor is not None:
        result = libdevice.div_rn(result, tl.zeros_like(result) + divisor)
    tl.store(out_ptr + _stored_at(counts, rows, WIDE), result.to(out_ptr.dtype.element_ty), mask=row_mask)


# --- argmax, argmin ---------------------------------------------------------------------------------------------------
@triton.jit
def _arg_kernel(
    index_ptr,
    value_ptr,
    x_ptr,
    x_index_ptr,
    counts,
    kept,
    outer,
    inner,
    LEAST: tl.constexpr,
    LOWEST: tl.constexpr,
    ACCUMULATE: tl.constexpr,
    KEPT_RANK: tl.constexpr,
    OUTER_RANK: tl.constexpr,
    INNER_RANK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """The index of the greatest; with LEAST of the least, by reversing the order of values. NaN wins; first of equals.

    x_index_ptr: where x are partial results (their order reversed already), their indices; value_ptr: None at the end.
    """
    rows, row_mask = _kept_rows(counts, WIDE, BLOCK_KEPT)
    row_offsets = _offset(rows, kept, KEPT_RANK)
    best = tl.full((BLOCK_KEPT, BLOCK_INNER), LOWEST, ACCUMULATE)
    index = tl.full((BLOCK_KEPT, BLOCK_INNER), _NONE, tl.int64 if WIDE else tl.int32)
    first, last = _split(counts)
    for tile in range(first, last):
        columns, offsets, column_mask = _columns(tile, counts, outer, inner, OUTER_RANK, INNER_RANK, WIDE, BLOCK_INNER)
        mask = row_mask[:, None] & column_mask[None, :]
        offsets = row_offsets[:, None] + offsets[None, :]
        values = tl.load(x_ptr + offsets, mask=mask, other=0).to(ACCUMULATE)
        if x_index_ptr is not None:
            positions = tl.load(x_index_ptr + offsets, mask=mask, other=0).to(index.dtype)
        else:
            positions = tl.broadcast_to(columns[None, :].to(index.dtype), (BLOCK_KEPT, BLOCK_INNER))
            if LEAST:
                values = -1 - values if values.dtype.is_int() else values * -1.0
        better = (best == best) & ~(values <= best)  # NaN is better than all but NaN
        index = tl.where(better & mask, positions, index)
        best = tl.where(better & mask, values, best)
    greatest = _greatest(best)
    ties = (best == greatest[:, None]) | (best != best)
    result = tl.min(tl.where(ties, index, _NONE), 1)
    result = tl.where(result == _NONE, first * BLOCK_INNER, result)  # all of them are as low as can be
    at = _stored_at(counts, rows, WIDE)
    tl.store(index_ptr + at, result.to(tl.int64), mask=row_mask)
    if value_ptr is not None:
        tl.store(value_ptr + at, greatest, mask=row_mask)


# --- logsumexp --------------------------------------------------------------------------------------------------------
@triton.jit
def _scaled(total, maximum, new_maximum):
    """total·exp(maximum − new_maximum), where −inf − (−inf) and inf − inf count as 0."""
    return tl.where(maximum == new_maximum, total, total * libdevice.exp(maximum - new_maximum))


@triton.jit
def _logsumexp_kernel(
    out_ptr,
    total_ptr,
    x_ptr,
    x_total_ptr,
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
    """log Σ exp x in one pass; with total_ptr its two parts m = max x and Σ exp(x − m), as x and x_total may be."""
    rows, row_mask = _kept_rows(counts, WIDE, BLOCK_KEPT)
    row_offsets = _offset(rows, kept, KEPT_RANK)
    maximum = tl.full((BLOCK_KEPT, BLOCK_INNER), -float("inf"), ACCUMULATE)
    total = tl.zeros((BLOCK_KEPT, BLOCK_INNER), ACCUMULATE)
    first, last = _split(counts)
    for tile in range(first, last):
        _, offsets, column_mask = _columns(tile, counts, outer, inner, OUTER_RANK, INNER_RANK, WIDE, BLOCK_INNER)
        mask = row_mask[:, None] & column_mask[None, :]
        offsets = row_offsets[:, None] + offsets[None, :]
        values = tl.load(x_ptr + offsets, mask=mask, other=-float("inf")).to(ACCUMULATE)
        if x_total_ptr is not None:
            added = tl.load(x_total_ptr + offsets, mask=mask, other=0).to(ACCUMULATE)
        else:
            added = mask.to(ACCUMULATE)
        # One of the two is the maximum and keeps its weight, so one exponential is enough.
        rises = (values > maximum) | (values != values)
        ones = tl.full((BLOCK_KEPT, BLOCK_INNER), 1, ACCUMULATE)
        shrink = _scaled(ones, tl.where(rises, maximum, values), tl.where(rises, values, maximum))
        total = tl.where(rises, total * shrink + added, total + added * shrink)
        maximum = tl.where(rises, values, maximum)
    greatest = _greatest(maximum)
    total = tl.sum(_scaled(total, maximum, tl.broadcast_to(greatest[:, None], (BLOCK_KEPT, BLOCK_INNER))), 1)
    at = _stored_at(counts, rows, WIDE)
    if total_ptr is not None:
        tl.store(out_ptr + at, greatest, mask=row_mask)
        tl.store(total_ptr + at, total, mask=row_mask)
    else:
        result = greatest + libdevice.log(total)
        tl.store(out_ptr + at, result.to(out_ptr.dtype.element_ty), mask=row_mask)


# --- cumsum -----------------------------------------------------------------------------------------------------------
@triton.jit
def _cumsum_kernel(
    out_ptr,
    x_ptr,
    sums_ptr,
    counts,
    kept,
    out_kept,
    inner,
    out_stride,
    ACCUMULATE: tl.constexpr,
    KEPT_RANK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """Running sums along the inner dimension. sums_ptr: (splits, kept) sums of the splits, None for one split."""
    rows, row_mask = _kept_rows(counts, WIDE, BLOCK_KEPT)
    x_rows = x_ptr + _offset(rows, kept, KEPT_RANK)[:, None]
    out_rows = out_ptr + _offset(rows, out_kept, KEPT_RANK)[:, None]
    if sums_ptr is not None:
        splits = tl.arange(0, BLOCK_SPLITS)
        before = row_mask[:, None] & (splits < tl.program_id(1))[None, :]
        sums = tl.load(sums_ptr + splits[None, :] * counts[0] + rows[:, None], mask=before, other=0)
        carry = tl.sum(sums, 1, keep_dims=True)
    else:
        carry = tl.zeros((BLOCK_KEPT, 1), ACCUMULATE)
    first, last = _split(counts)
    for tile in range(first, last):
        columns = tile * BLOCK_INNER + tl.arange(0, BLOCK_INNER)
        if WIDE:
            columns = tl.cast(tile, tl.int64) * BLOCK_INNER + tl.arange(0, BLOCK_INNER)
        mask = row_mask[:, None] & (columns < counts[4])[None, :]
        values = tl.load(x_rows + (columns * inner[1])[None, :], mask=mask, other=0).to(ACCUMULATE)
        running = tl.cumsum(values, 1) + carry
        tl.store(out_rows + (columns * out_stride)[None, :], running.to(out_ptr.dtype.element_ty), mask=mask)
        carry += tl.sum(values, 1, keep_dims=True)  # two dimensions: Triton 3.6 cannot compile it with one


_ROWS = {"KEPT_RANK": 1, "OUTER_RANK": 1, "INNER_RANK": 1, "WIDE": False, "BLOCK_KEPT": 2, "BLOCK_INNER": 1024}
_COLUMNS = {"KEPT_RANK": 2, "OUTER_RANK": 2, "INNER_RANK": 3, "WIDE": True, "BLOCK_KEPT": 128, "BLOCK_INNER": 16}
_ROW_ARGS = ((4096, 7, 7, 7, 7168), (4096, 7168), (1, 0), (7168, 1))
_COLUMN_ARGS = ((640, 70, 7, 7, 105), (64, 10, 1, 7168), (5, 2, 100000, 716800), (3, 5, 7, 128, 500, 3000))


def _op(op, dtype, accumulate, identity, out, test=False, divisor=None, walk=(_ROW_ARGS, _ROWS)):
    constants = {
        "OP": op,
        "TEST": test,
        "IDENTITY": identity,
        "COMPUTE": COMPUTE[dtype],
        "ACCUMULATE": accumulate,
        **walk[1],
    }
    return Specimen(_reduce_kernel, (out, dtype, divisor, *walk[0]), constants)


_WALKS = [(_ROW_ARGS, _ROWS), (_COLUMN_ARGS, _COLUMNS)]
_FLOAT_TYPES = [(dtypes.bfloat16, dtypes.float32, tl.float32), (dtypes.float64, dtypes.float64, tl.float64)]

SPECIMENS = [
    *(_op("sum", dtypes.bfloat16, tl.float32, 0, dtypes.bfloat16, divisor=3.0, walk=walk) for walk in _WALKS),
    *(_op("sum", dtypes.float64, tl.float64, 0, dtypes.float64, divisor=3.0, walk=walk) for walk in _WALKS),
    _op("sum", dtypes.bool_, tl.int64, 0, dtypes.int64),
    _op("prod", dtypes.float32, tl.float32, 1, dtypes.float32),
    _op("prod", dtypes.int32, tl.int64, 1, dtypes.int64),
    *(_op(op, dtypes.float16, tl.float32, float("inf"), dtypes.float16) for op in ("max", "min")),
    *(_op(op, dtypes.int64, tl.int64, -(2**63), dtypes.int64) for op in ("max", "min")),
    *(
        _op("max", dtype, tl.int32, 0, dtypes.bool_, test=True)
        for dtype in (dtypes.bool_, dtypes.bfloat16, dtypes.int64)
    ),
    *(
        Specimen(
            _arg_kernel,
            (dtypes.int64, partial, dtype, index, *args),
            {"LEAST": least, "LOWEST": lowest, "ACCUMULATE": accumulate, **constants},
        )
        for dtype, partial, accumulate, lowest in (
            (dtypes.bfloat16, dtypes.float32, tl.float32, -float("inf")),
            (dtypes.uint8, None, tl.int32, -(2**31)),
        )
        for index, least in ((None, True), (dtypes.int64, False))
        for args, constants in _WALKS
    ),
    *(
        Specimen(_logsumexp_kernel, (out, total, dtype, total, *args), {"ACCUMULATE": accumulate, **constants})
        for dtype, out, accumulate in _FLOAT_TYPES
        for total in (None, out)
        for args, constants in _WALKS
    ),
    *(
        Specimen(
            _cumsum_kernel,
            (out, dtype, sums, *walk),
            {
                "ACCUMULATE": accumulate,
                "KEPT_RANK": len(walk[1]) // 2,
                "WIDE": False,
                "BLOCK_KEPT": block_kept,
                "BLOCK_INNER": block_inner,
                "BLOCK_SPLITS": 128,
            },
        )
        for walk, block_kept, block_inner in (
            (((640, 70, 7, 70, 71680), (64, 10, 1, 7168), (64, 10, 1, 64), (71680, 64), 64), 2, 1024),
            (((105, 1, 1, 1, 4), (105, 1), (105, 1), (4, 105), 105), 128, 4),
        )
        for dtype, out, total, accumulate in (
            (dtypes.float32, dtypes.float32, dtypes.float32, tl.float32),
            (dtypes.bfloat16, dtypes.bfloat16, dtypes.float32, tl.float32),
            (dtypes.int32, dtypes.int64, dtypes.int64, tl.int64),
        )
        for sums in (None, total)
    ),
]
