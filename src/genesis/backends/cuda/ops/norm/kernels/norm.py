"""Normalisation: y = (x − mean)·r·w + b with r = (variance + ε)^(−1/2); without mean (None) it is RMS norm.

With x̂ = (x − mean)·r, g = grad·w, and averages over the elements that share a mean:
    grad_input = r·(g − average g − x̂·average(g·x̂)),  grad_weight = Σ grad·x̂,  grad_bias = Σ grad

Statistics first: batch norm, and long rows of layer norm. What is summed along rows is a product by mul_rn;
see ops/reduction/.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.reduction.kernels.moments import _all_moments
from genesis.backends.cuda.ops.reduction.kernels.reduction import _columns, _kept_rows, _offset, _split, _stored_at


@triton.jit
def _statistics_kernel(
    mean_ptr,
    inverse_std_ptr,
    count_ptr,
    means_ptr,
    squares_ptr,
    running_mean_ptr,
    running_var_ptr,
    num_kept,
    num_splits,
    momentum,
    eps,
    COMPUTE: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """From the moments of all splits; the running statistics change in place."""
    rows = tl.program_id(0) * BLOCK_KEPT + tl.arange(0, BLOCK_KEPT)
    mask = rows < num_kept
    count, mean, squares = _all_moments(count_ptr, means_ptr, squares_ptr, rows, num_kept, num_splits, BLOCK_SPLITS)
    variance = squares / count
    if mean_ptr is not None:
        tl.store(mean_ptr + rows, mean, mask=mask)
    else:
        variance += mean * mean
    tl.store(inverse_std_ptr + rows, libdevice.rsqrt(variance + eps), mask=mask)
    if running_mean_ptr is not None:
        running = tl.load(running_mean_ptr + rows, mask=mask, other=0).to(COMPUTE)
        running = (1.0 - momentum) * running + momentum * mean
        tl.store(running_mean_ptr + rows, running.to(running_mean_ptr.dtype.element_ty), mask=mask)
    if running_var_ptr is not None:
        running = tl.load(running_var_ptr + rows, mask=mask, other=0).to(COMPUTE)
        running = (1.0 - momentum) * running + momentum * (squares / (count - 1.0))
        tl.store(running_var_ptr + rows, running.to(running_var_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _place(num_rows, num_columns, WIDE: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """This program's rows and columns of a dense array, the offsets and the mask."""
    num_column_blocks = tl.cdiv(num_columns, BLOCK_COLUMNS)
    row_block = tl.program_id(0) // num_column_blocks
    column_block = tl.program_id(0) % num_column_blocks
    if WIDE:
        row_block = row_block.to(tl.int64)
        column_block = column_block.to(tl.int64)
    rows = row_block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    columns = column_block * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    mask = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
    return rows, columns, rows[:, None] * num_columns + columns[None, :], mask


