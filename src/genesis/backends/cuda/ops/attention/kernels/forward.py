"""Attention without the matrix of scores in memory: softmax runs along the keys, block by block.

Sources: Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691 (order of the loops).
Scores are kept in units of log 2, because exp2 is what the hardware has: s = scale · log₂e · q·kᵀ (+ log₂e · mask).

TMA: blocks are moved by the copy engine of sm_90, which needs no threads to work out addresses and puts zeros outside.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.tiles import DOT_PRECISION
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.matmul.kernels import _batch_offset
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE

LOG2_E = 1.4426950408889634
_LOG2_E = tl.constexpr(LOG2_E)
_LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _matrix(ptr, strides, num_rows, SIZE: tl.constexpr, TMA: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The source of _read's blocks: a matrix of SIZE columns, described to the copy engine, or its pointer alone."""
    if TMA:
        matrix = tl.make_tensor_descriptor(ptr, [num_rows, SIZE], [strides[0].to(tl.int64), 1], [ROWS, COLUMNS])
    else:
        matrix = ptr
    return matrix


@triton.jit
def _read(
    matrix,
    first,
    strides,
    num_rows,
    SIZE: tl.constexpr,
    CHECK: tl.constexpr,
    TMA: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Rows from the first on, zero outside of the matrix; without TMA they are only checked where CHECK says so."""
    if TMA:
        values = matrix.load([first, 0])
    else:
        rows, columns = first + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
        ptrs = matrix + rows[:, None].to(tl.int64) * strides[0] + columns[None, :] * strides[1]
        if CHECK:
            values = tl.load(ptrs, mask=(rows < num_rows)[:, None] & (columns < SIZE)[None, :], other=0)
        elif SIZE < COLUMNS:
            values = tl.load(ptrs, mask=(columns < SIZE)[None, :], other=0)
        else:
            values = tl.load(ptrs)
    return values


@triton.jit
def _admit(
    scores, queries, keys, mask_ptr, mask_strides, num_queries, num_keys, CAUSAL: tl.constexpr, CHECK: tl.constexpr
):
    """The scores with the mask applied: −inf where a query (a row or a column of queries) must not see a key.

    queries and keys come as a column and a row, or as a row and a column. Without CHECK all keys are there, and seen by
    all queries as far as CAUSAL is concerned.
    """
    if mask_ptr is not None:
        inside = (queries < num_queries) & (keys < num_keys)
        ptrs = mask_ptr + queries.to(tl.int64) * mask_strides[0] + keys * mask_strides[1]
        mask = tl.load(ptrs, mask=inside, other=0)
        if mask_ptr.dtype.element_ty.is_floating():
            scores += mask.to(scores.dtype) * _LOG2_E
        else:
            scores = tl.where(mask != 0, scores, float("-inf"))
    if CHECK:
        if CAUSAL:
            scores = tl.where((keys < num_keys) & (keys <= queries), scores, float("-inf"))
        else:
            scores = tl.where(keys < num_keys, scores, float("-inf"))
    return scores


@triton.jit
def _key_range(first, start, stop, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Limit keys start … stop for queries first … first + BLOCK_M: (where blocks begin to need checks, the end)."""
    if CAUSAL:
        plain = start + tl.maximum(tl.minimum(first + 1, stop) - start, 0) // BLOCK_N * BLOCK_N
        end = tl.minimum(first + BLOCK_M, stop)
    else:
        plain = start + (stop - start) // BLOCK_N * BLOCK_N
        end = stop
    return plain, end


@triton.jit
def _attend(
    total,
    weight,
    largest,
    query,
    queries,
    start,
    end,
    key_matrix,
    value_matrix,
    mask_ptr,
    num_queries,
    num_keys,
    scale,
    key_strides,
    value_strides,
    mask_strides,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    CHECK: tl.constexpr,
    SCALE_LATE: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """total, weight and largest score of each query, brought forward over the keys from start to end."""
    for first in range(start, end, BLOCK_N):
        key = _read(key_matrix, first, key_strides, num_keys, HEAD_SIZE, CHECK, TMA, BLOCK_N, BLOCK_E)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION, out_dtype=total.dtype)
        if SCALE_LATE and not CHECK:  # the greatest is the same; scaling and subtracting are one instruction
            new_largest = tl.maximum(largest, tl.max(scores, axis=1) * scale)
            base = new_largest
            probabilities = tl.exp2(scores * scale - base[:, None])
        else:
            keys = first + tl.arange(0, BLOCK_N)
            scores = _admit(
                scores * scale, queries[:, None], keys[None, :], mask_ptr, mask_strides, num_queries, num_keys,
                CAUSAL, CHECK,
            )  # fmt: skip
            new_largest = tl.maximum(largest, tl.max(scores, axis=1))
            base = tl.where(new_largest == float("-inf"), 0, new_largest)  # nothing seen yet
            probabilities = tl.exp2(scores - base[:, None])
        fade = tl.exp2(largest - base)
        weight = weight * fade + tl.sum(probabilities, axis=1)
        value = _read(value_matrix, first, value_strides, num_keys, VALUE_SIZE, CHECK, TMA, BLOCK_N, BLOCK_V)
        total = total * fade[:, None]
        total = tl.dot(probabilities.to(value.dtype), value, total, input_precision=PRECISION, out_dtype=total.dtype)
        largest = new_largest
    return total, weight, largest


@triton.jit(do_not_specialize=["num_queries", "num_keys", "scale"])
def _attention_kernel(
    out_ptr,
    logsumexp_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    mask_ptr,
    num_queries,
    num_keys,
    scale,
    batch_shape,
    query_batch_strides,
    key_batch_strides,
    value_batch_strides,
    mask_batch_strides,
    query_strides,
    key_strides,
    value_strides,
    mask_strides,
    BATCH_RANK: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    SCALE_LATE: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program per block of queries of one head.

    logsumexp (batch, num_queries) is natural, as other implementations have it; +inf where a query sees no key.

    SCALE_LATE: the scale is not negative, and there is no mask.
    """
    num_blocks = tl.cdiv(num_queries, BLOCK_M)
    if CAUSAL:  # those with the most keys first, of all heads, so that short ones fill the gaps at the end
        num_heads = tl.num_programs(0) // num_blocks
        batch = tl.program_id(0) % num_heads
        first = (num_blocks - 1 - tl.program_id(0) // num_heads) * BLOCK_M
    else:
        batch = tl.program_id(0) // num_blocks
        first = tl.program_id(0) % num_blocks * BLOCK_M
    queries = first + tl.arange(0, BLOCK_M)
    query_ptr += _batch_offset(batch, batch_shape, query_batch_strides, BATCH_RANK)
    key_ptr += _batch_offset(batch, batch_shape, key_batch_strides, BATCH_RANK)
    value_ptr += _batch_offset(batch, batch_shape, value_batch_strides, BATCH_RANK)
    if mask_ptr is not None:
        mask_ptr += _batch_offset(batch, batch_shape, mask_batch_strides, BATCH_RANK)
    query = _read(query_ptr, first, query_strides, num_queries, HEAD_SIZE, True, False, BLOCK_M, BLOCK_E)
    key_matrix = _matrix(key_ptr, key_strides, num_keys, HEAD_SIZE, TMA, BLOCK_N, BLOCK_E)
    value_matrix = _matrix(value_ptr, value_strides, num_keys, VALUE_SIZE, TMA, BLOCK_N, BLOCK_V)
    total = tl.zeros((BLOCK_M, BLOCK_V), COMPUTE)
    weight = tl.zeros((BLOCK_M,), COMPUTE)
    largest = tl.full((BLOCK_M,), float("-inf"), COMPUTE)
    plain, end = _key_range(first, 0, num_keys, CAUSAL, BLOCK_M, BLOCK_N)
    total, weight, largest = _attend(
        total, weight, largest, query, queries, 0, plain, key_matrix, value_matrix, mask_ptr, num_queries, num_keys,
        scale, key_strides, value_strides, mask_strides,
        HEAD_SIZE, VALUE_SIZE, CAUSAL, False, SCALE_LATE, PRECISION, TMA, BLOCK_N, BLOCK_E, BLOCK_V,
    )  # fmt: skip
    total, weight, largest = _attend(
        total, weight, largest, query, queries, plain, end, key_matrix, value_matrix, mask_ptr, num_queries, num_keys,
        scale, key_strides, value_strides, mask_strides,
        HEAD_SIZE, VALUE_SIZE, CAUSAL, True, SCALE_LATE, PRECISION, TMA, BLOCK_N, BLOCK_E, BLOCK_V,
    )  # fmt: skip
    blind = weight == 0
    weight = tl.where(blind, 1, weight)
    total = total / weight[:, None]
    present = queries < num_queries
    logsumexp = tl.where(blind, float("inf"), (largest + tl.log2(weight)) * _LN_2)
    row = batch.to(tl.int64) * num_queries + queries
    tl.store(logsumexp_ptr + row, logsumexp, mask=present)
    columns = tl.arange(0, BLOCK_V)
    mask = present[:, None] & (columns < VALUE_SIZE)[None, :]
    tl.store(out_ptr + row[:, None] * VALUE_SIZE + columns[None, :], total.to(out_ptr.dtype.element_ty), mask=mask)


def _specimen(dtype, causal, mask, size, block, tma):
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    padded = 1 << (size - 1).bit_length()
    walk = (1024 * size,)
    mask_walk, mask_strides = (None, None) if mask is None else ((0,), (1024, 1))
    constants = {"BATCH_RANK": 1, "HEAD_SIZE": size, "VALUE_SIZE": size, "CAUSAL": causal, "SCALE_LATE": mask is None}
    constants |= {"COMPUTE": COMPUTE[dtype], "PRECISION": DOT_PRECISION[dtype], "TMA": tma, "num_stages": 2}
    constants |= {"BLOCK_M": block, "BLOCK_N": 32, "BLOCK_E": padded, "BLOCK_V": padded}
    sizes, walks = (1000, 1000, 0.1), ((8,), walk, walk, walk, mask_walk)
    args = (dtype, wide, dtype, dtype, dtype, mask, *sizes, *walks, *[(size, 1)] * 3, mask_strides)
    return Specimen(_attention_kernel, args, constants)


SPECIMENS = [
    _specimen(dtypes.bfloat16, True, None, 64, 64, True),
    _specimen(dtypes.float16, False, dtypes.bool_, 80, 64, False),
    _specimen(dtypes.float32, False, dtypes.float32, 32, 32, False),
    _specimen(dtypes.float64, True, None, 32, 32, False),
]
