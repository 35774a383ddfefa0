"""Reductions over any dimensions, in any order of memory; walk.py says how. Results keep the order of what is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from genesis import dtypes
from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.reduction_grid import Walk, power_of_2, walk
from genesis.backends.cuda.launch.strides import collapse
from genesis.backends.cuda.launch.triton import launch, prepare
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import new_like
from genesis.backends.cuda.ops.reduction.kernels import moments as moments_kernels
from genesis.backends.cuda.ops.reduction.kernels import reduction as kernels
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray, layout_of
from genesis.dtypes import DType
from genesis.shapes import Shape, reduced


# --- one value per row ------------------------------------------------------------------------------------------------
def sum(x: DeviceArray, dims: Shape, keepdim: bool) -> DeviceArray:
    return _reduce("sum", x, dims, keepdim, _total(x.dtype))


def sum_in(x: DeviceArray, dims: Shape, keepdim: bool, dtype: DType) -> DeviceArray:
    """The sum in a dtype of its own."""
    return _reduce("sum", x, dims, keepdim, dtype)


def mean(x: DeviceArray, dims: Shape, keepdim: bool) -> DeviceArray:
    array.require_float("mean", x.dtype)
    return _reduce("sum", x, dims, keepdim, x.dtype, divide=True)


def mean_in(x: DeviceArray, dims: Shape, keepdim: bool, dtype: DType) -> DeviceArray:
    """The mean in a dtype of its own."""
    return _reduce("sum", x, dims, keepdim, dtype, divide=True)


def prod(x: DeviceArray, dims: Shape, keepdim: bool) -> DeviceArray:
    return _reduce("prod", x, dims, keepdim, _total(x.dtype))


def amax(x: DeviceArray, dims: Shape, keepdim: bool) -> DeviceArray:
    return _reduce("max", x, dims, keepdim, x.dtype)


def amin(x: DeviceArray, dims: Shape, keepdim: bool) -> DeviceArray:
    return _reduce("min", x, dims, keepdim, x.dtype)


def all(x: DeviceArray, dims: Shape, keepdim: bool) -> DeviceArray:
    return _reduce("min", x, dims, keepdim, dtypes.bool_, test=True)


def any(x: DeviceArray, dims: Shape, keepdim: bool) -> DeviceArray:
    return _reduce("max", x, dims, keepdim, dtypes.bool_, test=True)


def _reduce(
    op: str, x: DeviceArray, dims: Shape, keepdim: bool, dtype: DType, test: bool = False, divide: bool = False
) -> DeviceArray:
    key = (op, x._layout or x.layout, dims, keepdim, dtype, test, divide)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan(op, x, dims, keepdim, dtype, test, divide)
    return run(x)


_plans: dict[tuple[Any, ...], Callable[[DeviceArray], DeviceArray]] = {}
driver.forget_on_switch(_plans.clear)


def _plan(
    op: str, x: DeviceArray, dims: Shape, keepdim: bool, dtype: DType, test: bool, divide: bool
) -> Callable[[DeviceArray], DeviceArray]:
    """All that is the same for every operand laid out as x is: the launches, and where the result goes."""
    accumulate = dtypes.int32 if test else accumulator(dtype)
    identity = {
        "sum": 0,
        "prod": 1,
        "max": 0 if test else _lowest(accumulate),
        "min": 1 if test else _highest(accumulate),
    }[op]
    constants = {"OP": op, "TEST": test, "IDENTITY": identity, "ACCUMULATE": COMPUTE[accumulate]}
    plan = walk(x, dims)
    divisor = float(plan.num_reduced) if divide else None

    def launch_of(plan: Walk, out: DeviceArray, x: DeviceArray, divisor: float | None) -> Callable[..., None]:
        every = {**constants, "COMPUTE": COMPUTE[x.dtype], **plan.constants}
        return prepare(kernels._reduce_kernel, plan.grid, (out, x), divisor, *plan.args, **every)

    def in_one(x: DeviceArray) -> DeviceArray:
        out = result.new(streams.current_handle(device))
        last(out, x)
        return out

    def in_two(x: DeviceArray) -> DeviceArray:
        stream = streams.current_handle(device)
        out, partial = result.new(stream), parts.new(stream)
        first(partial, x)
        last(out, partial)
        return out

    device = x.device_index
    shape, strides = _result_layout(x, dims, keepdim, plan)
    result = layout_of(shape, dtype, device, strides)
    parts = layout_of((plan.num_splits, plan.num_kept), accumulate, device)
    stream = streams.current_handle(device)
    if plan.num_splits == 1:
        last = launch_of(plan, result.new(stream), x, divisor)
        return in_one
    partial = parts.new(stream)
    first = launch_of(plan, partial, x, None)
    last = launch_of(walk(partial, (0,), one_split=True), result.new(stream), partial, divisor)
    return in_two


# --- index of the extreme ---------------------------------------------------------------------------------------------
def argmax(x: DeviceArray, dim: int, keepdim: bool) -> DeviceArray:
    return _arg(x, dim, keepdim, least=False)


def argmin(x: DeviceArray, dim: int, keepdim: bool) -> DeviceArray:
    return _arg(x, dim, keepdim, least=True)


def _arg(x: DeviceArray, dim: int, keepdim: bool, least: bool) -> DeviceArray:
    dims = (dim,) if x.shape else ()
    accumulate = accumulator(x.dtype)
    constants = {"LEAST": least, "LOWEST": _lowest(accumulate), "ACCUMULATE": COMPUTE[accumulate]}
    plan = walk(x, dims, tile=2048)
    out = _result(x, dims, keepdim, plan, dtypes.int64)
    values, indices = x, None
    if plan.num_splits > 1:
        values, indices = _partial(x, plan, accumulate), _partial(x, plan, dtypes.int64)
        _launch(kernels._arg_kernel, plan, (indices, values, x, None), constants)
        plan = walk(values, (0,), one_split=True)
    _launch(kernels._arg_kernel, plan, (out, None, values, indices), constants)
    return out


# --- two values per row -----------------------------------------------------------------------------------------------
def logsumexp(x: DeviceArray, dims: Shape, keepdim: bool) -> DeviceArray:
    array.require_float("logsumexp", x.dtype)
    plan = walk(x, dims)
    out = _result(x, dims, keepdim, plan, x.dtype)
    _logsumexp(x, plan, out, None)
    return out


def logsumexp_parts(x: DeviceArray, dim: int) -> tuple[DeviceArray, DeviceArray]:
    """m = max x and Σ exp(x − m) along dim (kept), in the dtype of accumulation."""
    plan = walk(x, (dim,))
    maximum, total = (_result(x, (dim,), True, plan, accumulator(x.dtype)) for _ in range(2))
    _logsumexp(x, plan, maximum, total)
    return maximum, total


def _logsumexp(x: DeviceArray, plan: Walk, out: DeviceArray, total: DeviceArray | None) -> None:
    accumulate = accumulator(x.dtype)
    constants = {"ACCUMULATE": COMPUTE[accumulate]}
    maxima, totals = x, None
    if plan.num_splits > 1:
        maxima, totals = _partial(x, plan, accumulate), _partial(x, plan, accumulate)
        _launch(kernels._logsumexp_kernel, plan, (maxima, totals, x, None), constants)
        plan = walk(maxima, (0,), one_split=True)
    _launch(kernels._logsumexp_kernel, plan, (out, total, maxima, totals), constants)


MOMENTS = 4  # tiles per program at least: each partial result is three numbers, and they merge slowly


class Moments(NamedTuple):
    """Per split and kept element: the count of x, their mean, Σ (x − mean)². Kernels merge the splits as they read."""

    counts: DeviceArray
    means: DeviceArray
    squares: DeviceArray

    @property
    def num_kept(self) -> int:
        return self.counts.shape[1]

    @property
    def merging(self) -> tuple[int, dict[str, Any]]:
        return merging(self.counts.shape[0], self.num_kept)


def merging(num_splits: int, num_kept: int) -> tuple[int, dict[str, Any]]:
    """Of a kernel that merges splits as it reads: its number of programs, its constants."""
    block_splits = power_of_2(num_splits)
    block_kept = min(max(2048 // block_splits, 1), power_of_2(num_kept))
    return -(-num_kept // block_kept), {"BLOCK_SPLITS": block_splits, "BLOCK_KEPT": block_kept}


def moments(x: DeviceArray, plan: Walk) -> Moments:
    """The moments of x along a walk; kept elements in the walk's order."""
    accumulate = accumulator(x.dtype)
    result = Moments(*(_partial(x, plan, accumulate) for _ in range(3)))
    _launch(moments_kernels._moments_kernel, plan, (*result, x), {"ACCUMULATE": COMPUTE[accumulate]})
    return result


