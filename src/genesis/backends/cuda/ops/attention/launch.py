"""Scaled dot-product attention, fused: the backward gets a logarithm per query, not the probabilities."""

from __future__ import annotations

import math

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.engine import planner
from genesis.backends.cuda.launch.tiles import power_of_2
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.attention import forward, tiles
from genesis.backends.cuda.ops.attention.kernels import backward as backward_kernels
from genesis.backends.cuda.ops.attention.kernels import forward as kernels
from genesis.backends.cuda.ops.attention.operation import ATTENTION, AttentionPlan
from genesis.backends.cuda.ops.attention.problem import LARGEST_HEAD, describe
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.errors import OutOfMemoryError
from genesis.records import SavedAttention

_SLAB_SHARE = 64  # a slab of gradients of scores takes this part of the device's memory, unless that leaves cores idle


def attention(
    query: DeviceArray, key: DeviceArray, value: DeviceArray, mask: DeviceArray | None, is_causal: bool, scale: float
) -> tuple[DeviceArray, DeviceArray]:
    _require(query, value)
    lead, num_queries, device = query.shape[:-2], query.shape[-2], query.device_index
    y = array.empty((*lead, num_queries, value.shape[-1]), query.dtype, device)
    logsumexp = array.empty((*lead, num_queries), _wide(query), device)
    plan = None if mask is not None else _plan(query, key, value, is_causal, scale)
    if plan is None:
        forward.attend(y, logsumexp, query, key, value, mask, is_causal, scale)
    else:
        plan(y, logsumexp, query, key, value)
    return y, logsumexp


_plans: dict[tuple[object, ...], AttentionPlan | None] = {}
planner.when_choosing_anew(_plans.clear)


def _plan(
    query: DeviceArray, key: DeviceArray, value: DeviceArray, is_causal: bool, scale: float
) -> AttentionPlan | None:
    """None: there is no choice."""
    call = query._layout or query.layout, key._layout or key.layout, value._layout or value.layout, is_causal, scale
    try:
        return _plans[call]
    except KeyError:
        problem = describe(query, key, value, is_causal, scale)
        plan = None if problem is None else planner.plan(ATTENTION, problem)
        assert plan is None or isinstance(plan, AttentionPlan)
        if plan is None or planner.may_keep(plan):
            _plans[call] = plan
        return plan


