"""The matrix product of any strides, in tiles, with a bias in the epilogue."""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE


@triton.jit
def _grouped(tile, num_rows, num_columns, GROUP: tl.constexpr):
    """Row and column of a tile, going down GROUP rows before the next column: neighbours share operands in L2."""
    per_group = GROUP * num_columns
    first = (tile // per_group) * GROUP
    height = min(num_rows - first, GROUP)
    inside = tile % per_group
    return first + inside % height, inside // height


@triton.jit
def _batch_offset(index, shape, strides, RANK: tl.constexpr):
    """Offset of the index-th matrix; shape and strides list the batch dimensions, the innermost first."""
    offset = index.to(tl.int64) * 0
    for i in tl.static_range(RANK):
        if i == RANK - 1:
            offset += index.to(tl.int64) * strides[i]
        else:
            offset += (index % shape[i]).to(tl.int64) * strides[i]
            index = index // shape[i]
    return offset


@triton.jit
def _matmul_kernel(
    out_ptr,
    x_ptr,
    y_ptr,
    bias_ptr,
    num_rows,
    num_columns,
    num_terms,
    x_strides,
    y_strides,
    batch_shape,
    x_batch_strides,
    y_batch_strides,
    BATCH_RANK: tl.constexpr,
    COMPUTE: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """out (batch, rows, columns; row-major) = x @ y + bias. One program per tile of one matrix."""
    row_tiles = tl.cdiv(num_rows, BLOCK_M)
    column_tiles = tl.cdiv(num_columns, BLOCK_N)
    program = tl.program_id(0)
    batch = program // (row_tiles * column_tiles)
    row_tile, column_tile = _grouped(program % (row_tiles * column_tiles), row_tiles, column_tiles, GROUP)
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    terms = tl.arange(0, BLOCK_K)
    row_mask = rows < num_rows
    column_mask = columns < num_columns
    if WIDE:
        rows = rows.to(tl.int64)
        columns = columns.to(tl.int64)
        terms = terms.to(tl.int64)
    x_ptr += _batch_offset(batch, batch_shape, x_batch_strides, BATCH_RANK)
    y_ptr += _batch_offset(batch, batch_shape, y_batch_strides, BATCH_RANK)
    x_ptrs = x_ptr + rows[:, None] * x_strides[0] + terms[None, :] * x_strides[1]
    y_ptrs = y_ptr + terms[:, None] * y_strides[0] + columns[None, :] * y_strides[1]
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), COMPUTE)
    for start in range(0, num_terms, BLOCK_K):
        left = num_terms - start
        x = tl.load(x_ptrs, mask=row_mask[:, None] & (terms[None, :] < left), other=0)
        y = tl.load(y_ptrs, mask=(terms[:, None] < left) & column_mask[None, :], other=0)
        if COMPUTE.is_int():  # tensor cores have no wide integers
            accumulator += tl.sum(x.to(COMPUTE)[:, :, None] * y.to(COMPUTE)[None, :, :], axis=1)
        else:  # "ieee" are multiply-adds: with any strides, cutting float32 up for the tensor cores costs more
            accumulator = tl.dot(x, y, accumulator, input_precision=PRECISION, out_dtype=COMPUTE)
        x_ptrs += tl.cast(BLOCK_K, tl.int64) * x_strides[1]  # wide: a stride can be 2²⁵ and more
        y_ptrs += tl.cast(BLOCK_K, tl.int64) * y_strides[0]
    if bias_ptr is not None:
        accumulator += tl.load(bias_ptr + columns, mask=column_mask, other=0).to(COMPUTE)[None, :]
    out_ptr += batch.to(tl.int64) * num_rows * num_columns
    out_ptrs = out_ptr + rows[:, None] * num_columns + columns[None, :]
    tl.store(out_ptrs, accumulator.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & column_mask[None, :])


def _specimen(dtype, block, x_strides, y_strides, bias=None, wide=False, precision="ieee"):
    args = (dtype, dtype, dtype, bias, 512, 256, 512, x_strides, y_strides, (2,), (64,), (0,))
    compute = COMPUTE[dtype if dtype.is_floating_point else dtypes.int64]
    constants = {"BATCH_RANK": 1, "COMPUTE": compute, "PRECISION": precision, "WIDE": wide, "GROUP": 8}
    blocks = {"BLOCK_M": block, "BLOCK_N": block, "BLOCK_K": 16 if dtype.itemsize > 4 else 32}
    return Specimen(_matmul_kernel, args, {**constants, **blocks, "num_warps": 4, "num_stages": 3})


SPECIMENS = [
    _specimen(dtypes.float32, 64, (512, 1), (256, 1)),
    _specimen(dtypes.float32, 64, (1, 512), (1, 512), bias=dtypes.float32),
    _specimen(dtypes.float32, 64, (512, 1), (256, 1), precision="tf32"),
    _specimen(dtypes.float16, 128, (512, 1), (1, 512), bias=dtypes.float16),
    _specimen(dtypes.bfloat16, 128, (512, 1), (256, 1), wide=True),
    _specimen(dtypes.float64, 64, (512, 1), (256, 1)),
    _specimen(dtypes.int64, 16, (512, 1), (256, 1)),
    _specimen(dtypes.uint8, 16, (512, 1), (256, 1)),
]