def var(x: DeviceArray, dims: Shape, correction: float, keepdim: bool) -> DeviceArray:
    array.require_float("var", x.dtype)
    plan = walk(x, dims, least_tiles=MOMENTS)
    out = _result(x, dims, keepdim, plan, x.dtype)
    parts = moments(x, plan)
    num_programs, constants = parts.merging
    args = (out, *parts, parts.num_kept, plan.num_splits, float(correction))
    launch(moments_kernels._variance_kernel, (num_programs,), *args, **constants)
    return out


# --- running sums -----------------------------------------------------------------------------------------------------
def cumsum(x: DeviceArray, dim: int) -> DeviceArray:
    dtype = _total(x.dtype)
    out = new_like(x, dtype)
    if not x.shape:
        return sum(x, (), False)
    plan = walk(x, (dim,))
    # A running sum meets as many roundings as it has summands: a tree of them, as other sums have, is not to be had.
    accumulate = dtypes.float64 if dtype is dtypes.float32 else accumulator(dtype)
    sums = None
    if plan.num_splits > 1:
        sums = _partial(x, plan, accumulate)
        constants = {
            "OP": "sum",
            "TEST": False,
            "IDENTITY": 0,
            "ACCUMULATE": COMPUTE[accumulate],
            "COMPUTE": COMPUTE[x.dtype],
        }
        _launch(kernels._reduce_kernel, plan, (sums, x, None), constants)
    kept_dims = [i for i in range(len(x.shape)) if i != dim]
    walks = [tuple(steps[i] for i in kept_dims) for steps in (x.strides, out.strides)]
    sizes, (steps, out_steps) = collapse(tuple(x.shape[i] for i in kept_dims), walks)
    inner_first = [(*sizes[::-1], *group[::-1]) for group in (steps, out_steps)]
    names = ("WIDE", "BLOCK_KEPT", "BLOCK_INNER")
    launch(
        kernels._cumsum_kernel,
        plan.grid,
        out,
        x,
        sums,
        plan.args[0],
        *inner_first,
        plan.args[3],
        out.strides[dim],
        ACCUMULATE=COMPUTE[accumulate],
        KEPT_RANK=len(sizes),
        BLOCK_SPLITS=power_of_2(plan.num_splits),
        **{name: plan.constants[name] for name in names},
    )
    return out


