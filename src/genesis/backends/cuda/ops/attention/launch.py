"""Scaled dot-product attention, fused: the backward gets a logarithm per query, not the probabilities."""

from __future__ import annotations

import math
from typing import Any

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch import tiles
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.attention import cudnn as attention_cudnn
from genesis.backends.cuda.ops.attention.kernels import backward as backward_kernels
from genesis.backends.cuda.ops.attention.kernels import forward as kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import collapse
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.errors import OutOfMemoryError
from genesis.shapes import Shape, contiguous_strides

_LARGEST_HEAD = 256

# By bytes per element and padded head size: (rows that a program keeps, rows it walks over, num_warps, num_stages).
# "tma" stands for 16 bits where the copy engine of sm_90 can fetch the blocks. Measured on an H200: two or three small
# programs per multiprocessor hide each other's softmax; only heads of 128 in the backward need all of it for one.
_Tiles = dict[int | str, dict[int, tuple[int, int, int, int]]]
_FORWARD: _Tiles = {
    "tma": {64: (64, 128, 4, 2), 128: (128, 64, 4, 2)},
    2: {64: (128, 64, 4, 4), 128: (128, 64, 8, 3), 256: (128, 32, 8, 2)},
    4: {64: (64, 64, 4, 1), 128: (64, 64, 4, 1), 256: (16, 16, 4, 1)},
    8: {64: (32, 32, 4, 2), 128: (32, 16, 4, 2), 256: (16, 16, 4, 1)},
}
_KEY_VALUE_GRAD: _Tiles = {
    "tma": {64: (64, 64, 4, 3), 128: (128, 64, 8, 3)},
    2: {64: (128, 64, 8, 2), 128: (128, 32, 8, 2), 256: (32, 32, 4, 1)},
    4: {64: (64, 32, 4, 1), 128: (64, 32, 4, 1), 256: (16, 16, 8, 1)},
    8: {64: (32, 32, 4, 1), 128: (16, 16, 4, 1), 256: (16, 16, 4, 1)},
}
_QUERY_GRAD: _Tiles = {**_KEY_VALUE_GRAD, "tma": {64: (128, 64, 8, 3), 128: (128, 64, 8, 3)}}

_SLAB_SHARE = 64  # a slab of gradients of scores takes this part of the device's memory, unless that leaves cores idle


def attention(
    query: DeviceArray, key: DeviceArray, value: DeviceArray, mask: DeviceArray | None, is_causal: bool, scale: float
) -> tuple[DeviceArray, DeviceArray]:
    _require(query, value)
    lead, num_queries = query.shape[:-2], query.shape[-2]
    y = array.empty((*lead, num_queries, value.shape[-1]), query.dtype, query.device_index)
    logsumexp = array.empty((*lead, num_queries), _wide(query), query.device_index)
    operands = (y, logsumexp, query, key, value)
    if mask is not None or not attention_cudnn.attend(_attention, *operands, is_causal, scale):
        _attention(*operands, mask, is_causal, scale)
    return y, logsumexp


