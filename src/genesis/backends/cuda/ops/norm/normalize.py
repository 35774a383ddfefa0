"""Building blocks of the norms: statistics over some dimensions, and one pass that applies them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, overload

from genesis.backends.cuda.driver import RawLaunch
from genesis.backends.cuda.launch.planned import Run, Varying, into_new, planned
from genesis.backends.cuda.launch.reduction_grid import power_of_2, walk
from genesis.backends.cuda.launch.strides import is_dense
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.norm.kernels import norm as kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.reduction.launch import accumulator
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.ops.storage.rows import address
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.shapes import Shape, contiguous_strides, equivalent

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

_TILE = 2048
_MOST_LANES = 16384  # of a program, some of which lie beyond the end


class Rows(NamedTuple):
    """A dense array as rows and columns, and which statistic and which channel belong to each."""

    num_rows: int
    num_columns: int
    rows_per_statistic: int
    num_statistics: int
    num_channels: int
    statistic_by_column: bool = False
    channel_by_column: bool = False


@functools.cache
def channel_rows(x: Layout) -> Rows:
    """For batch norm: columns are what lies inside a channel in memory, or the channels where they are innermost."""
    num_channels = x.shape[1]
    inside = [size for i, size in enumerate(x.shape) if i != 1 and (num_channels == 1 or x.strides[i] < x.strides[1])]
    num_inside = math.prod(inside)
    if num_inside == 1:
        return Rows(x.size // max(num_channels, 1), num_channels, 1, num_channels, num_channels, True, True)
    return Rows(x.size // max(num_inside, 1), num_inside, 1, num_channels, num_channels)


@planned
def statistics(
    x: Layout, running_mean: Layout | None, running_var: Layout | None, dims: Shape, momentum: Varying, eps: float,
    centered: bool,
) -> Run[tuple[DeviceArray | None, DeviceArray]]:  # fmt: skip
    """run(x, running_mean, running_var, momentum): mean if centered, and inverse deviation over these dimensions."""
    plan, device, wide = walk(x, dims, least_tiles=reduction.MOMENTS), x.device_index, accumulator(x.dtype)
    statistic = layout_of((plan.num_kept,), wide, device)
    if not x.size:  # gradients are zeros times these
        zeros = functools.partial(storage.full, statistic.shape, 0.0, wide, device)
        return lambda x, running_mean, running_var, momentum: (zeros() if centered else None, zeros())
    part, find = reduction.moments(x, plan)
    num_programs, constants = reduction.merging(plan.num_splits, plan.num_kept)
    arrays = (statistic if centered else None, statistic, part, part, part, running_mean, running_var)
    counts = (plan.num_kept, plan.num_splits)
    join = prepare_raw(
        kernels._statistics_kernel, device, (num_programs,), (*arrays, *counts, 0.0), float(eps),
        COMPUTE=COMPUTE[wide], **constants,
    )  # fmt: skip

    def run(
        x: DeviceArray, running_mean: DeviceArray | None, running_var: DeviceArray | None, momentum: float
    ) -> tuple[DeviceArray | None, DeviceArray]:
        stream = streams.current_handle(device)
        mean, inverse_std = statistic.new(stream) if centered else None, statistic.new(stream)
        parts = [part.new(stream) for _ in range(3)]
        places = [each.data_pointer for each in parts]
        find(stream, *places, x.data_pointer)
        running = (address(running_mean), address(running_var))
        join(stream, address(mean), inverse_std.data_pointer, *places, *running, *counts, momentum)
        return mean, inverse_std

    return run


@planned
def normalize(
    x: Layout, mean: Layout | None, inverse_std: Layout, weight: Layout | None, bias: Layout | None, rows: Rows
) -> Run[DeviceArray]:
    y = dense_like(x)
    return into_new(_launch_of_rows(kernels._normalize_kernel, (y, x, mean, inverse_std, weight, bias), rows), y)


@planned
def normalize_backward(
    grad: Layout, x: Layout, mean: Layout | None, inverse_std: Layout, weight: Layout | None, average: Layout | None,
    slope: Layout | None, rows: Rows,
) -> Run[DeviceArray]:  # fmt: skip
    grad_input = dense_like(x)
    layouts = (grad_input, grad, x, mean, inverse_std, weight, average, slope)
    return into_new(_launch_of_rows(kernels._normalize_backward_kernel, layouts, rows), grad_input)


def _launch_of_rows(kernel: JITFunction, layouts: tuple[Layout | None, ...], rows: Rows) -> RawLaunch:
    out = layouts[0]
    assert out is not None
    block_columns = _least_waste(max(rows.num_columns, 1))
    block_rows = min(_TILE // block_columns, power_of_2(rows.num_rows))
    return prepare_raw(
        kernel,
        out.device_index,
        (-(-rows.num_rows // block_rows) * -(-rows.num_columns // block_columns),),
        layouts,
        *rows[:5],
        STATISTIC_BY_COLUMN=rows.statistic_by_column,
        CHANNEL_BY_COLUMN=rows.channel_by_column,
        COMPUTE=COMPUTE[out.dtype],
        WIDE=is_wide(out),
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


@planned
def partial_sums(grad: Layout, x: Layout, mean: Layout, dims: Shape) -> Run[tuple[DeviceArray, DeviceArray]]:
    """Over these dimensions, per split: Σ grad, Σ grad·(x − mean), (splits, kept) each."""
    plan, device = walk(x, dims), x.device_index
    part = layout_of((plan.num_splits, plan.num_kept), accumulator(x.dtype), device)
    launch = prepare_raw(
        kernels._gradient_sums_kernel, device, plan.grid, (part, part, grad, x, mean), *plan.args,
        COMPUTE=COMPUTE[x.dtype], **plan.constants,
    )  # fmt: skip
    return into_new(launch, part, part)


# --- shapes and orders of memory --------------------------------------------------------------------------------------
def is_wide(x: Layout) -> bool:
    return x.size >= 2**31 - _MOST_LANES


@functools.cache
def all_but_channels(shape: Shape) -> Shape:
    return tuple(i for i in range(len(shape)) if i != 1)


def dense_like(x: Layout) -> Layout:
    """Layout of a new array in the order of one that is dense."""
    return layout_of(x.shape, x.dtype, x.device_index, x.strides)


def new(layout: Layout) -> DeviceArray:
    return layout.new(streams.current_handle(layout.device_index))


@overload
def contiguous(x: DeviceArray) -> DeviceArray: ...
@overload
def contiguous(x: DeviceArray | None) -> DeviceArray | None: ...
def contiguous(x: DeviceArray | None) -> DeviceArray | None:
    """x, or a copy of it in row-major order; None stays None."""
    return x if x is None or _is_contiguous(x._layout or x.layout) else storage.copy(x, contiguous_strides(x.shape))


@functools.cache
def _is_contiguous(x: Layout) -> bool:
    return equivalent(x.shape, x.strides, contiguous_strides(x.shape))


def dense(x: DeviceArray) -> DeviceArray:
    return x if _is_dense(x._layout or x.layout) else contiguous(x)


_is_dense = functools.cache(is_dense)


def in_order_of(x: DeviceArray, other: DeviceArray) -> DeviceArray:
    return x if equivalent(x.shape, x.strides, other.strides) else storage.copy(x, other.strides)


def reshaped(x: DeviceArray, shape: Shape) -> DeviceArray:
    """A view of a contiguous array."""
    return x.view(shape, contiguous_strides(shape), x.offset)


def planes(x: DeviceArray) -> Iterator[DeviceArray]:
    """Views of a contiguous array, one for each index of its first dimension."""
    for i in range(x.shape[0]):
        yield x.view(x.shape[1:], x.strides[1:], x.offset + i * x.strides[0])