# --- what they share --------------------------------------------------------------------------------------------------
def accumulator(dtype: DType) -> DType:
    """In which values of this dtype are accumulated (for sums of integers, give int64)."""
    if dtype.is_floating_point:
        return dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    return dtypes.int64 if dtype is dtypes.int64 else dtypes.int32


def _total(dtype: DType) -> DType:
    return dtype if dtype.is_floating_point else dtypes.int64


def _lowest(dtype: DType) -> float:
    return -float("inf") if dtype.is_floating_point else -(1 << (8 * dtype.itemsize - 1))


def _highest(dtype: DType) -> float:
    return float("inf") if dtype.is_floating_point else (1 << (8 * dtype.itemsize - 1)) - 1


def _result(x: DeviceArray, dims: Shape, keepdim: bool, plan: Walk, dtype: DType) -> DeviceArray:
    shape, strides = _result_layout(x, dims, keepdim, plan)
    return array.empty(shape, dtype, x.device_index, strides)


def _result_layout(x: DeviceArray, dims: Shape, keepdim: bool, plan: Walk) -> tuple[Shape, Shape]:
    strides = tuple(step for i, step in enumerate(plan.kept_strides) if keepdim or i not in dims)
    return reduced(x.shape, dims, keepdim), strides


def _partial(x: DeviceArray, plan: Walk, dtype: DType) -> DeviceArray:
    return array.empty((plan.num_splits, plan.num_kept), dtype, x.device_index)


def _launch(kernel: Any, plan: Walk, arrays: tuple[Any, ...], constants: dict[str, Any]) -> None:
    launch(kernel, plan.grid, *arrays, *plan.args, **constants, **plan.constants)
