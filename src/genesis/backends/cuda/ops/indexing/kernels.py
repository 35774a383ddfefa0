"""Gathering from and scattering to places that an index array names; triangles; the places of what is not zero.

The table is what is indexed; the other array is the result of a gather, or the source of a scatter. All walk through
one shape as in ops/pointwise/, innermost dimension first; the table does not move along the dimension that is indexed.
"""

import triton
import triton.language as tl

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE, _offsets, specimen


def _name_of_action(specialization):
    return f"_{specialization.constants['ACTION']}_kernel"


@triton.jit
def _copy_rows(out_ptr, x_ptr, rows, num_rows, width, out_width, BLOCK_N: tl.constexpr):
    """The rows of a dense matrix, if there is one, into places of a wider one."""
    if x_ptr is not None:
        for start in range(0, width, BLOCK_N):
            columns = start + tl.arange(0, BLOCK_N)
            mask = (rows < num_rows)[:, None] & (columns < width)[None, :]
            values = tl.load(x_ptr + rows[:, None] * width + columns[None, :], mask=mask)
            tl.store(out_ptr + rows[:, None] * out_width + columns[None, :], values, mask=mask)


@triton.jit
def _cat_kernel(
    out_ptr,
    x0_ptr,
    x1_ptr,
    x2_ptr,
    x3_ptr,
    x4_ptr,
    x5_ptr,
    x6_ptr,
    x7_ptr,
    num_rows,
    out_width,
    widths,
    starts,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Matrices side by side: program (i, k) copies rows of the k-th, which begins at column starts[k] of out."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    which = tl.program_id(1)
    matrices = (x0_ptr, x1_ptr, x2_ptr, x3_ptr, x4_ptr, x5_ptr, x6_ptr, x7_ptr)
    for k in tl.static_range(8):
        if which == k:
            _copy_rows(out_ptr + starts[k], matrices[k], rows, num_rows, widths[k], out_width, BLOCK_N)


@triton.jit
def _checked(index, used, fault_ptr, size, code, WRAP: tl.constexpr):
    """The indices, counted from the front, and which of them exist; the others are reported (see faults.py).

    WRAP: negative ones count from the end. Where size is None, they are good.
    """
    exist = used
    if size is not None:
        given = index
        if WRAP:
            index = tl.where(index < 0, index + size, index)
        wrong = used & ((index < 0) | (index >= size))
        tl.store(fault_ptr + index * 0 + 1, given, mask=wrong)
        tl.store(fault_ptr + index * 0 + 2, size, mask=wrong)
        tl.store(fault_ptr + index * 0, code, mask=wrong)
        index = tl.where(wrong, 0, index)
        exist = used & (wrong == 0)
    return index, exist


@triton.jit(repr=_name_of_action, do_not_specialize=["size", "code"])
def indexed_kernel(
    table_ptr, other_ptr, index_ptr, fault_ptr, num_rows, num_columns, shape, table_steps, other_steps, index_steps,
    step, size, code, ACTION: tl.constexpr, RANK: tl.constexpr, INDEX_PER_ROW: tl.constexpr, WRAP: tl.constexpr,
    WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr,
):  # fmt: skip
    """ACTION gather: other[i] = table[…index[i]…]; scatter: from right to left; scatter_add: so, but adding up."""
    num_column_blocks = tl.cdiv(num_columns, BLOCK_COLUMNS)
    rows = (tl.program_id(0) // num_column_blocks * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    columns = (tl.program_id(0) % num_column_blocks * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS))[None, :]
    if WIDE:
        rows = rows.to(tl.int64)
        columns = columns.to(tl.int64)
    mask = (rows < num_rows) & (columns < num_columns)
    if INDEX_PER_ROW:
        used = rows < num_rows
        at = _offsets(rows, 0, shape, index_steps, RANK)
    else:
        used = mask
        at = _offsets(rows, columns, shape, index_steps, RANK)
    index, exist = _checked(tl.load(index_ptr + at, mask=used, other=0), used, fault_ptr, size, code, WRAP)
    exist = exist & mask
    table = table_ptr + _offsets(rows, columns, shape, table_steps, RANK) + index * step
    other = other_ptr + _offsets(rows, columns, shape, other_steps, RANK)
    if ACTION == "gather":
        tl.store(other, tl.load(table, mask=exist, other=0), mask=mask)
    elif ACTION == "scatter":
        tl.store(table, tl.load(other, mask=exist), mask=exist)
    else:
        tl.atomic_add(table, tl.load(other, mask=exist).to(table_ptr.dtype.element_ty), mask=exist, sem="relaxed")


@triton.jit(do_not_specialize=["size", "code"])
def _add_positions_kernel(
    positions_ptr, index_ptr, fault_ptr, num_elements, shape, index_steps, step, size, code,
    RANK: tl.constexpr, FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """positions += index · step, for x[i, j, …]; FIRST: there is nothing yet to add to."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = element < num_elements
    index = tl.load(index_ptr + _offsets(element, 0, shape, index_steps, RANK), mask=mask, other=0)
    index, _ = _checked(index, mask, fault_ptr, size, code, True)
    positions = index * step
    if not FIRST:
        positions += tl.load(positions_ptr + element, mask=mask, other=0)
    tl.store(positions_ptr + element, positions, mask=mask)


@triton.jit
def _masked_fill_kernel(x, mask, value):
    return tl.where(mask != 0, value, x)


@triton.jit(do_not_specialize=["diagonal"])
def _triangle_kernel(
    out_ptr, x_ptr, num_elements, num_rows, num_columns, diagonal, UPPER: tl.constexpr, BLOCK: tl.constexpr
):
    """The lower triangle of each matrix up to a diagonal, or the upper one from it on; zeros elsewhere."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    above = element % num_columns - element // num_columns % num_rows - diagonal
    kept = above >= 0 if UPPER else above <= 0
    mask = element < num_elements
    tl.store(out_ptr + element, tl.load(x_ptr + element, mask=mask & kept, other=0), mask=mask)


# --- nonzero: count per block, sum the counts of the blocks before, write ---------------------------------------------
@triton.jit
def _count_kernel(counts_ptr, x_ptr, num_elements, COMPUTE: tl.constexpr, BLOCK: tl.constexpr):
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + element, mask=element < num_elements, other=0).to(COMPUTE)
    tl.store(counts_ptr + tl.program_id(0), tl.sum((x != 0).to(tl.int64), axis=0))


@triton.jit
def _running_sum_kernel(sums_ptr, counts_ptr, num_counts, BLOCK: tl.constexpr):
    """sums[i] = counts[0] + … + counts[i − 1], for i up to num_counts; one program."""
    total = tl.zeros((), tl.int64)
    for start in range(0, num_counts, BLOCK):
        at = start + tl.arange(0, BLOCK)
        counts = tl.load(counts_ptr + at, mask=at < num_counts, other=0)
        tl.store(sums_ptr + at, total + tl.cumsum(counts, axis=0) - counts, mask=at < num_counts)
        total += tl.sum(counts, axis=0)
    tl.store(sums_ptr + num_counts, total)


@triton.jit
def _nonzero_kernel(
    out_ptr, x_ptr, sums_ptr, num_elements, shape, RANK: tl.constexpr, COMPUTE: tl.constexpr, BLOCK: tl.constexpr
):
    """Rows of coordinates; shape has the innermost dimension first."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x_ptr + element, mask=element < num_elements, other=0).to(COMPUTE) != 0
    row = tl.load(sums_ptr + tl.program_id(0)) + tl.cumsum(found.to(tl.int64), axis=0) - 1
    for k in tl.static_range(RANK):
        tl.store(out_ptr + row * RANK + (RANK - 1 - k), element % shape[k], mask=found)
        element = element // shape[k]


_MOVED = [dtypes.int64, dtypes.int32, dtypes.int16, dtypes.int8]  # values that only move do so as bits
_ADDED = [dtypes.float64, dtypes.float32, dtypes.int64, dtypes.int32]


@triton.jit
def _index_select_each_kernel(
    table_ptr, index_ptr, num_arrays, length, num_programs, DTYPE: tl.constexpr, COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows of the table: addresses of result, source and factors (or 0), elements of the result, the source's size
    along the dimension, and the elements that lie inside it. Then, for each program, its row and its block there."""
    program_ptr = table_ptr + 6 * num_arrays + tl.program_id(0)
    row_ptr = table_ptr + 6 * tl.load(program_ptr)
    first = tl.load(program_ptr + num_programs) * BLOCK
    pointer = tl.pointer_type(DTYPE)
    out_ptr, source_ptr = tl.load(row_ptr).to(pointer), tl.load(row_ptr + 1).to(pointer)
    factors = tl.load(row_ptr + 2)
    size, inner = tl.load(row_ptr + 4), tl.load(row_ptr + 5)
    elements = first + tl.arange(0, BLOCK)
    mask = elements < tl.load(row_ptr + 3)
    outer, place = elements // inner // length, elements // inner % length
    index = tl.load(index_ptr + place, mask=mask, other=0)
    values = tl.load(source_ptr + (outer * size + index) * inner + elements % inner, mask=mask)
    if factors != 0:
        factor = tl.load(factors.to(pointer) + place, mask=mask)
        values = (values.to(COMPUTE) * factor.to(COMPUTE)).to(DTYPE)
    tl.store(out_ptr + elements, values, mask=mask)


def _indexed_specimen(action, table, other=None, rank=1, per_row=True, wide=False, size=100):
    blocks = {"WIDE": wide, "BLOCK_ROWS": 8, "BLOCK_COLUMNS": 128}
    constants = {"ACTION": action, "RANK": rank, "INDEX_PER_ROW": per_row, "WRAP": not per_row, **blocks}
    shape, steps = (7,) * rank, tuple(range(30, 30 * rank + 30, 30))
    walks = (shape, (1, *(0 for _ in steps)), (1, *steps), (0, *steps) if per_row else (1, *steps))
    args = (table, other or table, dtypes.int64, dtypes.int64, 7**rank, 300, *walks, 32, size, 3)
    return Specimen(indexed_kernel, args, constants)


SPECIMENS = [
    Specimen(
        _cat_kernel,
        (
            dtypes.int16,
            *[dtypes.int16] * 5,
            None,
            None,
            None,
            4096,
            1280,
            (256,) * 8,
            (0, 256, 512, 768, 1024, 0, 0, 0),
        ),
        {"BLOCK_M": 8, "BLOCK_N": 256},
    ),
    *(
        Specimen(
            _index_select_each_kernel,
            (dtypes.int64, dtypes.int64, 70, 640, 3000),
            {"DTYPE": element, "COMPUTE": COMPUTE[dtype], "BLOCK": 1024},
        )
        for dtype, element in ((dtypes.float32, tl.float32), (dtypes.bfloat16, tl.bfloat16))
    ),
    *(_indexed_specimen("gather", dtype) for dtype in _MOVED),
    _indexed_specimen("gather", dtypes.int32, rank=3, per_row=False, wide=True),
    _indexed_specimen("gather", dtypes.int32, size=None),
    *(_indexed_specimen("scatter", dtype, per_row=False) for dtype in _MOVED),
    *(_indexed_specimen("scatter_add", dtype) for dtype in _ADDED),
    _indexed_specimen("scatter_add", dtypes.float32, dtypes.bfloat16, rank=2, per_row=False),
    Specimen(
        _add_positions_kernel,
        (dtypes.int64, dtypes.int64, dtypes.int64, 100, (7,), (0, 1), 5, 9, 6),
        {"RANK": 1, "FIRST": False, "BLOCK": 1024},
    ),
    specimen(_masked_fill_kernel, dtypes.bfloat16, dtypes.bool_, 1.0, out=dtypes.bfloat16),
    *(
        Specimen(_triangle_kernel, (dtype, dtype, 1000, 10, 10, 0), {"UPPER": upper, "BLOCK": 1024})
        for dtype, upper in zip(_MOVED, (True, False, True, False), strict=True)
    ),
    *(
        Specimen(_count_kernel, (dtypes.int64, dtype, 1000), {"COMPUTE": COMPUTE[dtype], "BLOCK": 1024})
        for dtype in (dtypes.float32, dtypes.bfloat16, dtypes.bool_)
    ),
    Specimen(_running_sum_kernel, (dtypes.int64, dtypes.int64, 10), {"BLOCK": 1024}),
    Specimen(
        _nonzero_kernel,
        (dtypes.int64, dtypes.bool_, dtypes.int64, 1000, (7, 9)),
        {"RANK": 2, "COMPUTE": COMPUTE[dtypes.bool_], "BLOCK": 1024},
    ),
]
