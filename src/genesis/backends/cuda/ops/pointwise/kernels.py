"""The two loops around every element-wise op: one over memory that all operands walk alike, one over any strides.

OP is the op's own @triton.jit function of up to four operands; the compiled kernel bears its name. An operand is an
array (a pointer), a number, or None where the op takes fewer. Values are computed in COMPUTE, so 16-bit floats in
float32.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import TRITON_NAMES, Specimen

# What values of each dtype are computed in.
COMPUTE = {dtype: tl.str_to_ty(name, None) for dtype, name in TRITON_NAMES.items()}
COMPUTE |= {dtypes.float16: tl.float32, dtypes.bfloat16: tl.float32, dtypes.bool_: tl.int8}


def _name_of_op(specialization):
    return specialization.constants["OP"].__name__


@triton.jit
def _apply(OP: tl.constexpr, a, b, c, d):
    if b is None:
        result = OP(a)
    elif c is None:
        result = OP(a, b)
    elif d is None:
        result = OP(a, b, c)
    else:
        result = OP(a, b, c, d)
    return result


@triton.jit
def _value(operand, offsets, mask, IS_ARRAY: tl.constexpr, COMPUTE: tl.constexpr):
    if operand is None:
        value = None
    elif IS_ARRAY:
        value = tl.load(operand + offsets, mask=mask).to(COMPUTE)
    else:
        value = operand.to(COMPUTE)
    return value


@triton.jit(repr=_name_of_op, do_not_specialize=["a", "b", "c", "d"])
def pointwise_kernel(
    out_ptr,
    a,
    b,
    c,
    d,
    num_elements,
    OP: tl.constexpr,
    ARRAYS: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Element i of every array lies at its address + i. ARRAYS: bit k is set where operand k is an array."""
    block = tl.program_id(0)
    if WIDE:
        block = block.to(tl.int64)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < num_elements
    result = _apply(
        OP,
        _value(a, offsets, mask, ARRAYS & 1, COMPUTE),
        _value(b, offsets, mask, ARRAYS & 2, COMPUTE),
        _value(c, offsets, mask, ARRAYS & 4, COMPUTE),
        _value(d, offsets, mask, ARRAYS & 8, COMPUTE),
    )
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _strided_value(operand, rows, columns, mask, shape, strides, RANK: tl.constexpr, COMPUTE: tl.constexpr):
    if operand is None:
        value = None
    elif strides is None:
        value = operand.to(COMPUTE)
    else:
        value = tl.load(operand + _offsets(rows, columns, shape, strides, RANK), mask=mask).to(COMPUTE)
    return value


@triton.jit
def _offsets(rows, columns, shape, strides, RANK: tl.constexpr):
    """Offsets of the elements at these columns (the innermost dimension) and rows (all others, flattened)."""
    offsets = columns * strides[0]
    for k in tl.static_range(RANK):
        if k == RANK - 1:
            offsets = offsets + rows * strides[k + 1]
        else:
            offsets = offsets + (rows % shape[k]) * strides[k + 1]
            rows = rows // shape[k]
    return offsets


@triton.jit(repr=_name_of_op, do_not_specialize=["a", "b", "c", "d"])
def pointwise_strided_kernel(
    out_ptr,
    a,
    b,
    c,
    d,
    num_rows,
    num_columns,
    shape,
    out_strides,
    a_strides,
    b_strides,
    c_strides,
    d_strides,
    OP: tl.constexpr,
    RANK: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """Any strides. Their dimension 0 is the innermost (columns); shape holds the RANK others, inner ones first."""
    num_column_blocks = tl.cdiv(num_columns, BLOCK_COLUMNS)
    row_block = tl.program_id(0) // num_column_blocks
    column_block = tl.program_id(0) % num_column_blocks
    rows = (row_block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    columns = (column_block * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS))[None, :]
    if WIDE:
        rows = rows.to(tl.int64)
        columns = columns.to(tl.int64)
    mask = (rows < num_rows) & (columns < num_columns)
    result = _apply(
        OP,
        _strided_value(a, rows, columns, mask, shape, a_strides, RANK, COMPUTE),
        _strided_value(b, rows, columns, mask, shape, b_strides, RANK, COMPUTE),
        _strided_value(c, rows, columns, mask, shape, c_strides, RANK, COMPUTE),
        _strided_value(d, rows, columns, mask, shape, d_strides, RANK, COMPUTE),
    )
    offsets = _offsets(rows, columns, shape, out_strides, RANK)
    tl.store(out_ptr + offsets, result.to(out_ptr.dtype.element_ty), mask=mask)


def specimen(op, *operands, out=None):
    """The loop over dense memory around op, for operands given as dtypes and numbers."""
    arrays = [operand for operand in operands if isinstance(operand, dtypes.DType)]
    padded = (*operands, None, None, None)[:4]
    bits = sum(1 << i for i, operand in enumerate(operands) if operand in arrays)
    constants = {"OP": op, "ARRAYS": bits, "COMPUTE": COMPUTE[arrays[-1]], "WIDE": False, "BLOCK": 1024}
    return Specimen(pointwise_kernel, (out or arrays[-1], *padded, 1024), constants)


def strided_specimen(op, dtype, rank, wide=False):
    """The loop over any strides around an op on two arrays: one dense, one with steps, in rank + 1 dimensions."""
    dense, steps = (1, *range(100, 100 * (rank + 1), 100)), (3, *range(30, 30 * (rank + 1), 30))
    shape = (7,) * rank
    constants = {"OP": op, "RANK": rank, "COMPUTE": COMPUTE[dtype], "WIDE": wide, "BLOCK_ROWS": 32, "BLOCK_COLUMNS": 32}
    args = (dtype, dtype, dtype, None, None, 49, 33, shape, dense, dense, steps, None, None)
    return Specimen(pointwise_strided_kernel, args, constants)