@triton.jit
def _parameter(
    ptr, rows, columns, num_rows, num_columns, divisor, modulus, BY_COLUMN: tl.constexpr, COMPUTE: tl.constexpr
):
    """One value per column, or per row: that of number (row // divisor) % modulus."""
    if BY_COLUMN:
        value = tl.load(ptr + columns, mask=columns < num_columns, other=0).to(COMPUTE)[None, :]
    else:
        value = tl.load(ptr + (rows // divisor) % modulus, mask=rows < num_rows, other=0).to(COMPUTE)[:, None]
    return value


@triton.jit
def _normalize_kernel(
    y_ptr,
    x_ptr,
    mean_ptr,
    inverse_std_ptr,
    weight_ptr,
    bias_ptr,
    num_rows,
    num_columns,
    rows_per_statistic,
    num_statistics,
    num_channels,
    STATISTIC_BY_COLUMN: tl.constexpr,
    CHANNEL_BY_COLUMN: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """A statistic and a channel (which has a weight and a bias) belong to each row or to each column."""
    rows, columns, offsets, mask = _place(num_rows, num_columns, WIDE, BLOCK_ROWS, BLOCK_COLUMNS)
    y = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    if mean_ptr is not None:
        y -= _parameter(
            mean_ptr,
            rows,
            columns,
            num_rows,
            num_columns,
            rows_per_statistic,
            num_statistics,
            STATISTIC_BY_COLUMN,
            COMPUTE,
        )
    scale = _parameter(
        inverse_std_ptr,
        rows,
        columns,
        num_rows,
        num_columns,
        rows_per_statistic,
        num_statistics,
        STATISTIC_BY_COLUMN,
        COMPUTE,
    )
    if weight_ptr is not None:
        scale *= _parameter(
            weight_ptr, rows, columns, num_rows, num_columns, 1, num_channels, CHANNEL_BY_COLUMN, COMPUTE
        )
    y *= scale
    if bias_ptr is not None:
        y += _parameter(bias_ptr, rows, columns, num_rows, num_columns, 1, num_channels, CHANNEL_BY_COLUMN, COMPUTE)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _normalize_backward_kernel(
    grad_input_ptr,
    grad_ptr,
    x_ptr,
    mean_ptr,
    inverse_std_ptr,
    weight_ptr,
    average_ptr,
    slope_ptr,
    num_rows,
    num_columns,
    rows_per_statistic,
    num_statistics,
    num_channels,
    STATISTIC_BY_COLUMN: tl.constexpr,
    CHANNEL_BY_COLUMN: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
):
    """r·(g − average − (x − mean)·r²·slope): averages of g and g·(x − mean), None where mean and r are constants."""
    rows, columns, offsets, mask = _place(num_rows, num_columns, WIDE, BLOCK_ROWS, BLOCK_COLUMNS)
    result = tl.load(grad_ptr + offsets, mask=mask, other=0).to(COMPUTE)
    inverse_std = _parameter(
        inverse_std_ptr,
        rows,
        columns,
        num_rows,
        num_columns,
        rows_per_statistic,
        num_statistics,
        STATISTIC_BY_COLUMN,
        COMPUTE,
    )
    if weight_ptr is not None:
        result *= _parameter(
            weight_ptr, rows, columns, num_rows, num_columns, 1, num_channels, CHANNEL_BY_COLUMN, COMPUTE
        )
    if slope_ptr is not None:
        x = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
        if mean_ptr is not None:
            x -= _parameter(
                mean_ptr,
                rows,
                columns,
                num_rows,
                num_columns,
                rows_per_statistic,
                num_statistics,
                STATISTIC_BY_COLUMN,
                COMPUTE,
            )
            result -= _parameter(
                average_ptr,
                rows,
                columns,
                num_rows,
                num_columns,
                rows_per_statistic,
                num_statistics,
                STATISTIC_BY_COLUMN,
                COMPUTE,
            )
        slope = _parameter(
            slope_ptr,
            rows,
            columns,
            num_rows,
            num_columns,
            rows_per_statistic,
            num_statistics,
            STATISTIC_BY_COLUMN,
            COMPUTE,
        )
        result -= x * (slope * inverse_std * inverse_std)
    result *= inverse_std
    tl.store(grad_input_ptr + offsets, result.to(grad_input_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_sums_kernel(
    sums_ptr,
    products_ptr,
    grad_ptr,
    x_ptr,
    mean_ptr,
    counts,
    kept,
    outer,
    inner,
    COMPUTE: tl.constexpr,
    KEPT_RANK: tl.constexpr,
    OUTER_RANK: tl.constexpr,
    INNER_RANK: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_INNER: tl.constexpr,
):
    """Per row and split of a walk (see reduction.py): Σ grad and Σ grad·(x − mean)."""
    rows, row_mask = _kept_rows(counts, WIDE, BLOCK_KEPT)
    row_offsets = _offset(rows, kept, KEPT_RANK)
    mean = tl.load(mean_ptr + rows, mask=row_mask, other=0).to(COMPUTE)[:, None]
    sums = tl.zeros((BLOCK_KEPT, BLOCK_INNER), COMPUTE)
    products = tl.zeros((BLOCK_KEPT, BLOCK_INNER), COMPUTE)
    first, last = _split(counts)
    for tile in range(first, last):
        _, offsets, column_mask = _columns(tile, counts, outer, inner, OUTER_RANK, INNER_RANK, WIDE, BLOCK_INNER)
        mask = row_mask[:, None] & column_mask[None, :]
        offsets = row_offsets[:, None] + offsets[None, :]
        grad = tl.load(grad_ptr + offsets, mask=mask, other=0).to(COMPUTE)
        x = tl.load(x_ptr + offsets, mask=mask, other=0).to(COMPUTE)
        sums += grad
        products += tl.where(mask, grad * (x - mean), 0.0)
    at = _stored_at(counts, rows, WIDE)
    tl.store(sums_ptr + at, tl.sum(sums, 1), mask=row_mask)
    tl.store(products_ptr + at, tl.sum(products, 1), mask=row_mask)


# --- small steps on arrays of statistics, element by element ----------------------------------------------------------
@triton.jit
def _channel_gradients_kernel(
    grad_weight_ptr,
    grad_bias_ptr,
    average_ptr,
    slope_ptr,
    sums_ptr,
    products_ptr,
    inverse_std_ptr,
    weight_ptr,
    scale,
    num_kept,
    num_splits,
    COMPUTE: tl.constexpr,
    BLOCK_KEPT: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
):
    """From what all splits have summed: the gradients of weight and bias, and the averages that the input's needs."""
    rows = tl.program_id(0) * BLOCK_KEPT + tl.arange(0, BLOCK_KEPT)
    splits = tl.arange(0, BLOCK_SPLITS)
    row_mask = rows < num_kept
    mask = (splits < num_splits)[:, None] & row_mask[None, :]
    offsets = splits[:, None] * num_kept + rows[None, :]
    total = tl.sum(tl.load(sums_ptr + offsets, mask=mask, other=0), 0)
    products = tl.sum(tl.load(products_ptr + offsets, mask=mask, other=0), 0)
    if grad_weight_ptr is not None:
        inverse_std = tl.load(inverse_std_ptr + rows, mask=row_mask, other=0).to(COMPUTE)
        grad_weight = (products * inverse_std).to(grad_weight_ptr.dtype.element_ty)
        tl.store(grad_weight_ptr + rows, grad_weight, mask=row_mask)
    if grad_bias_ptr is not None:
        tl.store(grad_bias_ptr + rows, total.to(grad_bias_ptr.dtype.element_ty), mask=row_mask)
    if average_ptr is not None:
        factor = tl.full((BLOCK_KEPT,), 1, COMPUTE) * scale
        if weight_ptr is not None:
            factor *= tl.load(weight_ptr + rows, mask=row_mask, other=0).to(COMPUTE)
        tl.store(average_ptr + rows, total * factor, mask=row_mask)
        tl.store(slope_ptr + rows, products * factor, mask=row_mask)


@triton.jit
def _inverse_std_kernel(variance, eps):
    return libdevice.rsqrt(variance + eps)


@triton.jit
def _product_kernel(x, y):
    return x * y


@triton.jit
def _centered_product_kernel(grad, x, mean):
    return grad * (x - mean)


@triton.jit
def _normal_product_kernel(grad, x, mean, inverse_std):
    return grad * (x - mean) * inverse_std


def _specimens(dtype, wide):
    compute = {"COMPUTE": COMPUTE[dtype]}
    rows = {**compute, "WIDE": False, "BLOCK_ROWS": 2, "BLOCK_COLUMNS": 1024}
    statistics = {**compute, "BLOCK_KEPT": 16, "BLOCK_SPLITS": 128}
    moments = (wide,) * 5
    yield Specimen(_statistics_kernel, (*moments, wide, wide, 64, 100, 0.1, 1e-5), statistics)
    yield Specimen(_statistics_kernel, (*moments, None, None, 64, 100, 0.1, 1e-5), statistics)
    finished = (dtype, dtype, wide, wide, wide, wide, wide, dtype, 1e-3, 64, 100)
    yield Specimen(_channel_gradients_kernel, finished, statistics)
    for by_column in (False, True):
        tile = {**rows, "STATISTIC_BY_COLUMN": by_column, "CHANNEL_BY_COLUMN": by_column}
        numbers = (4096, 1008, 1, 64, 64)
        yield Specimen(_normalize_kernel, (dtype, dtype, wide, wide, dtype, dtype, *numbers), tile)
        arrays = (dtype, dtype, dtype, wide, wide, dtype, wide, wide)
        yield Specimen(_normalize_backward_kernel, (*arrays, *numbers), tile)
    ranks = {**compute, "KEPT_RANK": 1, "OUTER_RANK": 1, "INNER_RANK": 1, "WIDE": False}
    planes = ((64, 224, 28, 7, 3136), (64, 3136), (32, 200704), (3136, 1))
    pixels = ((64, 784, 28, 784, 50176), (64, 1), (1, 0), (50176, 64))
    sums = (wide, wide, dtype, dtype, wide)
    yield Specimen(_gradient_sums_kernel, (*sums, *planes), {**ranks, "BLOCK_KEPT": 2, "BLOCK_INNER": 1024})
    yield Specimen(_gradient_sums_kernel, (*sums, *pixels), {**ranks, "BLOCK_KEPT": 64, "BLOCK_INNER": 32})


SPECIMENS = [
    specimen
    for dtype, wide in ((dtypes.bfloat16, dtypes.float32), (dtypes.float64, dtypes.float64))
    for specimen in _specimens(dtype, wide)
]
