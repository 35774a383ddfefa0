"""The gradients of attention, in the same order every time.

The first kernel walks over the queries for a block of keys, and has the gradients of key and value at its end. On its
way it writes the gradients of the scores, dS, to memory, in the dtype in which the matrix units take them; the second
kernel has only to multiply them with the keys. Working dS out once more there would cost two more products and an
exponential per score, which takes longer than the memory does, and additions by atomics come in any order. Only a slab
of dS is there at a time: ../attention.py says which.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.tiles import DOT_PRECISION
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.attention.kernels.forward import _LOG2_E, _admit, _key_range, _matrix, _read
from genesis.backends.cuda.ops.matmul.kernels import _batch_offset
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _read_part(vector, first, size, TMA: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK elements of a vector, or of its descriptor, from the first on, zero beyond its end."""
    if TMA:
        values = vector.load([first])
    else:
        positions = first + tl.arange(0, BLOCK)
        values = tl.load(vector + positions, mask=positions < size, other=0)
    return values


@triton.jit(do_not_specialize=["num_queries", "row_size"])
def _delta_kernel(
    delta_ptr,
    log2sumexp_ptr,
    grad_ptr,
    y_ptr,
    logsumexp_ptr,
    num_queries,
    row_size,
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
    """delta = Σ grad · y, which is what softmax's backward subtracts, and logsumexp in units of log 2.

    delta, log2sumexp: (batch, row_size), so that the copy engine can fetch their rows; logsumexp: (batch, num_queries).
    """
    num_blocks = tl.cdiv(num_queries, BLOCK_M)
    batch = tl.program_id(0) // num_blocks
    first = tl.program_id(0) % num_blocks * BLOCK_M
    grad_ptr += _batch_offset(batch, batch_shape, grad_batch_strides, BATCH_RANK)
    y_ptr += _batch_offset(batch, batch_shape, y_batch_strides, BATCH_RANK)
    grad = _read(grad_ptr, first, grad_strides, num_queries, VALUE_SIZE, True, False, BLOCK_M, BLOCK_V).to(COMPUTE)
    y = _read(y_ptr, first, y_strides, num_queries, VALUE_SIZE, True, False, BLOCK_M, BLOCK_V).to(COMPUTE)
    queries = first + tl.arange(0, BLOCK_M)
    present, batch = queries < num_queries, batch.to(tl.int64)
    logsumexp = tl.load(logsumexp_ptr + batch * num_queries + queries, mask=present, other=0)
    offsets = batch * row_size + queries
    tl.store(delta_ptr + offsets, tl.sum(libdevice.mul_rn(grad, y), axis=1), mask=present)
    tl.store(log2sumexp_ptr + offsets, logsumexp * _LOG2_E, mask=present)


@triton.jit(
    do_not_specialize=["num_queries", "num_keys", "row_size", "first_batch", "first_key", "scale", "log2_scale"]
)
def _attention_key_value_grad_kernel(
    grad_key_ptr,
    grad_value_ptr,
    grad_scores_ptr,
    grad_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    mask_ptr,
    log2sumexp_ptr,
    delta_ptr,
    num_queries,
    num_keys,
    row_size,
    slab_rows,
    slab_columns,
    first_batch,
    first_key,
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
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program per block of BLOCK_M keys of the slab, over all queries. Scores stand keys × queries here.

    dv = Pᵀ·g; dP = g·vᵀ; dS = P ∘ (dP − delta); dk = scale · dSᵀ·q
    grad_scores: (heads, slab_rows, slab_columns), of the keys of the slab and of all queries, in whole blocks.
    """
    num_blocks = slab_rows // BLOCK_M
    if CAUSAL:  # those with the most queries first, of all heads
        num_heads = tl.num_programs(0) // num_blocks
        local = (tl.program_id(0) % num_heads).to(tl.int64)
        slab_row = tl.program_id(0) // num_heads * BLOCK_M
    else:
        local = (tl.program_id(0) // num_blocks).to(tl.int64)
        slab_row = tl.program_id(0) % num_blocks * BLOCK_M
    batch = first_batch + local
    first_key += slab_row
    keys = first_key + tl.arange(0, BLOCK_M)
    grad_ptr += _batch_offset(batch, batch_shape, grad_batch_strides, BATCH_RANK)
    query_ptr += _batch_offset(batch, batch_shape, query_batch_strides, BATCH_RANK)
    key_ptr += _batch_offset(batch, batch_shape, key_batch_strides, BATCH_RANK)
    value_ptr += _batch_offset(batch, batch_shape, value_batch_strides, BATCH_RANK)
    if mask_ptr is not None:
        mask_ptr += _batch_offset(batch, batch_shape, mask_batch_strides, BATCH_RANK)
    log2sumexps = log2sumexp_ptr + batch * row_size
    deltas = delta_ptr + batch * row_size
    query_matrix = _matrix(query_ptr, query_strides, num_queries, HEAD_SIZE, TMA, BLOCK_N, BLOCK_E)
    grad_matrix = _matrix(grad_ptr, grad_strides, num_queries, VALUE_SIZE, TMA, BLOCK_N, BLOCK_V)
    slab = grad_scores_ptr + local * slab_rows * slab_columns
    if TMA:
        log2sumexps = tl.make_tensor_descriptor(log2sumexps, [num_queries], [1], [BLOCK_N])
        deltas = tl.make_tensor_descriptor(deltas, [num_queries], [1], [BLOCK_N])
        slab = tl.make_tensor_descriptor(
            slab, [slab_rows, slab_columns], [slab_columns.to(tl.int64), 1], [BLOCK_M, BLOCK_N]
        )
    key = _read(key_ptr, first_key, key_strides, num_keys, HEAD_SIZE, True, False, BLOCK_M, BLOCK_E)
    value = _read(value_ptr, first_key, value_strides, num_keys, VALUE_SIZE, True, False, BLOCK_M, BLOCK_V)
    grad_key = tl.zeros((BLOCK_M, BLOCK_E), COMPUTE)
    grad_value = tl.zeros((BLOCK_M, BLOCK_V), COMPUTE)
    start = 0
    if CAUSAL:
        start = first_key // BLOCK_N * BLOCK_N
    for first in range(start, num_queries, BLOCK_N):
        queries = first + tl.arange(0, BLOCK_N)
        query = _read(query_matrix, first, query_strides, num_queries, HEAD_SIZE, True, TMA, BLOCK_N, BLOCK_E)
        grad = _read(grad_matrix, first, grad_strides, num_queries, VALUE_SIZE, True, TMA, BLOCK_N, BLOCK_V)
        scores = tl.dot(key, tl.trans(query), input_precision=PRECISION, out_dtype=COMPUTE)
        grad_probabilities = tl.dot(value, tl.trans(grad), input_precision=PRECISION, out_dtype=COMPUTE)
        log2sumexp = _read_part(log2sumexps, first, num_queries, TMA, BLOCK_N)
        scores = _admit(
            scores * log2_scale, queries[None, :], keys[:, None], mask_ptr, mask_strides, num_queries, num_keys,
            CAUSAL, False,
        )  # fmt: skip
        if CAUSAL:  # noqa: SIM102  (known when it is compiled, the other as it runs)
            if first < first_key + BLOCK_M:  # the diagonal
                scores = tl.where(keys[:, None] <= queries[None, :], scores, float("-inf"))
        probabilities = tl.exp2(scores - log2sumexp[None, :])
        grad_value = tl.dot(
            probabilities.to(grad.dtype), grad, grad_value, input_precision=PRECISION, out_dtype=COMPUTE
        )
        delta = _read_part(deltas, first, num_queries, TMA, BLOCK_N)
        grad_scores = (probabilities * (grad_probabilities - delta[None, :])).to(query.dtype)
        if TMA:
            slab.store([slab_row, first], grad_scores)
        else:
            rows = slab_row + tl.arange(0, BLOCK_M)
            tl.store(slab + rows[:, None].to(tl.int64) * slab_columns + queries[None, :], grad_scores)
        grad_key = tl.dot(grad_scores, query, grad_key, input_precision=PRECISION, out_dtype=COMPUTE)
    head, columns = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_V)
    row = batch * num_keys + keys
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
    first_query,
    first_key,
    start,
    end,
    slab,
    key_matrix,
    num_keys,
    slab_columns,
    key_strides,
    HEAD_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    CHECK: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """grad_query, without its factor scale, brought forward over the keys from start to end: dq = scale · dS·k."""
    for first in range(start, end, BLOCK_N):
        key = _read(key_matrix, first, key_strides, num_keys, HEAD_SIZE, CHECK, TMA, BLOCK_N, BLOCK_E)
        if TMA:
            grad_scores = slab.load([first - first_key, first_query])
        else:
            rows = first - first_key + tl.arange(0, BLOCK_N)
            columns = first_query + tl.arange(0, BLOCK_M)
            grad_scores = tl.load(slab + rows[:, None].to(tl.int64) * slab_columns + columns[None, :])
        if CHECK:  # what was never written may be anything
            keys, queries = first + tl.arange(0, BLOCK_N), first_query + tl.arange(0, BLOCK_M)
            seen = (keys < num_keys)[:, None]
            if CAUSAL:
                seen = seen & (keys[:, None] <= queries[None, :])
            grad_scores = tl.where(seen, grad_scores, tl.zeros_like(grad_scores))
        grad_query = tl.dot(
            tl.trans(grad_scores), key, grad_query, input_precision=PRECISION, out_dtype=grad_query.dtype
        )
    return grad_query


@triton.jit(do_not_specialize=["num_queries", "num_keys", "first_batch", "first_key", "scale"])
def _attention_query_grad_kernel(
    grad_query_ptr,
    total_ptr,
    grad_scores_ptr,
    key_ptr,
    num_queries,
    num_keys,
    slab_rows,
    slab_columns,
    first_batch,
    first_key,
    scale,
    batch_shape,
    key_batch_strides,
    key_strides,
    BATCH_RANK: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    CAUSAL: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    TMA: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
):
    """One program per block of queries, over the keys of the slab that they see, from the gradients of their scores.

    total: where one slab does not hold all keys, the sums over those before; slabs come one after the other.
    """
    num_blocks = tl.cdiv(num_queries, BLOCK_M)
    local = (tl.program_id(0) // num_blocks).to(tl.int64)
    batch = first_batch + tl.program_id(0) // num_blocks
    first = (num_blocks - 1 - tl.program_id(0) % num_blocks) * BLOCK_M  # the longest causal rows start first
    key_ptr += _batch_offset(batch, batch_shape, key_batch_strides, BATCH_RANK)
    key_matrix = _matrix(key_ptr, key_strides, num_keys, HEAD_SIZE, TMA, BLOCK_N, BLOCK_E)
    slab = grad_scores_ptr + local * slab_rows * slab_columns
    if TMA:
        slab = tl.make_tensor_descriptor(
            slab, [slab_rows, slab_columns], [slab_columns.to(tl.int64), 1], [BLOCK_N, BLOCK_M]
        )
    queries, head = first + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_E)
    row = batch.to(tl.int64) * num_queries + queries
    offsets = row[:, None] * HEAD_SIZE + head[None, :]
    mask = (queries < num_queries)[:, None] & (head < HEAD_SIZE)[None, :]
    grad_query = tl.zeros((BLOCK_M, BLOCK_E), COMPUTE)
    if total_ptr is not None:
        grad_query = tl.load(total_ptr + offsets, mask=mask & (first_key > 0), other=0)
    stop = tl.minimum(first_key + slab_rows, num_keys)
    plain, end = _key_range(first, first_key, stop, CAUSAL, BLOCK_M, BLOCK_N)
    grad_query = _descend(
        grad_query, first, first_key, first_key, plain, slab, key_matrix, num_keys, slab_columns, key_strides,
        HEAD_SIZE, CAUSAL, False, PRECISION, TMA, BLOCK_M, BLOCK_N, BLOCK_E,
    )  # fmt: skip
    grad_query = _descend(
        grad_query, first, first_key, plain, end, slab, key_matrix, num_keys, slab_columns, key_strides,
        HEAD_SIZE, CAUSAL, True, PRECISION, TMA, BLOCK_M, BLOCK_N, BLOCK_E,
    )  # fmt: skip
    if total_ptr is not None:
        tl.store(total_ptr + offsets, grad_query, mask=mask)
    tl.store(grad_query_ptr + offsets, (grad_query * scale).to(grad_query_ptr.dtype.element_ty), mask=mask)


def _specimens(dtype, causal, mask, size, block, tma):
    wide = dtype if dtype is dtypes.float64 else dtypes.float32
    padded = 1 << (size - 1).bit_length()
    walk, matrix = (1024 * size,), (size, 1)
    mask_walk, mask_strides = (None, None) if mask is None else ((0,), (1024, 1))
    common = {"BATCH_RANK": 1, "COMPUTE": COMPUTE[dtype], "BLOCK_M": block}
    tiled = {**common, "HEAD_SIZE": size, "CAUSAL": causal, "PRECISION": DOT_PRECISION[dtype], "TMA": tma}
    tiled |= {"BLOCK_N": 32, "BLOCK_E": padded, "num_stages": 2}
    by_value = {"VALUE_SIZE": size, "BLOCK_V": padded}
    operands = (dtype, dtype, dtype, dtype, dtype, dtype, dtype, mask, wide, wide)
    strides = ((8,), *[walk] * 4, mask_walk, *[matrix] * 4, mask_strides)
    key_value = (*operands, 1000, 1000, 1000, 1024, 1024, 0, 0, 0.1, 0.1, *strides)
    total = wide if causal else None
    query = (dtype, total, dtype, dtype, 1000, 1000, 1024, 1024, 0, 0, 0.1, (8,), walk, matrix)
    delta = (wide, wide, dtype, dtype, wide, 1000, 1000, (8,), walk, walk, matrix, matrix)
    return [
        Specimen(_delta_kernel, delta, {**common, **by_value}),
        Specimen(_attention_key_value_grad_kernel, key_value, {**tiled, **by_value}),
        Specimen(_attention_query_grad_kernel, query, tiled),
    ]


SPECIMENS = [
    *_specimens(dtypes.bfloat16, True, None, 64, 64, True),
    *_specimens(dtypes.float16, False, dtypes.bool_, 80, 64, False),
    *_specimens(dtypes.float32, False, dtypes.float32, 32, 32, False),
    *_specimens(dtypes.float64, True, None, 32, 32, False),
]
