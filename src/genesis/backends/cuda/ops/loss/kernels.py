"""Negative log likelihood over class indices, and the gradient of an embedding table."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.reduction.kernels.reduction import _offset


@triton.jit
def _weight_of(weight_ptr, weight_stride, target, valid, COMPUTE: tl.constexpr):
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + target * weight_stride, mask=valid, other=0).to(COMPUTE)
    else:
        weight = valid.to(COMPUTE)
    return weight


@triton.jit
def _nll_loss_kernel(
    loss_ptr,
    each_ptr,
    log_probs_ptr,
    target_ptr,
    weight_ptr,
    num_targets,
    num_classes,
    ignore_index,
    log_probs_group,
    target_group,
    class_stride,
    weight_stride,
    COMPUTE: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """loss = −w[t]·log_probs[t], each = w[t]; both 0 where t is ignore_index. A class that there is not makes NaN."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < num_targets
    target = tl.load(target_ptr + _offset(rows, target_group, RANK), mask=mask, other=ignore_index)
    kept = mask & (target != ignore_index)
    valid = kept & (target >= 0) & (target < num_classes)
    at = _offset(rows, log_probs_group, RANK) + target * class_stride
    log_prob = tl.load(log_probs_ptr + at, mask=valid, other=float("nan")).to(COMPUTE)
    weight = _weight_of(weight_ptr, weight_stride, target, valid, COMPUTE)
    loss = tl.where(kept, log_prob * weight * -1.0, 0.0)
    tl.store(loss_ptr + rows, loss.to(loss_ptr.dtype.element_ty), mask=mask)
    tl.store(each_ptr + rows, weight.to(each_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _nll_loss_backward_kernel(
    grad_input_ptr,
    grad_ptr,
    target_ptr,
    weight_ptr,
    num_targets,
    num_classes,
    num_places,
    ignore_index,
    grad_group,
    target_group,
    weight_stride,
    COMPUTE: tl.constexpr,
    RANK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """−grad·w[t] at the target's class of a contiguous (samples, classes, places) array that is 0 elsewhere."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < num_targets
    target = tl.load(target_ptr + _offset(rows, target_group, RANK), mask=mask, other=ignore_index)
    valid = mask & (target != ignore_index) & (target >= 0) & (target < num_classes)
    grad = tl.load(grad_ptr + _offset(rows, grad_group, RANK), mask=valid, other=0).to(COMPUTE)
    result = grad * _weight_of(weight_ptr, weight_stride, target, valid, COMPUTE) * -1.0
    at = (rows // num_places * num_classes + target) * num_places + rows % num_places
    tl.store(grad_input_ptr + at, result.to(grad_input_ptr.dtype.element_ty), mask=valid)


@triton.jit
def _count_kernel(count_ptr, indices_ptr, num_indices, num_embeddings, BLOCK: tl.constexpr):
    """How often each index occurs."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices_ptr + places, mask=places < num_indices, other=-1)
    tl.atomic_add(count_ptr + index, 1, mask=(index >= 0) & (index < num_embeddings))


@triton.jit
def _embedding_backward_kernel(
    grad_weight_ptr,
    grad_ptr,
    indices_ptr,
    count_ptr,
    num_indices,
    num_columns,
    num_embeddings,
    padding_index,
    COMPUTE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """grad_weight[index] += grad's row, atomically: where an index repeats, the order of its sum is not fixed."""
    num_column_blocks = tl.cdiv(num_columns, BLOCK_COLUMNS)
    rows = (tl.program_id(0) // num_column_blocks).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = (tl.program_id(0) % num_column_blocks) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    index = tl.load(indices_ptr + rows, mask=rows < num_indices, other=-1)
    valid = (index >= 0) & (index < num_embeddings) & (index != padding_index)
    mask = valid[:, None] & (columns < num_columns)[None, :]
    grad = tl.load(grad_ptr + rows[:, None] * num_columns + columns[None, :], mask=mask, other=0).to(COMPUTE)
    if count_ptr is not None:
        count = tl.load(count_ptr + index, mask=valid, other=1)
        grad = grad / count.to(COMPUTE)[:, None]
    tl.atomic_add(grad_weight_ptr + index[:, None] * num_columns + columns[None, :], grad, mask=mask, sem="relaxed")


def _specimens(dtype, wide):
    compute = {"COMPUTE": COMPUTE[dtype], "RANK": 2, "BLOCK": 256}
    group = (3136, 64, 1, 9408)
    forward = (dtype, dtype, dtype, dtypes.int64)
    for weight in (None, dtype):
        yield Specimen(_nll_loss_kernel, (*forward, weight, 4096, 1000, -100, group, group, 3136, 1), compute)
        args = (dtype, dtype, dtypes.int64, weight, 4096, 1000, 3136, -100, group, group, 1)
        yield Specimen(_nll_loss_backward_kernel, args, compute)
    for count in (None, dtypes.int32):
        constants = {"COMPUTE": COMPUTE[dtype], "BLOCK_ROWS": 4, "BLOCK_COLUMNS": 256}
        table = (wide, dtype, dtypes.int64, count, 4096, 768, 50000, -1)
        yield Specimen(_embedding_backward_kernel, table, constants)


SPECIMENS = [
    Specimen(_count_kernel, (dtypes.int32, dtypes.int64, 4096, 50000), {"BLOCK": 256}),
    *_specimens(dtypes.float32, dtypes.float32),
    *_specimens(dtypes.bfloat16, dtypes.float32),
    *_specimens(dtypes.float64, dtypes.float64),
]
