"""Layer norm and RMS norm of rows that a program keeps in registers; norm.py has the formulas.

What is summed along rows is a product by mul_rn; see ops/reduction/.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _layer_norm_kernel(
    y_ptr,
    mean_ptr,
    inverse_std_ptr,
    x_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_columns,
    eps,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_COLUMNS)
    offsets = rows[:, None] * num_columns + columns[None, :]
    column_mask = columns < num_columns
    mask = (rows < num_rows)[:, None] & column_mask[None, :]
    x = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    if mean_ptr is not None:
        mean = tl.sum(x, 1) / num_columns
        tl.store(mean_ptr + rows, mean, mask=rows < num_rows)
        x = tl.where(mask, x - mean[:, None], 0.0)
    inverse_std = libdevice.rsqrt(tl.sum(libdevice.mul_rn(x, x), 1) / num_columns + eps)
    tl.store(inverse_std_ptr + rows, inverse_std, mask=rows < num_rows)
    y = x * inverse_std[:, None]
    if weight_ptr is not None:
        y *= tl.load(weight_ptr + columns, mask=column_mask, other=0).to(COMPUTE)[None, :]
    if bias_ptr is not None:
        y += tl.load(bias_ptr + columns, mask=column_mask, other=0).to(COMPUTE)[None, :]
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _layer_norm_backward_kernel(
    grad_input_ptr,
    grad_weight_ptr,
    grad_bias_ptr,
    grad_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    inverse_std_ptr,
    num_rows,
    num_columns,
    num_blocks,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """One pass for all three. Each program walks every so many rows and stores its share of the sums over rows."""
    columns = tl.arange(0, BLOCK_COLUMNS)
    column_mask = columns < num_columns
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + columns, mask=column_mask, other=0).to(COMPUTE)
    else:
        weight = tl.full((BLOCK_COLUMNS,), 1, COMPUTE)
    weight_sums = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), COMPUTE)
    bias_sums = tl.zeros((BLOCK_ROWS, BLOCK_COLUMNS), COMPUTE)
    for block in range(tl.program_id(0), num_blocks, tl.num_programs(0)):
        if WIDE:
            rows = tl.cast(block, tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        else:
            rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        row_mask = rows < num_rows
        mask = row_mask[:, None] & column_mask[None, :]
        offsets = rows[:, None] * num_columns + columns[None, :]
        grad = tl.load(grad_ptr + offsets, mask=mask, other=0).to(COMPUTE)
        normal = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
        inverse_std = tl.load(inverse_std_ptr + rows, mask=row_mask, other=0).to(COMPUTE)
        if mean_ptr is not None:
            normal -= tl.load(mean_ptr + rows, mask=row_mask, other=0).to(COMPUTE)[:, None]
            normal = tl.where(mask, normal, 0.0)
        normal *= inverse_std[:, None]
        weight_sums += grad * normal
        bias_sums += grad
        if grad_input_ptr is not None:
            grad *= weight[None, :]
            result = grad - normal * (tl.sum(libdevice.mul_rn(grad, normal), 1) / num_columns)[:, None]
            if mean_ptr is not None:
                result -= (tl.sum(grad, 1) / num_columns)[:, None]
            result *= inverse_std[:, None]
            tl.store(grad_input_ptr + offsets, result.to(grad_input_ptr.dtype.element_ty), mask=mask)
    at = tl.program_id(0).to(tl.int64) * num_columns + columns
    if grad_weight_ptr is not None:
        tl.store(grad_weight_ptr + at, tl.sum(weight_sums, 0), mask=column_mask)
    if grad_bias_ptr is not None:
        tl.store(grad_bias_ptr + at, tl.sum(bias_sums, 0), mask=column_mask)


def _specimens(dtype, wide):
    rows = {"COMPUTE": COMPUTE[dtype], "WIDE": False, "BLOCK_ROWS": 2, "BLOCK_COLUMNS": 1024}
    yield Specimen(_layer_norm_kernel, (dtype, wide, wide, dtype, wide, wide, 4096, 1008, 1e-5), rows)
    yield Specimen(_layer_norm_kernel, (dtype, None, wide, dtype, dtype, None, 4096, 1008, 1e-5), rows)
    grads = (dtype, wide, wide, dtype, dtype, wide)
    yield Specimen(_layer_norm_backward_kernel, (*grads, wide, wide, 4096, 1008, 2048), rows)
    yield Specimen(_layer_norm_backward_kernel, (*grads, None, wide, 4096, 1008, 2048), {**rows, "WIDE": True})


SPECIMENS = [
    specimen
    for dtype, wide in ((dtypes.bfloat16, dtypes.float32), (dtypes.float64, dtypes.float64))
    for specimen in _specimens(dtype, wide)
]
