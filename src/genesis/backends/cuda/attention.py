"""Scaled dot-product attention, fused: the backward gets a logarithm per query, not the probabilities."""

from __future__ import annotations

import math
from typing import Any

from genesis import dtypes
from genesis.backends.cuda import array, tiles
from genesis.backends.cuda.array import DeviceArray
from genesis.backends.cuda.kernels import attention as kernels
from genesis.backends.cuda.kernels.pointwise import COMPUTE
from genesis.backends.cuda.launch import launch
from genesis.backends.cuda.pointwise import collapse
from genesis.shapes import Shape, contiguous_strides

_LARGEST_HEAD = 256

# By bytes per element and padded head size: (rows that a program keeps, rows it walks over, num_warps, num_stages).
_FORWARD = {
    2: {64: (128, 64, 4, 4), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
    4: {64: (64, 64, 4, 1), 128: (64, 64, 4, 1), 256: (16, 16, 4, 1)},
    8: {64: (32, 32, 4, 2), 128: (32, 16, 4, 2), 256: (16, 16, 4, 1)},
}
_BACKWARD = {
    2: {64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (32, 32, 4, 1)},
    4: {64: (64, 32, 4, 1), 128: (64, 32, 4, 1), 256: (16, 16, 8, 1)},
    8: {64: (32, 32, 4, 1), 128: (16, 16, 4, 1), 256: (16, 16, 4, 1)},
}


def attention(
    query: DeviceArray, key: DeviceArray, value: DeviceArray, mask: DeviceArray | None, is_causal: bool, scale: float
) -> tuple[DeviceArray, DeviceArray]:
    _require(query, value)
    lead, (num_queries, num_keys) = query.shape[:-2], (query.shape[-2], key.shape[-2])
    y = array.empty((*lead, num_queries, value.shape[-1]), query.dtype, query.device_index)
    wide = dtypes.float64 if query.dtype is dtypes.float64 else dtypes.float32
    logsumexp = array.empty((*lead, num_queries), wide, query.device_index)
    batch = _batch(lead, query, key, value, mask)
    constants = _constants(_FORWARD, query, value, num_queries, num_keys)
    grid = (math.prod(lead) * -(-num_queries // constants["BLOCK_M"]),)
    launch(
        kernels._attention_kernel, grid, y, logsumexp, query, key, value, mask, num_queries, num_keys,
        float(scale) * kernels.LOG2_E, *batch, *_matrix_strides(query, key, value, mask),
        BATCH_RANK=len(batch[0]), CAUSAL=is_causal, **constants,
    )  # fmt: skip
    return y, logsumexp


def attention_backward(
    grad: DeviceArray, query: DeviceArray, key: DeviceArray, value: DeviceArray, mask: DeviceArray | None,
    y: DeviceArray, saved: DeviceArray, is_causal: bool, scale: float,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    lead, (num_queries, num_keys) = query.shape[:-2], (query.shape[-2], key.shape[-2])
    num_heads, device = math.prod(lead), query.device_index
    delta = array.empty(saved.shape, saved.dtype, device)
    batch = _batch(lead, grad, y)
    block_v = max(16, tiles.power_of_2(value.shape[-1]))
    block_m = min(tiles.power_of_2(num_queries), max(16, 8192 // block_v))
    launch(
        kernels._delta_kernel, (num_heads * -(-num_queries // block_m),), delta, grad, y, num_queries,
        *batch, *_matrix_strides(grad, y), BATCH_RANK=len(batch[0]), VALUE_SIZE=value.shape[-1],
        COMPUTE=COMPUTE[query.dtype], BLOCK_M=block_m, BLOCK_V=block_v,
    )  # fmt: skip

    grad_query, grad_key, grad_value = (array.empty(x.shape, x.dtype, device) for x in (query, key, value))
    batch = _batch(lead, grad, query, key, value, mask)
    strides = _matrix_strides(grad, query, key, value, mask)
    operands = (grad, query, key, value, mask, saved, delta, num_queries, num_keys)
    scales = (float(scale), float(scale) * kernels.LOG2_E)
    common = {"BATCH_RANK": len(batch[0]), "CAUSAL": is_causal}
    constants = _constants(_BACKWARD, query, value, num_keys, num_queries)
    grid = (num_heads * -(-num_keys // constants["BLOCK_M"]),)
    launch(
        kernels._attention_key_value_grad_kernel, grid, grad_key, grad_value, *operands, *scales, *batch, *strides,
        **common, **constants,
    )  # fmt: skip
    constants = _constants(_BACKWARD, query, value, num_queries, num_keys)
    grid = (num_heads * -(-num_queries // constants["BLOCK_M"]),)
    launch(
        kernels._attention_query_grad_kernel, grid, grad_query, *operands, *scales, *batch, *strides,
        **common, **constants,
    )  # fmt: skip
    return grad_query, grad_key, grad_value


def _batch(lead: Shape, *arrays: DeviceArray | None) -> tuple[Any, ...]:
    """The leading dimensions merged, the innermost first, and each array's strides over them."""
    walks = [x.strides[:-2] for x in arrays if x is not None]
    sizes, merged = collapse(lead, [contiguous_strides(lead), *walks])
    strides = iter(merged[1:])
    return sizes[::-1], *(None if x is None else next(strides)[::-1] for x in arrays)


def _matrix_strides(*arrays: DeviceArray | None) -> tuple[Shape | None, ...]:
    return tuple(None if x is None else x.strides[-2:] for x in arrays)


def _constants(
    table: dict[int, dict[int, tuple[int, int, int, int]]],
    query: DeviceArray, value: DeviceArray, num_kept: int, num_walked: int,
) -> dict[str, Any]:  # fmt: skip
    block_e, block_v = (max(16, tiles.power_of_2(x.shape[-1])) for x in (query, value))
    kept, walked, num_warps, num_stages = table[query.dtype.itemsize][max(64, block_e, block_v)]
    return {
        "HEAD_SIZE": query.shape[-1],
        "VALUE_SIZE": value.shape[-1],
        "COMPUTE": COMPUTE[query.dtype],
        "PRECISION": tiles.DOT_PRECISION[query.dtype],
        "BLOCK_M": min(kept, max(16, tiles.power_of_2(num_kept))),
        "BLOCK_N": min(walked, max(16, tiles.power_of_2(num_walked))),
        "BLOCK_E": block_e,
        "BLOCK_V": block_v,
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def _require(query: DeviceArray, value: DeviceArray) -> None:
    if not query.dtype.is_floating_point:
        raise NotImplementedError(f"attention has no cuda implementation for {query.dtype.name}")
    largest = max(query.shape[-1], value.shape[-1])
    if largest > _LARGEST_HEAD:
        raise NotImplementedError(
            f"attention has no cuda implementation for {query.dtype.name} heads above {_LARGEST_HEAD}, got {largest}"
        )