def _attention(
    y: DeviceArray, logsumexp: DeviceArray, query: DeviceArray, key: DeviceArray, value: DeviceArray,
    mask: DeviceArray | None, is_causal: bool, scale: float,
) -> None:  # fmt: skip
    """By our kernel, into y and logsumexp."""
    lead, (num_queries, num_keys) = query.shape[:-2], (query.shape[-2], key.shape[-2])
    batch = _batch(lead, query, key, value, mask)
    constants = _constants(_FORWARD, (query, value), num_queries, num_keys, _fetchable(key, value))
    grid = (math.prod(lead) * -(-num_queries // constants["BLOCK_M"]),)
    launch(
        kernels._attention_kernel, grid, y, logsumexp, query, key, value, mask, num_queries, num_keys,
        float(scale) * kernels.LOG2_E, *batch, *_matrix_strides(query, key, value, mask), BATCH_RANK=len(batch[0]),
        VALUE_SIZE=value.shape[-1], CAUSAL=is_causal, SCALE_LATE=scale >= 0 and mask is None, **constants,
    )  # fmt: skip


def attention_backward(
    grad: DeviceArray, query: DeviceArray, key: DeviceArray, value: DeviceArray, mask: DeviceArray | None,
    y: DeviceArray, saved: DeviceArray, is_causal: bool, scale: float,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    lead, (num_queries, num_keys) = query.shape[:-2], (query.shape[-2], key.shape[-2])
    num_heads, device = math.prod(lead), query.device_index
    row_size = _round_up(num_queries, 4)  # each row is aligned to 16 bytes
    delta, log2sumexp = (array.empty((*lead, row_size), saved.dtype, device) for _ in range(2))
    batch = _batch(lead, grad, y)
    block_v = max(16, tiles.power_of_2(value.shape[-1]))
    block_m = min(tiles.power_of_2(num_queries), max(16, 8192 // block_v))
    launch(
        backward_kernels._delta_kernel, (num_heads * -(-num_queries // block_m),), delta, log2sumexp, grad, y, saved,
        num_queries, row_size, *batch, *_matrix_strides(grad, y), BATCH_RANK=len(batch[0]), VALUE_SIZE=value.shape[-1],
        COMPUTE=COMPUTE[query.dtype], BLOCK_M=block_m, BLOCK_V=block_v,
    )  # fmt: skip

    grad_query, grad_key, grad_value = (array.empty(x.shape, x.dtype, device) for x in (query, key, value))
    first = _constants(_KEY_VALUE_GRAD, (query, value), num_keys, num_queries, _fetchable(grad, query))
    second = _constants(_QUERY_GRAD, (query,), num_queries, num_keys, _fetchable(key))
    rows, columns = max(first["BLOCK_M"], second["BLOCK_N"]), max(first["BLOCK_N"], second["BLOCK_M"])
    slab_columns = _round_up(num_queries, columns)
    grad_scores = _slab(query, num_heads, _round_up(num_keys, rows), rows, slab_columns)
    heads, slab_rows, _ = grad_scores.shape
    total = array.empty(query.shape, saved.dtype, device) if slab_rows < num_keys else None

    batch, key_batch = _batch(lead, grad, query, key, value, mask), _batch(lead, key)
    strides = _matrix_strides(grad, query, key, value, mask)
    operands = (
        grad,
        query,
        key,
        value,
        mask,
        log2sumexp,
        delta,
        num_queries,
        num_keys,
        row_size,
        slab_rows,
        slab_columns,
    )
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
                float(scale), *key_batch, *_matrix_strides(key),
                BATCH_RANK=len(key_batch[0]), CAUSAL=is_causal, **second,
            )  # fmt: skip
    return grad_query, grad_key, grad_value


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


def _fetchable(*arrays: DeviceArray) -> bool:
    """Can the copy engine of sm_90 fetch blocks of these? 16 bits, contiguous rows, all of them aligned to 16 bytes."""
    if driver.get().properties(arrays[0].device_index).compute_capability < 90:
        return False
    return all(
        x.dtype.itemsize == 2 and x.size > 0 and x.strides[-1] == 1 and x.strides[-2] > 0 and x.data_pointer % 16 == 0
        and all(stride % 8 == 0 for stride in x.strides[:-1])
        for x in arrays
    )  # fmt: skip


def _batch(lead: Shape, *arrays: DeviceArray | None) -> tuple[Any, ...]:
    """The leading dimensions merged, the innermost first, and each array's strides over them."""
    walks = [x.strides[:-2] for x in arrays if x is not None]
    sizes, merged = collapse(lead, [contiguous_strides(lead), *walks])
    strides = iter(merged[1:])
    return sizes[::-1], *(None if x is None else next(strides)[::-1] for x in arrays)


def _matrix_strides(*arrays: DeviceArray | None) -> tuple[Shape | None, ...]:
    return tuple(None if x is None else x.strides[-2:] for x in arrays)


def _constants(
    table: _Tiles, sides: tuple[DeviceArray, ...], num_kept: int, num_walked: int, fetchable: bool
) -> dict[str, Any]:
    """sides: query, and value where its columns count."""
    dtype, blocks = sides[0].dtype, [max(16, tiles.power_of_2(x.shape[-1])) for x in sides]
    padded = max(64, *blocks)
    tma = fetchable and padded in table["tma"]
    kept, walked, num_warps, num_stages = table["tma" if tma else dtype.itemsize][padded]
    return {
        "HEAD_SIZE": sides[0].shape[-1],
        "COMPUTE": COMPUTE[dtype],
        "PRECISION": tiles.DOT_PRECISION[dtype],
        "TMA": tma,
        "BLOCK_M": min(kept, max(16, tiles.power_of_2(num_kept))),
        "BLOCK_N": min(walked, max(16, tiles.power_of_2(num_walked))),
        **dict(zip(("BLOCK_E", "BLOCK_V"), blocks, strict=False)),
        "num_warps": num_warps,
        "num_stages": num_stages,
    }


def _round_up(size: int, block: int) -> int:
    return -(-size // block) * block


def _wide(x: DeviceArray) -> dtypes.DType:
    return dtypes.float64 if x.dtype is dtypes.float64 else dtypes.float32


def _require(query: DeviceArray, value: DeviceArray) -> None:
    if not query.dtype.is_floating_point:
        raise NotImplementedError(f"attention has no cuda implementation for {query.dtype.name}")
    largest = max(query.shape[-1], value.shape[-1])
    if largest > _LARGEST_HEAD:
        raise NotImplementedError(
            f"attention has no cuda implementation for {query.dtype.name} heads above {_LARGEST_HEAD}, got {largest}"
        )
