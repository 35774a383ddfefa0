"""Normalisation layers, forward and backward; statistics are float32 (float64 for float64)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from genesis.backends.cuda.launch.planned import Run, into_new, planned
from genesis.backends.cuda.launch.reduction_grid import power_of_2, programs, walk
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.norm import group_norm as groups
from genesis.backends.cuda.ops.norm.kernels import layer_norm as layer_norm_kernels
from genesis.backends.cuda.ops.norm.kernels import norm as kernels
from genesis.backends.cuda.ops.norm.normalize import (
    Rows,
    all_but_channels,
    channel_rows,
    contiguous,
    dense,
    dense_like,
    in_order_of,
    is_wide,
    new,
    normalize,
    normalize_backward,
    partial_sums,
    planes,
    reshaped,
    statistics,
)
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import apply
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.reduction.launch import accumulator
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.ops.storage.rows import address
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.records import SavedGroupNorm
from genesis.shapes import Shape

Results = tuple[DeviceArray | None, ...]

_LONGEST = 16384  # elements of 4 bytes in a row that is held in registers
_TILE = 2048


# --- layer norm and RMS norm ------------------------------------------------------------------------------------------
def layer_norm(
    x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, bias: DeviceArray | None, eps: float
) -> Results:
    array.require_float("layer_norm", x.dtype)
    return _norm_rows(contiguous(x), contiguous(weight), contiguous(bias), normalized_ndim, eps, centered=True)


def rms_norm(x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, eps: float) -> Results:
    array.require_float("rms_norm", x.dtype)
    y, _, inverse_rms = _norm_rows(contiguous(x), contiguous(weight), None, normalized_ndim, eps, centered=False)
    return y, inverse_rms


@planned
def _norm_rows(
    x: Layout, weight: Layout | None, bias: Layout | None, normalized_ndim: int, eps: float, centered: bool
) -> Run[Results]:
    """run(x, weight, bias): y, the mean if it is centered, and the inverse deviation."""
    lead, num_rows, num_columns = _row_sizes(x, normalized_ndim)
    y, statistic = dense_like(x), _row_statistic(x, lead, normalized_ndim)
    mean = statistic if centered else None
    if not x.size:  # gradients are zeros times these
        zeros = functools.partial(storage.full, statistic.shape, 0.0, statistic.dtype, x.device_index)
        return lambda x, weight, bias: (new(y), zeros() if centered else None, zeros())
    if _is_long(x, num_columns):
        return _norm_long_rows(x, num_rows, num_columns, statistic, eps, centered)
    tile = _row_tile(num_rows, num_columns)
    launch = prepare_raw(
        layer_norm_kernels._layer_norm_kernel, x.device_index, (-(-num_rows // tile["BLOCK_ROWS"]),),
        (y, mean, statistic, x, weight, bias), num_rows, num_columns, float(eps), COMPUTE=COMPUTE[x.dtype],
        WIDE=is_wide(x), **tile,
    )  # fmt: skip
    return into_new(launch, y, mean, statistic)


def _norm_long_rows(
    x: Layout, num_rows: int, num_columns: int, statistic: Layout, eps: float, centered: bool
) -> Run[Results]:
    """Several passes: such rows are rare."""
    rows = Rows(num_rows, num_columns, 1, num_rows, num_columns, False, True)

    def run(x: DeviceArray, weight: DeviceArray | None, bias: DeviceArray | None) -> Results:
        matrix = x.view((num_rows, num_columns), (num_columns, 1), x.offset)
        mean, inverse_std = statistics(matrix, None, None, (1,), 0.0, eps, centered)
        y = normalize(x, mean, inverse_std, weight, bias, rows)
        return y, None if mean is None else reshaped(mean, statistic.shape), reshaped(inverse_std, statistic.shape)

    return run


def layer_norm_backward(
    grad: DeviceArray, x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, mean: DeviceArray,
    inverse_std: DeviceArray, needs: tuple[bool, bool, bool],
) -> Results:  # fmt: skip
    arrays = (contiguous(grad), contiguous(x), contiguous(weight), mean, inverse_std)
    return _norm_rows_backward(*arrays, normalized_ndim, needs)


def rms_norm_backward(
    grad: DeviceArray, x: DeviceArray, normalized_ndim: int, weight: DeviceArray | None, inverse_rms: DeviceArray,
    needs: tuple[bool, bool],
) -> Results:  # fmt: skip
    arrays = (contiguous(grad), contiguous(x), contiguous(weight), None, inverse_rms)
    return _norm_rows_backward(*arrays, normalized_ndim, (*needs, False))[:2]


@planned
def _norm_rows_backward(
    grad: Layout, x: Layout, weight: Layout | None, mean: Layout | None, inverse_std: Layout, normalized_ndim: int,
    needs: tuple[bool, bool, bool],
) -> Run[Results]:  # fmt: skip
    lead, num_rows, num_columns = _row_sizes(x, normalized_ndim)
    if _is_long(x, num_columns):
        return lambda grad, x, weight, mean, inverse_std: _long_rows_backward(
            grad, x, weight, mean, inverse_std, len(lead), needs
        )
    tile = _row_tile(num_rows, num_columns)
    num_blocks = -(-num_rows // tile["BLOCK_ROWS"])
    num_programs = min(num_blocks, programs(x.device_index) * 2 // tile["num_warps"]) if num_columns else 0
    grad_input = dense_like(x) if needs[0] else None
    wanted = (needs[1] and weight is not None, needs[2])
    wide, device = accumulator(x.dtype), x.device_index
    both = layout_of((sum(wanted), num_programs, num_columns), wide, device)
    aligned = num_programs * num_columns * wide.itemsize % 16 == 0  # of both, the second one's beginning too
    share = layout_of((num_programs, num_columns), wide, device, aligned=aligned)
    shares = [share if is_wanted else None for is_wanted in wanted]
    launch = prepare_raw(
        layer_norm_kernels._layer_norm_backward_kernel, device, (num_programs,),
        (grad_input, *shares, grad, x, weight, mean, inverse_std), num_rows, num_columns, num_blocks,
        COMPUTE=COMPUTE[x.dtype], WIDE=is_wide(x), **tile,
    )  # fmt: skip
    shape, dtype = x.shape[len(lead) :], x.dtype if weight is None else weight.dtype

    def run(grad: DeviceArray, x: DeviceArray, *others: DeviceArray | None) -> Results:
        stream = streams.current_handle(device)
        made = None if grad_input is None else grad_input.new(stream)
        sums = both.new(stream)
        parts = planes(sums)
        places = [next(parts).data_pointer if is_wanted else 0 for is_wanted in wanted]
        launch(stream, address(made), *places, grad.data_pointer, x.data_pointer, *map(address, others))
        totals: Iterator[DeviceArray] = iter(())
        if any(wanted):
            totals = planes(reduction.sum_in(sums, (1,), False, dtype))
        return made, *(reshaped(next(totals), shape) if is_wanted else None for is_wanted in wanted)

    return run


def _long_rows_backward(
    grad: DeviceArray, x: DeviceArray, weight: DeviceArray | None, mean: DeviceArray | None, inverse_std: DeviceArray,
    num_lead: int, needs: tuple[bool, bool, bool],
) -> Results:  # fmt: skip
    """Several passes: such rows are rare."""
    wide, columns = accumulator(x.dtype), tuple(range(num_lead, len(x.shape)))
    dtype = x.dtype if weight is None else weight.dtype
    center: DeviceArray | float = 0.0 if mean is None else mean
    grad_input = grad_weight = grad_bias = None
    if needs[0]:
        weighted = grad if weight is None else apply(kernels._product_kernel, grad, weight, dtype=wide)
        centered = apply(kernels._centered_product_kernel, weighted, x, center, dtype=wide)
        average = None if mean is None else reduction.mean_in(weighted, columns, True, wide)
        slope = reduction.mean_in(centered, columns, True, wide)
        num_rows, num_columns = math.prod(x.shape[:num_lead]), math.prod(x.shape[num_lead:])
        rows = Rows(num_rows, num_columns, 1, num_rows, num_columns, False, True)
        grad_input = normalize_backward(grad, x, mean, inverse_std, weight, average, slope, rows)
    lead = tuple(range(num_lead))
    if needs[1] and weight is not None:
        products = apply(kernels._normal_product_kernel, grad, x, center, inverse_std, dtype=wide)
        grad_weight = reduction.sum_in(products, lead, False, dtype) if lead else storage.cast(products, dtype)
    if needs[2]:
        grad_bias = reduction.sum_in(grad, lead, False, dtype) if lead else storage.cast(grad, dtype)
    return grad_input, grad_weight, grad_bias


def _row_sizes(x: Layout, normalized_ndim: int) -> tuple[Shape, int, int]:
    """The leading dimensions, how many rows they are, how long a row is."""
    cut = len(x.shape) - normalized_ndim
    return x.shape[:cut], math.prod(x.shape[:cut]), math.prod(x.shape[cut:])


def _row_tile(num_rows: int, num_columns: int) -> dict[str, int]:
    block_columns = power_of_2(num_columns)
    block_rows = min(max(_TILE // block_columns, 1), power_of_2(num_rows))
    # No more threads than elements: the others would hold copies and do the same once more.
    num_warps = max(min(4, max(block_rows * block_columns // 128, 1)), min(block_columns // 512, 16))
    return {"BLOCK_ROWS": block_rows, "BLOCK_COLUMNS": block_columns, "num_warps": num_warps}


def _is_long(x: Layout, num_columns: int) -> bool:
    return num_columns * max(x.dtype.itemsize, 4) > _LONGEST * 4


def _row_statistic(x: Layout, lead: Shape, normalized_ndim: int) -> Layout:
    return layout_of(lead + (1,) * normalized_ndim, accumulator(x.dtype), x.device_index)


# --- batch norm -------------------------------------------------------------------------------------------------------
def batch_norm(
    x: DeviceArray, weight: DeviceArray | None, bias: DeviceArray | None, running_mean: DeviceArray | None,
    running_var: DeviceArray | None, training: bool, momentum: float, eps: float,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    array.require_float("batch_norm", x.dtype)
    x, weight, bias = storage.viewable(dense(x)), contiguous(weight), contiguous(bias)
    own_mean, own_var = contiguous(running_mean), contiguous(running_var)
    if training:
        mean, inverse_std = statistics(x, own_mean, own_var, all_but_channels(x.shape), float(momentum), eps, True)
        for statistic, changed in ((running_mean, own_mean), (running_var, own_var)):
            if statistic is not changed:
                storage.copy_into(statistic, changed)  # type: ignore[arg-type]
    else:
        mean, inverse_std = own_mean, apply(kernels._inverse_std_kernel, own_var, eps)
    assert mean is not None
    y = normalize(x, mean, inverse_std, weight, bias, channel_rows(x.layout))
    return y, mean, inverse_std


def batch_norm_backward(
    grad: DeviceArray, x: DeviceArray, weight: DeviceArray | None, mean: DeviceArray, inverse_std: DeviceArray,
    training: bool, needs: tuple[bool, bool, bool],
) -> Results:  # fmt: skip
    x, weight = dense(x), contiguous(weight)
    grad = in_order_of(grad, x)
    grad_weight = grad_bias = average = slope = None
    if (training and needs[0]) or needs[1] or needs[2]:
        wanted = (needs[1], needs[2], training, training)
        grad_weight, grad_bias, average, slope = _channel_gradients(grad, x, weight, mean, inverse_std, wanted)
    if not needs[0]:
        return None, grad_weight, grad_bias
    rows = channel_rows(x.layout)
    grad_input = normalize_backward(grad, x, mean, inverse_std, weight, average, slope, rows)
    return grad_input, grad_weight, grad_bias


@planned
def _channel_gradients(
    grad: Layout, x: Layout, weight: Layout | None, mean: Layout, inverse_std: Layout, wanted: tuple[bool, ...]
) -> Run[Results]:
    """run(grad, x, weight, mean, inverse_std): gradients of weight and bias, and the averages for the input's."""
    plan, device, wide = walk(x, all_but_channels(x.shape)), x.device_index, accumulator(x.dtype)
    dtypes = [x.dtype if weight is None else weight.dtype] * 2 + [wide] * 2
    results = [
        layout_of((plan.num_kept,), dtype, device) if is_wanted else None
        for dtype, is_wanted in zip(dtypes, wanted, strict=True)
    ]
    num_programs, constants = reduction.merging(plan.num_splits, plan.num_kept)
    part = layout_of((plan.num_splits, plan.num_kept), wide, device)
    launch = prepare_raw(
        kernels._channel_gradients_kernel, device, (num_programs,), (*results, part, part, inverse_std, weight),
        1.0 / max(plan.num_reduced, 1), plan.num_kept, plan.num_splits, COMPUTE=COMPUTE[wide], **constants,
    )  # fmt: skip
    join = into_new(launch, *results)
    return lambda grad, x, weight, mean, inverse_std: join(
        *partial_sums(grad, x, mean, all_but_channels(x.shape)), inverse_std, weight
    )


