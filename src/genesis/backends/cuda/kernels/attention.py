"""Attention without the matrix of scores in memory: softmax runs along the keys, block by block.

Sources: Dao et al. 2022, arXiv:2205.14135; Dao 2023, arXiv:2307.08691 (order of the loops, two backward kernels).
Scores are kept in units of log 2, because exp2 is what the hardware has: s = scale · log₂e · q·kᵀ (+ log₂e · mask).
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.kernels.linalg import _batch_offset
from genesis.backends.cuda.kernels.pointwise import COMPUTE
from genesis.backends.cuda.launch import Specimen
from genesis.backends.cuda.tiles import DOT_PRECISION

LOG2_E = 1.4426950408889634
_LOG2_E = tl.constexpr(LOG2_E)


@triton.jit
def _load(ptr, rows, columns, strides, num_rows, SIZE: tl.constexpr, CHECK: tl.constexpr, BLOCK: tl.constexpr):
    """rows × columns of a matrix of SIZE columns, zero outside; rows are only checked where CHECK says so."""
    ptrs = ptr + rows[:, None].to(tl.int64) * strides[0] + columns[None, :] * strides[1]
    if CHECK:
        values = tl.load(ptrs, mask=(rows < num_rows)[:, None] & (columns < SIZE)[None, :], other=0)
    elif SIZE < BLOCK:
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
def _key_range(first, num_keys, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """(where blocks of keys begin to need checks, the end of the keys) for queries first … first + BLOCK_M."""
    if CAUSAL:
        plain = min(first + 1, num_keys) // BLOCK_N * BLOCK_N
        end = min(first + BLOCK_M, num_keys)
    else:
        plain = num_keys // BLOCK_N * BLOCK_N
        end = num_keys
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
    key_ptr,
    value_ptr,
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
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """total, weight and largest score of each query, brought forward over the keys from start to end."""
    for first in range(start, end, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)
        key = _load(key_ptr, keys, tl.arange(0, BLOCK_E), key_strides, num_keys, HEAD_SIZE, CHECK, BLOCK_E)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION, out_dtype=total.dtype) * scale
        scores = _admit(
            scores, queries[:, None], keys[None, :], mask_ptr, mask_strides, num_queries, num_keys, CAUSAL, CHECK
        )
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        base = tl.where(new_largest == float("-inf"), 0, new_largest)  # nothing seen yet
        probabilities = tl.exp2(scores - base[:, None])
        fade = tl.exp2(largest - base)
        weight = weight * fade + tl.sum(probabilities, axis=1)
        value = _load(value_ptr, keys, tl.arange(0, BLOCK_V), value_strides, num_keys, VALUE_SIZE, CHECK, BLOCK_V)
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
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program per block of queries of one head. logsumexp is +inf for a query that sees no key."""
    num_blocks = tl.cdiv(num_queries, BLOCK_M)
    batch = tl.program_id(0) // num_blocks
    first = (num_blocks - 1 - tl.program_id(0) % num_blocks) * BLOCK_M  # the longest causal rows start first
    queries = first + tl.arange(0, BLOCK_M)
    query_ptr += _batch_offset(batch, batch_shape, query_batch_strides, BATCH_RANK)
    key_ptr += _batch_offset(batch, batch_shape, key_batch_strides, BATCH_RANK)
    value_ptr += _batch_offset(batch, batch_shape, value_batch_strides, BATCH_RANK)
    if mask_ptr is not None:
        mask_ptr += _batch_offset(batch, batch_shape, mask_batch_strides, BATCH_RANK)
    query = _load(query_ptr, queries, tl.arange(0, BLOCK_E), query_strides, num_queries, HEAD_SIZE, True, BLOCK_E)
    total = tl.zeros((BLOCK_M, BLOCK_V), COMPUTE)
    weight = tl.zeros((BLOCK_M,), COMPUTE)
    largest = tl.full((BLOCK_M,), float("-inf"), COMPUTE)
    plain, end = _key_range(first, num_keys, CAUSAL, BLOCK_M, BLOCK_N)
    total, weight, largest = _attend(
        total, weight, largest, query, queries, 0, plain, key_ptr, value_ptr, mask_ptr, num_queries, num_keys, scale,
        key_strides, value_strides, mask_strides,
        HEAD_SIZE, VALUE_SIZE, CAUSAL, False, PRECISION, BLOCK_N, BLOCK_E, BLOCK_V,
    )  # fmt: skip
    total, weight, largest = _attend(
        total, weight, largest, query, queries, plain, end, key_ptr, value_ptr, mask_ptr, num_queries, num_keys, scale,
        key_strides, value_strides, mask_strides,
        HEAD_SIZE, VALUE_SIZE, CAUSAL, True, PRECISION, BLOCK_N, BLOCK_E, BLOCK_V,
    )  # fmt: skip
    blind = weight == 0
    weight = tl.where(blind, 1, weight)
    total = total / weight[:, None]
    row = batch.to(tl.int64) * num_queries + queries
    present = queries < num_queries
    logsumexp = tl.where(blind, float("inf"), largest + tl.log2(weight))
    tl.store(logsumexp_ptr + row, logsumexp, mask=present)
    columns = tl.arange(0, BLOCK_V)
    mask = present[:, None] & (columns < VALUE_SIZE)[None, :]
    tl.store(out_ptr + row[:, None] * VALUE_SIZE + columns[None, :], total.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_queries"])
def _delta_kernel(
    delta_ptr,
    grad_ptr,
    y_ptr,
    num_queries,
    batch_shape,
    grad_batch_strides,
    y_batch_strides,
    grad_strides,
    y_strides,
    BATCH_RANK: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """delta (batch, query) = Σ grad · y, which is what softmax's backward subtracts."""
    num_blocks = tl.cdiv(num_queries, BLOCK_M)
    batch = tl.program_id(0) // num_blocks
    queries = tl.program_id(0) % num_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    grad_ptr += _batch_offset(batch, batch_shape, grad_batch_strides, BATCH_RANK)
    y_ptr += _batch_offset(batch, batch_shape, y_batch_strides, BATCH_RANK)
    columns = tl.arange(0, BLOCK_V)
    grad = _load(grad_ptr, queries, columns, grad_strides, num_queries, VALUE_SIZE, True, BLOCK_V).to(COMPUTE)
    y = _load(y_ptr, queries, columns, y_strides, num_queries, VALUE_SIZE, True, BLOCK_V).to(COMPUTE)
    row = batch.to(tl.int64) * num_queries + queries
    tl.store(delta_ptr + row, tl.sum(grad * y, axis=1), mask=queries < num_queries)


@triton.jit(do_not_specialize=["num_queries", "num_keys", "scale", "log2_scale"])
def _attention_key_value_grad_kernel(
    grad_key_ptr,
    grad_value_ptr,
    grad_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    mask_ptr,
    logsumexp_ptr,
    delta_ptr,
    num_queries,
    num_keys,
    scale,
    log2_scale,
    batch_shape,
    grad_batch_strides,
    query_batch_strides,
    key_batch_strides,
    value_batch_strides,
    mask_batch_strides,
    grad_strides,
    query_strides,
    key_strides,
    value_strides,
    mask_strides,
    BATCH_RANK: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program per block of BLOCK_M keys, over all queries. Scores stand keys × queries here.

    dv = Pᵀ·g; dP = g·vᵀ; dS = P ∘ (dP − delta); dk = scale · dSᵀ·q
    """
    num_blocks = tl.cdiv(num_keys, BLOCK_M)
    batch = tl.program_id(0) // num_blocks
    first_key = tl.program_id(0) % num_blocks * BLOCK_M
    keys = first_key + tl.arange(0, BLOCK_M)
    grad_ptr += _batch_offset(batch, batch_shape, grad_batch_strides, BATCH_RANK)
    query_ptr += _batch_offset(batch, batch_shape, query_batch_strides, BATCH_RANK)
    key_ptr += _batch_offset(batch, batch_shape, key_batch_strides, BATCH_RANK)
    value_ptr += _batch_offset(batch, batch_shape, value_batch_strides, BATCH_RANK)
    if mask_ptr is not None:
        mask_ptr += _batch_offset(batch, batch_shape, mask_batch_strides, BATCH_RANK)
    head = tl.arange(0, BLOCK_E)
    columns = tl.arange(0, BLOCK_V)
    key = _load(key_ptr, keys, head, key_strides, num_keys, HEAD_SIZE, True, BLOCK_E)
    value = _load(value_ptr, keys, columns, value_strides, num_keys, VALUE_SIZE, True, BLOCK_V)
    grad_key = tl.zeros((BLOCK_M, BLOCK_E), COMPUTE)
    grad_value = tl.zeros((BLOCK_M, BLOCK_V), COMPUTE)
    start = 0
    if CAUSAL:
        start = first_key // BLOCK_N * BLOCK_N
    for first in range(start, num_queries, BLOCK_N):
        queries = first + tl.arange(0, BLOCK_N)
        query = _load(query_ptr, queries, head, query_strides, num_queries, HEAD_SIZE, True, BLOCK_E)
        grad = _load(grad_ptr, queries, columns, grad_strides, num_queries, VALUE_SIZE, True, BLOCK_V)
        row = batch.to(tl.int64) * num_queries + queries
        present = queries < num_queries
        logsumexp = tl.load(logsumexp_ptr + row, mask=present, other=float("inf"))
        delta = tl.load(delta_ptr + row, mask=present, other=0)
        scores = tl.dot(key, tl.trans(query), input_precision=PRECISION, out_dtype=COMPUTE) * log2_scale
        scores = _admit(
            scores, queries[None, :], keys[:, None], mask_ptr, mask_strides, num_queries, num_keys, CAUSAL, CAUSAL
        )
        probabilities = tl.exp2(scores - logsumexp[None, :])
        grad_value = tl.dot(
            probabilities.to(grad.dtype), grad, grad_value, input_precision=PRECISION, out_dtype=COMPUTE
        )
        grad_probabilities = tl.dot(value, tl.trans(grad), input_precision=PRECISION, out_dtype=COMPUTE)
        grad_scores = probabilities * (grad_probabilities - delta[None, :])
        grad_key = tl.dot(grad_scores.to(query.dtype), query, grad_key, input_precision=PRECISION, out_dtype=COMPUTE)
    row = batch.to(tl.int64) * num_keys + keys
    present = (keys < num_keys)[:, None]
    offsets = row[:, None] * HEAD_SIZE + head[None, :]
    result = (grad_key * scale).to(grad_key_ptr.dtype.element_ty)
    tl.store(grad_key_ptr + offsets, result, mask=present & (head < HEAD_SIZE)[None, :])
    offsets = row[:, None] * VALUE_SIZE + columns[None, :]
    result = grad_value.to(grad_value_ptr.dtype.element_ty)
    tl.store(grad_value_ptr + offsets, result, mask=present & (columns < VALUE_SIZE)[None, :])


@triton.jit
def _descend(
    grad_query,
    query,
    grad,
    logsumexp,
    delta,
    queries,
    start,
    end,
    key_ptr,
    value_ptr,
    mask_ptr,
    num_queries,
    num_keys,
    log2_scale,
    key_strides,
    value_strides,
    mask_strides,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    CHECK: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """grad_query, without its factor scale, brought forward over the keys from start to end: dq = scale · dS·k."""
    for first in range(start, end, BLOCK_N):
        keys = first + tl.arange(0, BLOCK_N)
        key = _load(key_ptr, keys, tl.arange(0, BLOCK_E), key_strides, num_keys, HEAD_SIZE, CHECK, BLOCK_E)
        value = _load(value_ptr, keys, tl.arange(0, BLOCK_V), value_strides, num_keys, VALUE_SIZE, CHECK, BLOCK_V)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION, out_dtype=grad_query.dtype) * log2_scale
        scores = _admit(
            scores, queries[:, None], keys[None, :], mask_ptr, mask_strides, num_queries, num_keys, CAUSAL, CHECK
        )
        probabilities = tl.exp2(scores - logsumexp[:, None])
        grad_probabilities = tl.dot(grad, tl.trans(value), input_precision=PRECISION, out_dtype=grad_query.dtype)
        grad_scores = (probabilities * (grad_probabilities - delta[:, None])).to(key.dtype)
        grad_query = tl.dot(grad_scores, key, grad_query, input_precision=PRECISION, out_dtype=grad_query.dtype)
    return grad_query


@triton.jit(do_not_specialize=["num_queries", "num_keys", "scale", "log2_scale"])
def _attention_query_grad_kernel(
    grad_query_ptr,
    grad_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    mask_ptr,
    logsumexp_ptr,
    delta_ptr,
    num_queries,
    num_keys,
    scale,
    log2_scale,
    batch_shape,
    grad_batch_strides,
    query_batch_strides,
    key_batch_strides,
    value_batch_strides,
    mask_batch_strides,
    grad_strides,
    query_strides,
    key_strides,
    value_strides,
    mask_strides,
    BATCH_RANK: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program per block of queries, over the keys that they see."""
    num_blocks = tl.cdiv(num_queries, BLOCK_M)
    batch = tl.program_id(0) // num_blocks
    first = (num_blocks - 1 - tl.program_id(0) % num_blocks) * BLOCK_M
    queries = first + tl.arange(0, BLOCK_M)
    grad_ptr += _batch_offset(batch, batch_shape, grad_batch_strides, BATCH_RANK)
    query_ptr += _batch_offset(batch, batch_shape, query_batch_strides, BATCH_RANK)
    key_ptr += _batch_offset(batch, batch_shape, key_batch_strides, BATCH_RANK)
    value_ptr += _batch_offset(batch, batch_shape, value_batch_strides, BATCH_RANK)
    if mask_ptr is not None:
        mask_ptr += _batch_offset(batch, batch_shape, mask_batch_strides, BATCH_RANK)
    head = tl.arange(0, BLOCK_E)
    query = _load(query_ptr, queries, head, query_strides, num_queries, HEAD_SIZE, True, BLOCK_E)
    grad = _load(grad_ptr, queries, tl.arange(0, BLOCK_V), grad_strides, num_queries, VALUE_SIZE, True, BLOCK_V)
    row = batch.to(tl.int64) * num_queries + queries
    present = queries < num_queries
    logsumexp = tl.load(logsumexp_ptr + row, mask=present, other=float("inf"))
    delta = tl.load(delta_ptr + row, mask=present, other=0)
    grad_query = tl.zeros((BLOCK_M, BLOCK_E), COMPUTE)
    plain, end = _key_range(first, num_keys, CAUSAL, BLOCK_M, BLOCK_N)
    grad_query = _descend(
        grad_query, query, grad, logsumexp, delta, queries, 0, plain, key_ptr, value_ptr, mask_ptr,
        num_queries, num_keys, log2_scale, key_strides, value_strides, mask_strides,
        HEAD_SIZE, VALUE_SIZE, CAUSAL, False, PRECISION, BLOCK_N, BLOCK_E, BLOCK_V,
    )  # fmt: skip
    grad_query = _descend(
        grad_query, query, grad, logsumexp, delta, queries, plain, end, key_ptr, value_ptr, mask_ptr,
        num_queries, num_keys, log2_scale, key_strides, value_strides, mask_strides,
        HEAD_SIZE, VALUE_SIZE, CAUSAL, True, PRECISION, BLOCK_N, BLOCK_E, BLOCK_V,
    )  # fmt: skip
    result = (grad_query * scale).to(grad_query_ptr.dtype.element_ty)
    mask = present[:, None] & (head < HEAD_SIZE)[None, :]
    tl.store(grad_query_ptr + row[:, None] * HEAD_SIZE + head[None, :], result, mask=mask)


def _specimens(dtype, causal, mask, size, block):
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    padded = 1 << (size - 1).bit_length()
    matrix = (size, 1)
    batches = ((8,), (1024 * size,), (1024 * size,), (1024 * size,))
    mask_batch, mask_strides = (None, None) if mask is None else ((0,), (1024, 1))
    common = {"BATCH_RANK": 1, "VALUE_SIZE": size, "COMPUTE": COMPUTE[dtype], "BLOCK_M": block, "BLOCK_V": padded}
    full = {**common, "HEAD_SIZE": size, "CAUSAL": causal, "PRECISION": DOT_PRECISION[dtype]}
    full |= {"BLOCK_N": 32, "BLOCK_E": padded, "num_stages": 2}
    forward = (
        dtype,
        wide,
        dtype,
        dtype,
        dtype,
        mask,
        1000,
        1000,
        0.1,
        *batches,
        mask_batch,
        *[matrix] * 3,
        mask_strides,
    )
    operands = (dtype, dtype, dtype, dtype, mask, wide, wide, 1000, 1000, 0.1, 0.1)
    strides = (*batches, (1024 * size,), mask_batch, *[matrix] * 4, mask_strides)
    delta = (wide, dtype, dtype, 1000, (8,), (1024 * size,), (1024 * size,), matrix, matrix)
    return [
        Specimen(_attention_kernel, forward, full),
        Specimen(_delta_kernel, delta, common),
        Specimen(_attention_key_value_grad_kernel, (dtype, dtype, *operands, *strides), full),
        Specimen(_attention_query_grad_kernel, (dtype, *operands, *strides), full),
    ]


SPECIMENS = [
    *_specimens(dtypes.bfloat16, True, None, 64, 64),
    *_specimens(dtypes.float16, False, dtypes.bool_, 80, 64),
    *_specimens(dtypes.float32, False, dtypes.float32, 32, 32),
    *_specimens(dtypes.float64, True, None, 32, 32),
]
