"""Normalisation layers, forward and backward; statistics are float32 (float64 for float64)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from genesis.backends.cuda.launch.reduction_grid import Walk, power_of_2, programs, walk
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.launch.triton import launch
from genesis.backends.cuda.ops.norm.kernels import layer_norm as layer_norm_kernels
from genesis.backends.cuda.ops.norm.kernels import norm as kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import apply
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.reduction.launch import accumulator
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.shapes import Shape, contiguous_strides, equivalent

Gradients = tuple[DeviceArray | None, ...]

_LONGEST = 16384  # elements of 4 bytes in a row that is held in registers
_TILE = 2048


# --- layer norm and RMS norm ------------------------------------------------------------------------------------------
def layer_norm(
    x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, bias: DeviceArray | None, eps: float
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    lead = x.shape[: len(x.shape) - normalized_ndim]
    mean = _statistic(x, lead + (1,) * normalized_ndim)
    y, inverse_std = _norm_rows("layer_norm", x, normalized_ndim, weight, bias, mean, eps)
    return y, mean, inverse_std


def rms_norm(
    x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, eps: float
) -> tuple[DeviceArray, DeviceArray]:
    return _norm_rows("rms_norm", x, normalized_ndim, weight, None, None, eps)


def _norm_rows(
    op: str, x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, bias: DeviceArray | None,
    mean: DeviceArray | None, eps: float,
) -> tuple[DeviceArray, DeviceArray]:  # fmt: skip
    """y and the inverse deviation; the mean goes where it is wanted."""
    array.require_float(op, x.dtype)
    x, weight, bias = _contiguous(x), _contiguous(weight), _contiguous(bias)
    lead, num_rows, num_columns = _rows(x, normalized_ndim)
    y = array.empty(x.shape, x.dtype, x.device_index)
    inverse_std = _statistic(x, lead + (1,) * normalized_ndim)
    if _is_long(x, num_columns):
        rows = x.view((num_rows, num_columns), (num_columns, 1), x.offset)
        _statistics(rows, walk(rows, (1,), least_tiles=reduction.MOMENTS), mean, inverse_std, None, None, 0.0, eps)
        _normalize(
            y, x, mean, inverse_std, weight, bias, _Rows(num_rows, num_columns, 1, num_rows, num_columns, False, True)
        )
        return y, inverse_std
    tile = _row_tile(num_rows, num_columns)
    grid = (-(-num_rows // tile["BLOCK_ROWS"]) if num_columns else 0,)
    args = (y, mean, inverse_std, x, weight, bias, num_rows, num_columns, float(eps))
    launch(layer_norm_kernels._layer_norm_kernel, grid, *args, COMPUTE=COMPUTE[x.dtype], WIDE=_is_wide(x), **tile)
    return y, inverse_std


def layer_norm_backward(
    grad: DeviceArray, x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, mean: DeviceArray,
    inverse_std: DeviceArray, needs: tuple[bool, bool, bool],
) -> Gradients:  # fmt: skip
    return _norm_rows_backward(grad, x, normalized_ndim, weight, mean, inverse_std, needs)


def rms_norm_backward(
    grad: DeviceArray, x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, inverse_rms: DeviceArray,
    needs: tuple[bool, bool],
) -> Gradients:  # fmt: skip
    return _norm_rows_backward(grad, x, normalized_ndim, weight, None, inverse_rms, (*needs, False))[:2]


def _norm_rows_backward(
    grad: DeviceArray, x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, mean: DeviceArray | None,
    inverse_std: DeviceArray, needs: tuple[bool, bool, bool],
) -> Gradients:  # fmt: skip
    grad, x, weight = _contiguous(grad), _contiguous(x), _contiguous(weight)
    lead, num_rows, num_columns = _rows(x, normalized_ndim)
    if _is_long(x, num_columns):
        return _long_rows_backward(grad, x, len(lead), weight, mean, inverse_std, needs)
    tile = _row_tile(num_rows, num_columns)
    num_blocks = -(-num_rows // tile["BLOCK_ROWS"])
    num_programs = min(num_blocks, programs(x.device_index) * 2 // tile["num_warps"]) if num_columns else 0
    grad_input = array.empty(x.shape, x.dtype, x.device_index) if needs[0] else None
    wanted = [needs[1] and weight is not None, needs[2]]
    both = array.empty((sum(wanted), num_programs, num_columns), accumulator(x.dtype), x.device_index)
    parts = _planes(both)
    shares = [next(parts) if is_wanted else None for is_wanted in wanted]
    args = (grad_input, *shares, grad, x, weight, mean, inverse_std, num_rows, num_columns, num_blocks)
    if num_programs:
        kernel = layer_norm_kernels._layer_norm_backward_kernel
        launch(kernel, (num_programs,), *args, COMPUTE=COMPUTE[x.dtype], WIDE=_is_wide(x), **tile)
    totals: Iterator[DeviceArray] = iter(())
    if any(wanted):
        totals = _planes(reduction.sum_in(both, (1,), False, x.dtype if weight is None else weight.dtype))
    shape = x.shape[len(lead) :]
    return grad_input, *(_reshaped(next(totals), shape) if is_wanted else None for is_wanted in wanted)


def _long_rows_backward(
    grad: DeviceArray, x: DeviceArray, num_lead: int, weight: DeviceArray | None, mean: DeviceArray | None,
    inverse_std: DeviceArray, needs: tuple[bool, bool, bool],
) -> Gradients:  # fmt: skip
    """Several passes: such rows are rare."""
    wide, columns = accumulator(x.dtype), tuple(range(num_lead, len(x.shape)))
    dtype = x.dtype if weight is None else weight.dtype
    center: DeviceArray | float = 0.0 if mean is None else mean
    grad_input = grad_weight = grad_bias = None
    if needs[0]:
        grad_input = array.empty(x.shape, x.dtype, x.device_index)
        weighted = grad if weight is None else apply(kernels._product_kernel, grad, weight, dtype=wide)
        centered = apply(kernels._centered_product_kernel, weighted, x, center, dtype=wide)
        average = None if mean is None else reduction.mean_in(weighted, columns, True, wide)
        slope = reduction.mean_in(centered, columns, True, wide)
        num_rows, num_columns = math.prod(x.shape[:num_lead]), math.prod(x.shape[num_lead:])
        rows = _Rows(num_rows, num_columns, 1, num_rows, num_columns, False, True)
        _normalize_backward(grad_input, grad, x, mean, inverse_std, weight, average, slope, rows)
    lead = tuple(range(num_lead))
    if needs[1] and weight is not None:
        products = apply(kernels._normal_product_kernel, grad, x, center, inverse_std, dtype=wide)
        grad_weight = reduction.sum_in(products, lead, False, dtype) if lead else storage.cast(products, dtype)
    if needs[2]:
        grad_bias = reduction.sum_in(grad, lead, False, dtype) if lead else storage.cast(grad, dtype)
    return grad_input, grad_weight, grad_bias


# --- batch norm -------------------------------------------------------------------------------------------------------
def batch_norm(
    x: DeviceArray, weight: DeviceArray | None, bias: DeviceArray | None, running_mean: DeviceArray | None,
    running_var: DeviceArray | None, training: bool, momentum: float, eps: float,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    array.require_float("batch_norm", x.dtype)
    x, weight, bias = _dense(x), _contiguous(weight), _contiguous(bias)
    running = (running_mean, running_var)
    running_mean, running_var = (_contiguous(statistic) for statistic in running)
    if training:
        mean, inverse_std = (_statistic(x, x.shape[1:2]) for _ in range(2))
        if x.size:
            plan = walk(x, _all_but_channels(x), least_tiles=reduction.MOMENTS)
            _statistics(x, plan, mean, inverse_std, running_mean, running_var, momentum, eps)
        for statistic, changed in zip(running, (running_mean, running_var), strict=True):
            if statistic is not None and statistic is not changed:
                storage.copy_into(statistic, changed)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean = running_mean
        inverse_std = apply(kernels._inverse_std_kernel, running_var, eps)
    y = array.empty(x.shape, x.dtype, x.device_index, x.strides)
    _normalize(y, x, mean, inverse_std, weight, bias, _channel_rows(x))
    return y, mean, inverse_std


def batch_norm_backward(
    grad: DeviceArray, x: DeviceArray, weight: DeviceArray | None, mean: DeviceArray, inverse_std: DeviceArray,
    training: bool, needs: tuple[bool, bool, bool],
) -> Gradients:  # fmt: skip
    x, weight = _dense(x), _contiguous(weight)
    grad = _in_order_of(grad, x)
    grad_input = None
    gradients: list[DeviceArray | None] = [None] * 4  # of weight and bias; the averages that the input's takes
    if (training and needs[0]) or needs[1] or needs[2]:
        plan = walk(x, _all_but_channels(x))
        dtypes = [x.dtype if weight is None else weight.dtype] * 2 + [accumulator(x.dtype)] * 2
        wanted = (needs[1], needs[2], training, training)
        gradients = [
            array.empty((plan.num_kept,), dtype, x.device_index) if is_wanted else None
            for dtype, is_wanted in zip(dtypes, wanted, strict=True)
        ]
        num_programs, constants = reduction.merging(plan.num_splits, plan.num_kept)
        args = (*gradients, *_partial_sums(grad, x, mean, 1, plan), inverse_std, weight)
        numbers = (1.0 / max(plan.num_reduced, 1), plan.num_kept, plan.num_splits)
        compute = COMPUTE[accumulator(x.dtype)]
        launch(kernels._channel_gradients_kernel, (num_programs,), *args, *numbers, COMPUTE=compute, **constants)
    grad_weight, grad_bias, average, slope = gradients
    if needs[0]:
        grad_input = array.empty(x.shape, x.dtype, x.device_index, x.strides)
        _normalize_backward(grad_input, grad, x, mean, inverse_std, weight, average, slope, _channel_rows(x))
    return grad_input, grad_weight, grad_bias


# --- group norm -------------------------------------------------------------------------------------------------------
def group_norm(
    x: DeviceArray, num_groups: int, weight: DeviceArray | None, bias: DeviceArray | None, eps: float
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    array.require_float("group_norm", x.dtype)
    x, weight, bias = _contiguous(x), _contiguous(weight), _contiguous(bias)
    num_samples = x.shape[0]
    mean, inverse_std = (_statistic(x, (num_samples, num_groups), math.nan) for _ in range(2))
    y = array.empty(x.shape, x.dtype, x.device_index)
    if x.size:
        groups = _reshaped(x, (num_samples * num_groups, x.size // (num_samples * num_groups)))
        _statistics(groups, walk(groups, (1,), least_tiles=reduction.MOMENTS), mean, inverse_std, None, None, 0.0, eps)
        _normalize(y, x, mean, inverse_std, weight, bias, _plane_rows(x, num_groups))
    return y, mean, inverse_std


def group_norm_backward(
    grad: DeviceArray, x: DeviceArray, num_groups: int, weight: DeviceArray | None, mean: DeviceArray,
    inverse_std: DeviceArray, needs: tuple[bool, bool, bool],
) -> Gradients:  # fmt: skip
    grad, x, weight = _contiguous(grad), _contiguous(x), _contiguous(weight)
    num_samples, num_channels = x.shape[:2]
    per_group = num_channels // num_groups
    planes = (num_samples, num_groups, per_group)
    plan = walk(x, tuple(range(2, len(x.shape))))
    parts = [_reshaped(part, planes) for part in _gradient_sums(grad, x, mean, per_group, plan)]
    grad_input = grad_weight = grad_bias = None
    dtype = x.dtype if weight is None else weight.dtype
    if needs[0]:
        grad_input = array.empty(x.shape, x.dtype, x.device_index)
        scale = 1.0 / max(per_group * plan.num_reduced, 1)
        factor = 1.0 if weight is None else _reshaped(weight, planes[1:])
        wide = mean.dtype
        average, slope = (
            reduction.sum_in(apply(kernels._scaled_product_kernel, part, factor, scale, dtype=wide), (2,), False, wide)
            for part in parts
        )
        rows = _plane_rows(x, num_groups)
        _normalize_backward(grad_input, grad, x, mean, inverse_std, weight, average, slope, rows)
    if needs[1]:
        deviations = inverse_std.view((num_samples, num_groups, 1), (num_groups, 1, 1), inverse_std.offset)
        products = apply(kernels._product_kernel, parts[1], deviations)
        grad_weight = _reshaped(reduction.sum_in(products, (0,), False, dtype), (num_channels,))
    if needs[2]:
        grad_bias = _reshaped(reduction.sum_in(parts[0], (0,), False, dtype), (num_channels,))
    return grad_input, grad_weight, grad_bias


def _statistic(x: DeviceArray, shape: Shape, of_nothing: float = 0.0) -> DeviceArray:
    """For what a kernel finds out of x; where x is empty there is no kernel, and gradients are zeros times this."""
    wide = accumulator(x.dtype)
    return array.empty(shape, wide, x.device_index) if x.size else storage.full(shape, of_nothing, wide, x.device_index)


# --- launches they share ----------------------------------------------------------------------------------------------
class _Rows(NamedTuple):
    """A dense array as rows and columns, and which statistic and which channel belong to each."""

    num_rows: int
    num_columns: int
    rows_per_statistic: int
    num_statistics: int
    num_channels: int
    statistic_by_column: bool = False
    channel_by_column: bool = False


def _channel_rows(x: DeviceArray) -> _Rows:
    """For batch norm: columns are what lies inside a channel in memory, or the channels where they are innermost."""
    num_channels = x.shape[1]
    inside = [size for i, size in enumerate(x.shape) if i != 1 and (num_channels == 1 or x.strides[i] < x.strides[1])]
    num_inside = math.prod(inside)
    if num_inside == 1:
        return _Rows(x.size // max(num_channels, 1), num_channels, 1, num_channels, num_channels, True, True)
    return _Rows(x.size // max(num_inside, 1), num_inside, 1, num_channels, num_channels)


def _plane_rows(x: DeviceArray, num_groups: int) -> _Rows:
    num_samples, num_channels = x.shape[:2]
    num_rows, num_columns = num_samples * num_channels, math.prod(x.shape[2:])
    return _Rows(num_rows, num_columns, num_channels // num_groups, num_samples * num_groups, num_channels)


def _statistics(
    x: DeviceArray, plan: Walk, mean: DeviceArray | None, inverse_std: DeviceArray, running_mean: DeviceArray | None,
    running_var: DeviceArray | None, momentum: float, eps: float,
) -> None:  # fmt: skip
    parts = reduction.moments(x, plan)
    num_programs, constants = parts.merging
    args = (mean, inverse_std, *parts, running_mean, running_var, plan.num_kept, plan.num_splits)
    compute = COMPUTE[inverse_std.dtype]
    launch(
        kernels._statistics_kernel, (num_programs,), *args, float(momentum), float(eps), COMPUTE=compute, **constants
    )


def _normalize(
    y: DeviceArray, x: DeviceArray, mean: DeviceArray | None, inverse_std: DeviceArray, weight: DeviceArray | None,
    bias: DeviceArray | None, rows: _Rows,
) -> None:  # fmt: skip
    _launch_rows(kernels._normalize_kernel, (y, x, mean, inverse_std, weight, bias), rows)


def _normalize_backward(
    grad_input: DeviceArray, grad: DeviceArray, x: DeviceArray, mean: DeviceArray | None, inverse_std: DeviceArray,
    weight: DeviceArray | None, average: DeviceArray | None, slope: DeviceArray | None, rows: _Rows,
) -> None:  # fmt: skip
    arrays = (grad_input, grad, x, mean, inverse_std, weight, average, slope)
    _launch_rows(kernels._normalize_backward_kernel, arrays, rows)


def _launch_rows(kernel: Any, arrays: tuple[DeviceArray | None, ...], rows: _Rows) -> None:
    if 0 in (rows.num_rows, rows.num_columns):
        return
    x = arrays[0]
    assert x is not None
    block_columns = _least_waste(rows.num_columns)
    block_rows = min(_TILE // block_columns, power_of_2(rows.num_rows))
    launch(
        kernel,
        (-(-rows.num_rows // block_rows) * -(-rows.num_columns // block_columns),),
        *arrays,
        *rows[:5],
        STATISTIC_BY_COLUMN=rows.statistic_by_column,
        CHANNEL_BY_COLUMN=rows.channel_by_column,
        COMPUTE=COMPUTE[x.dtype],
        WIDE=_is_wide(x),
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=block_columns,
    )


def _least_waste(num_columns: int) -> int:
    """The largest block that leaves at most a twentieth of the lanes idle at the end of a row.

    >>> _least_waste(64), _least_waste(3136), _least_waste(100_000)
    (64, 128, 2048)
    """
    if num_columns <= 64:
        return power_of_2(num_columns)
    candidates = (64, 128, 256, 512, 1024, _TILE)
    return min(candidates, key=lambda block: (-(-num_columns // block) * block / num_columns > 1.05, -block))


def _gradient_sums(
    grad: DeviceArray, x: DeviceArray, mean: DeviceArray, rows_per_statistic: int, plan: Walk
) -> tuple[DeviceArray, DeviceArray]:
    """Per kept element of the walk: Σ grad, Σ grad·(x − mean)."""
    sums, products = _partial_sums(grad, x, mean, rows_per_statistic, plan)
    if plan.num_splits == 1:
        return _reshaped(sums, sums.shape[1:]), _reshaped(products, products.shape[1:])
    return reduction.sum_in(sums, (0,), False, sums.dtype), reduction.sum_in(products, (0,), False, sums.dtype)


def _partial_sums(
    grad: DeviceArray, x: DeviceArray, mean: DeviceArray, rows_per_statistic: int, plan: Walk
) -> tuple[DeviceArray, DeviceArray]:
    """The same, per split as well: (splits, kept)."""
    wide = accumulator(x.dtype)
    shape = (plan.num_splits, plan.num_kept)
    sums, products = (array.empty(shape, wide, x.device_index) for _ in range(2))
    args = (sums, products, grad, x, mean, rows_per_statistic, *plan.args)
    launch(kernels._gradient_sums_kernel, plan.grid, *args, COMPUTE=COMPUTE[x.dtype], **plan.constants)
    return sums, products


# --- shapes and orders of memory --------------------------------------------------------------------------------------
def _rows(x: DeviceArray, normalized_ndim: int) -> tuple[Shape, int, int]:
    """The leading dimensions, how many rows they are, how long a row is."""
    cut = len(x.shape) - normalized_ndim
    return x.shape[:cut], math.prod(x.shape[:cut]), math.prod(x.shape[cut:])


def _row_tile(num_rows: int, num_columns: int) -> dict[str, int]:
    block_columns = power_of_2(num_columns)
    block_rows = min(max(_TILE // block_columns, 1), power_of_2(num_rows))
    # No more threads than elements: the others would hold copies and do the same once more.
    num_warps = max(min(4, max(block_rows * block_columns // 128, 1)), min(block_columns // 512, 16))
    return {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns, "num_warps": num_warps}


def _is_long(x: DeviceArray, num_columns: int) -> bool:
    return num_columns * max(x.dtype.itemsize, 4) > _LONGEST * 4


def _is_wide(x: DeviceArray) -> bool:
    return x.size >= 2**31 - _LONGEST


def _all_but_channels(x: DeviceArray) -> Shape:
    return tuple(i for i in range(len(x.shape)) if i != 1)


def _contiguous(x: Any) -> Any:
    return x if x is None else _in_strides(x, contiguous_strides(x.shape))


def _dense(x: DeviceArray) -> DeviceArray:
    return x if is_dense(x) else _contiguous(x)


def _in_order_of(x: DeviceArray, other: DeviceArray) -> DeviceArray:
    return _in_strides(x, other.strides)


def _in_strides(x: DeviceArray, strides: Shape) -> DeviceArray:
    return x if equivalent(x.shape, x.strides, strides) else storage.copy(x, strides)


def _reshaped(x: DeviceArray, shape: Shape) -> DeviceArray:
    """A view of a contiguous array."""
    return x.view(shape, contiguous_strides(shape), x.offset)


def _planes(x: DeviceArray) -> Iterator[DeviceArray]:
    """Views of a contiguous array, one for each index of its first dimension."""
    for i in range(x.shape[0]):
        yield x.view(x.shape[1:], x.strides[1:], x.offset + i * x.strides[0])