# --- group norm, its activation included ------------------------------------------------------------------------------
def group_norm(
    x: DeviceArray, num_groups: int, weight: DeviceArray | None, bias: DeviceArray | None, eps: float,
    activation: str | None = None,
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:  # fmt: skip
    array.require_float("group_norm", x.dtype)
    if not x.size:
        shape = (x.shape[0], num_groups)
        mean, inverse_std = (storage.full(shape, math.nan, accumulator(x.dtype), x.device_index) for _ in range(2))
        return new(dense_like(x.layout)), mean, inverse_std
    return groups.forward(groups.ordered(x), contiguous(weight), contiguous(bias), num_groups, float(eps), activation)


def group_norm_backward(
    grad: DeviceArray, saved: SavedGroupNorm[DeviceArray], num_groups: int, needs: tuple[bool, bool, bool],
    activation: str | None = None,
) -> Results:  # fmt: skip
    x, weight, bias, mean, inverse_std = saved
    if not x.size:
        dtype = x.dtype if weight is None else weight.dtype
        values = math.nan if x.shape[0] else 0.0, 0.0  # of groups without elements, and of none: PyTorch's
        shape = (x.shape[1],)
        sums = [
            storage.full(shape, value, dtype, x.device_index) if need else None
            for value, need in zip(values, needs[1:], strict=True)
        ]
        return new(dense_like(x.layout)) if needs[0] else None, *sums
    x = groups.ordered(x)
    parameters = (contiguous(weight), None if activation is None else contiguous(bias))
    known = (contiguous(mean), contiguous(inverse_std))
    return groups.backward(in_order_of(grad, x), x, *parameters, *known, needs, (num_groups, activation))
