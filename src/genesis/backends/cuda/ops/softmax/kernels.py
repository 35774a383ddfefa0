"""softmax and log_softmax with a whole row in registers: one pass over memory, several short rows in a program.

A row runs along the dimension of the op; `rows` = sizes of all other dimensions, inner ones first, then their strides.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.reduction.kernels.reduction import _greatest, _offset


@triton.jit
def _tile(num_rows, num_columns, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_COLUMNS)
    return rows, columns, (rows < num_rows)[:, None] & (columns < num_columns)[None, :]


@triton.jit
def _at(rows, columns, group, column_stride, RANK: tl.constexpr, WIDE: tl.constexpr):
    if WIDE:
        columns = columns.to(tl.int64)
    return _offset(rows, group, RANK)[:, None] + (columns * column_stride)[None, :]


@triton.jit
def _softmax_kernel(
    y_ptr,
    x_ptr,
    num_rows,
    num_columns,
    y_rows,
    x_rows,
    y_stride,
    x_stride,
    LOG: tl.constexpr,
    COMPUTE: tl.constexpr,
    RANK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """y = exp(x − m) / Σ exp(x − m) with m = max x; LOG: y = x − m − log Σ exp(x − m)"""
    rows, columns, mask = _tile(num_rows, num_columns, WIDE, BLOCK_ROWS, BLOCK_COLUMNS)
    x = tl.load(x_ptr + _at(rows, columns, x_rows, x_stride, RANK, WIDE), mask=mask, other=-float("inf")).to(COMPUTE)
    shifted = x - _greatest(x)[:, None]
    exponentials = tl.where(mask, libdevice.exp(shifted), 0.0)
    total = tl.sum(exponentials, 1)
    if LOG:
        y = shifted - libdevice.log(total)[:, None]
    else:
        y = exponentials * libdevice.rcp_rn(total)[:, None]
    tl.store(y_ptr + _at(rows, columns, y_rows, y_stride, RANK, WIDE), y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _softmax_backward_kernel(
    grad_input_ptr,
    grad_ptr,
    y_ptr,
    num_rows,
    num_columns,
    grad_input_rows,
    grad_rows,
    y_rows,
    grad_input_stride,
    grad_stride,
    y_stride,
    LOG: tl.constexpr,
    COMPUTE: tl.constexpr,
    RANK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """grad_input = y·(grad − Σ grad·y); LOG: grad − exp(y)·Σ grad"""
    rows, columns, mask = _tile(num_rows, num_columns, WIDE, BLOCK_ROWS, BLOCK_COLUMNS)
    grad = tl.load(grad_ptr + _at(rows, columns, grad_rows, grad_stride, RANK, WIDE), mask=mask, other=0).to(COMPUTE)
    y = tl.load(y_ptr + _at(rows, columns, y_rows, y_stride, RANK, WIDE), mask=mask, other=0).to(COMPUTE)
    if LOG:
        result = grad - libdevice.exp(y) * tl.sum(grad, 1)[:, None]
    else:
        result = y * (grad - tl.sum(libdevice.mul_rn(grad, y), 1)[:, None])
    at = _at(rows, columns, grad_input_rows, grad_input_stride, RANK, WIDE)
    tl.store(grad_input_ptr + at, result.to(grad_input_ptr.dtype.element_ty), mask=mask)


# --- rows too long for registers: element by element, after a reduction -----------------------------------------------
@triton.jit
def _softmax_of_parts_kernel(x, maximum, total):
    return libdevice.div_rn(libdevice.exp(x - maximum), total)


@triton.jit
def _log_softmax_of_parts_kernel(x, maximum, total):
    return x - maximum - libdevice.log(total)


@triton.jit
def _softmax_backward_of_sum_kernel(grad, y, total):
    return y * (grad - total)


@triton.jit
def _log_softmax_backward_of_sum_kernel(grad, y, total):
    return grad - libdevice.exp(y) * total


@triton.jit
def _product_kernel(grad, y):
    return grad * y


def _constants(dtype, log, rank, wide, block_rows, block_columns):
    blocks = {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns}
    return {"LOG": log, "COMPUTE": COMPUTE[dtype], "RANK": rank, "WIDE": wide, **blocks}


_SHAPES = [
    (1, False, 2, 1024, 4, (4096, 1008, 1)),
    (2, True, 64, 32, 4, (64, 3, 1, 1344, 64)),
    (1, False, 1, 16384, 16, (64, 16000, 1)),
]


def _specimens(dtype, log, rank, wide, block_rows, block_columns, num_warps, numbers):
    constants = {**_constants(dtype, log, rank, wide, block_rows, block_columns), "num_warps": num_warps}
    group, stride = numbers[:-1], numbers[-1]
    yield Specimen(_softmax_kernel, (dtype, dtype, 4096, 1008, group, group, stride, stride), constants)
    args = (dtype, dtype, dtype, 4096, 1008, group, group, group, stride, stride, stride)
    yield Specimen(_softmax_backward_kernel, args, constants)


SPECIMENS = [
    specimen
    for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.float64)
    for log in (False, True)
    for shape in _SHAPES
    if dtype is not dtypes.float64 or shape[4] < 16384
    for specimen in _specimens(dtype, log, *shape)
]