def attention_backward(
    grad: DeviceArray, saved: SavedAttention[DeviceArray, DeviceArray], is_causal: bool, scale: float
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    query, key, value, mask, y, logsumexp = saved
    lead, (num_queries, num_keys) = query.shape[:-2], (query.shape[-2], key.shape[-2])
    num_heads, device = math.prod(lead), query.device_index
    delta, log2sumexp = _row_terms(grad, y, logsumexp)
    of_grad, of_query, of_key, of_value = (x.layout for x in (grad, query, key, value))
    of_mask = None if mask is None else mask.layout
    grad_query, grad_key, grad_value = (array.empty(x.shape, x.dtype, device) for x in (query, key, value))
    fetchable = tiles.is_fetchable(of_grad, of_query)
    first = tiles.constants(tiles.KEY_VALUE_GRAD, (of_query, of_value), num_keys, num_queries, fetchable)
    second = tiles.constants(tiles.QUERY_GRAD, (of_query,), num_queries, num_keys, tiles.is_fetchable(of_key))
    rows, columns = max(first["BLOCK_M"], second["BLOCK_N"]), max(first["BLOCK_N"], second["BLOCK_M"])
    slab_columns = _round_up(num_queries, columns)
    grad_scores = _slab(query, num_heads, _round_up(num_keys, rows), rows, slab_columns)
    heads, slab_rows, _ = grad_scores.shape
    total = array.empty(query.shape, logsumexp.dtype, device) if slab_rows < num_keys else None

    layouts = (of_grad, of_query, of_key, of_value, of_mask)
    batch, key_batch = tiles.batch_strides(lead, *layouts), tiles.batch_strides(lead, of_key)
    strides = tiles.matrix_strides(*layouts)
    operands = (
        grad, query, key, value, mask, log2sumexp, delta, num_queries, num_keys, delta.shape[-1], slab_rows,
        slab_columns,
    )  # fmt: skip
    scales = (float(scale), float(scale) * kernels.LOG2_E)
    for head in range(0, num_heads, heads):
        count = min(heads, num_heads - head)
        for first_key in range(0, max(num_keys, 1), slab_rows):
            launch(
                backward_kernels._attention_key_value_grad_kernel, (count * (slab_rows // first["BLOCK_M"]),),
                grad_key, grad_value, grad_scores, *operands, head, first_key, *scales, *batch, *strides,
                BATCH_RANK=len(batch[0]), VALUE_SIZE=value.shape[-1], CAUSAL=is_causal, **first,
            )  # fmt: skip
            launch(
                backward_kernels._attention_query_grad_kernel, (count * -(-num_queries // second["BLOCK_M"]),),
                grad_query, total, grad_scores, key, num_queries, num_keys, slab_rows, slab_columns, head, first_key,
                float(scale), *key_batch, *tiles.matrix_strides(of_key),
                BATCH_RANK=len(key_batch[0]), CAUSAL=is_causal, **second,
            )  # fmt: skip
    return grad_query, grad_key, grad_value


def _row_terms(grad: DeviceArray, y: DeviceArray, saved: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    """Per query: Σ grad·y, and the logarithm to base 2 of what was saved; each row is aligned to 16 bytes."""
    lead, (num_queries, value_size) = y.shape[:-2], y.shape[-2:]
    row_size = _round_up(num_queries, 4)
    delta, log2sumexp = (array.empty((*lead, row_size), saved.dtype, y.device_index) for _ in range(2))
    batch = tiles.batch_strides(lead, grad.layout, y.layout)
    block_v = max(16, power_of_2(value_size))
    block_m = min(power_of_2(num_queries), max(16, 8192 // block_v))
    launch(
        backward_kernels._delta_kernel, (math.prod(lead) * -(-num_queries // block_m),), delta, log2sumexp, grad, y,
        saved, num_queries, row_size, *batch, *tiles.matrix_strides(grad.layout, y.layout), BATCH_RANK=len(batch[0]),
        VALUE_SIZE=value_size, COMPUTE=COMPUTE[y.dtype], BLOCK_M=block_m, BLOCK_V=block_v,
    )  # fmt: skip
    return delta, log2sumexp


def _slab(query: DeviceArray, num_heads: int, num_keys: int, block: int, num_columns: int) -> DeviceArray:
    """Room for gradients of scores, (heads, keys, num_columns): of whole heads, or of a part of one's keys."""
    device = query.device_index
    properties = driver.get().properties(device)
    num_blocks, block_bytes = max(num_keys // block, 1), max(block * num_columns * query.dtype.itemsize, 1)
    most = max(properties.total_memory // _SLAB_SHARE // block_bytes, properties.multiprocessor_count)
    while True:  # until there is memory for so many blocks, each of them a program's
        if num_blocks <= most:
            shape = (max(min(num_heads, most // num_blocks), 1), num_blocks * block, num_columns)
        else:
            num_slabs = -(-num_blocks // most)
            shape = (1, -(-num_blocks // num_slabs) * block, num_columns)
        try:
            return array.empty(shape, query.dtype, device)
        except OutOfMemoryError:
            if most == 1:
                raise
            most = max(shape[0] * shape[1] // block // 2, 1)


def _round_up(size: int, block: int) -> int:
    return -(-size // block) * block


def _wide(x: DeviceArray) -> dtypes.DType:
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def _require(query: DeviceArray, value: DeviceArray) -> None:
    if not query.dtype.is_floating_point:
        raise NotImplementedError(f"attention has no cuda implementation for {query.dtype.name}")
    largest = max(query.shape[-1], value.shape[-1])
    if largest > LARGEST_HEAD:
        raise NotImplementedError(
            f"attention has no cuda implementation for {query.dtype.name} heads above {LARGEST_HEAD}, got {largest}"
        )
