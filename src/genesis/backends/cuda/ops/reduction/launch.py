"""Reductions over any dimensions, in any order of memory; reduction_grid.py says how.

Results keep the order of what is kept, as far as `view` can flatten it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, overload

from genesis import dtypes
from genesis.backends.cuda.driver import RawLaunch
from genesis.backends.cuda.launch.planned import Run, into_new, planned
from genesis.backends.cuda.launch.reduction_grid import Walk, power_of_2, walk
from genesis.backends.cuda.launch.strides import collapse
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import layout_like
from genesis.backends.cuda.ops.reduction.kernels import moments as moments_kernels
from genesis.backends.cuda.ops.reduction.kernels import reduction as kernels
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array, streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.shapes import Shape, reduced

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

Reduce: TypeAlias = Callable[[DeviceArray], DeviceArray]


# --- one value per row ------------------------------------------------------------------------------------------------
def sum(x: DeviceArray, dims: Shape, keepdim: bool = False) -> DeviceArray:
    return _reduce("sum", x, dims, keepdim, _total(x.dtype))


def sum_in(x: DeviceArray, dims: Shape, keepdim: bool, dtype: DType) -> DeviceArray:
    """The sum in a dtype of its own."""
    return _reduce("sum", x, dims, keepdim, dtype)


def mean(x: DeviceArray, dims: Shape, keepdim: bool = False) -> DeviceArray:
    array.require_float("mean", x.dtype)
    return _reduce("sum", x, dims, keepdim, x.dtype, divide=True)


def mean_in(x: DeviceArray, dims: Shape, keepdim: bool, dtype: DType) -> DeviceArray:
    """The mean in a dtype of its own."""
    return _reduce("sum", x, dims, keepdim, dtype, divide=True)


def prod(x: DeviceArray, dims: Shape, keepdim: bool = False) -> DeviceArray:
    return _reduce("prod", x, dims, keepdim, _total(x.dtype))


def amax(x: DeviceArray, dims: Shape, keepdim: bool = False) -> DeviceArray:
    return _reduce("max", x, dims, keepdim, x.dtype)


def amin(x: DeviceArray, dims: Shape, keepdim: bool = False) -> DeviceArray:
    return _reduce("min", x, dims, keepdim, x.dtype)


def all(x: DeviceArray, dims: Shape, keepdim: bool = False) -> DeviceArray:
    return _reduce("min", x, dims, keepdim, dtypes.bool_, test=True)


def any(x: DeviceArray, dims: Shape, keepdim: bool = False) -> DeviceArray:
    return _reduce("max", x, dims, keepdim, dtypes.bool_, test=True)


@planned
def _reduce(
    op: str, x: Layout, dims: Shape, keepdim: bool, dtype: DType, test: bool = False, divide: bool = False
) -> Reduce:
    accumulate = dtypes.int32 if test else accumulator(dtype)
    identity = {
        "sum": 0,
        "prod": 1,
        "max": 0 if test else _lowest(accumulate),
        "min": 1 if test else _highest(accumulate),
    }[op]
    constants = {"OP": op, "TEST": test, "IDENTITY": identity, "ACCUMULATE": COMPUTE[accumulate]}
    plan, device = walk(x, dims), x.device_index
    divisor = float(plan.num_reduced) if divide else None

    def launch_of(plan: Walk, out: Layout, x: Layout, divisor: float | None) -> RawLaunch:
        every: dict[str, object] = {**constants, "COMPUTE": COMPUTE[x.dtype], **plan.constants}
        return prepare_raw(kernels._reduce_kernel, device, plan.grid, (out, x), divisor, *plan.args, **every)

    def in_one(x: DeviceArray) -> DeviceArray:
        stream = streams.current_handle(device)
        out = result.new(stream)
        last(stream, out.data_pointer, x.data_pointer)
        return out

    def in_two(x: DeviceArray) -> DeviceArray:
        stream = streams.current_handle(device)
        out, partial = result.new(stream), parts.new(stream)
        first(stream, partial.data_pointer, x.data_pointer)
        last(stream, out.data_pointer, partial.data_pointer)
        return out

    result = _result(x, dims, keepdim, plan, dtype)
    if plan.num_splits == 1:
        last = launch_of(plan, result, x, divisor)
        return _viewable(in_one, result)
    parts = layout_of((plan.num_splits, plan.num_kept), accumulate, device)
    first = launch_of(plan, parts, x, None)
    last = launch_of(walk(parts, (0,), one_split=True), result, parts, divisor)
    return _viewable(in_two, result)


# --- index of the extreme ---------------------------------------------------------------------------------------------
def argmax(x: DeviceArray, dim: int, keepdim: bool = False) -> DeviceArray:
    return _arg(x, dim, keepdim, False)


def argmin(x: DeviceArray, dim: int, keepdim: bool = False) -> DeviceArray:
    return _arg(x, dim, keepdim, True)


@planned
def _arg(x: Layout, dim: int, keepdim: bool, least: bool) -> Reduce:
    dims, accumulate = (dim,) if x.shape else (), accumulator(x.dtype)
    constants = {"LEAST": least, "LOWEST": _lowest(accumulate), "ACCUMULATE": COMPUTE[accumulate]}
    plan = walk(x, dims, tile=2048)
    result = _result(x, dims, keepdim, plan, dtypes.int64)
    run = _of_pairs(kernels._arg_kernel, x, plan, (result, None), (dtypes.int64, accumulate), constants, turned=True)
    return _viewable(lambda x: run(x)[0], result)


# --- two values per row -----------------------------------------------------------------------------------------------
@planned
def logsumexp(x: Layout, dims: Shape, keepdim: bool = False) -> Reduce:
    array.require_float("logsumexp", x.dtype)
    plan = walk(x, dims)
    result = _result(x, dims, keepdim, plan, x.dtype)
    run = _logsumexp(x, plan, (result, None))
    return _viewable(lambda x: run(x)[0], result)


@planned
def logsumexp_parts(x: Layout, dim: int) -> Callable[[DeviceArray], tuple[DeviceArray, DeviceArray]]:
    """m = max x and Σ exp(x − m) along dim (kept), in the dtype of accumulation."""
    plan = walk(x, (dim,))
    part = _result(x, (dim,), True, plan, accumulator(x.dtype))
    return _logsumexp(x, plan, (part, part))


@overload
def _logsumexp(x: Layout, plan: Walk, results: tuple[Layout, Layout]) -> Run[tuple[DeviceArray, DeviceArray]]: ...
@overload
def _logsumexp(x: Layout, plan: Walk, results: tuple[Layout, None]) -> Run[tuple[DeviceArray, DeviceArray | None]]: ...
def _logsumexp(
    x: Layout, plan: Walk, results: tuple[Layout, Layout | None]
) -> Run[tuple[DeviceArray, DeviceArray | None]]:
    accumulate = accumulator(x.dtype)
    constants = {"ACCUMULATE": COMPUTE[accumulate]}
    return _of_pairs(kernels._logsumexp_kernel, x, plan, results, (accumulate, accumulate), constants)


@overload
def _of_pairs(
    kernel: JITFunction, x: Layout, plan: Walk, results: tuple[Layout, Layout], parts: tuple[DType, DType],
    constants: dict[str, object], turned: bool = False,
) -> Run[tuple[DeviceArray, DeviceArray]]: ...  # fmt: skip
@overload
def _of_pairs(
    kernel: JITFunction, x: Layout, plan: Walk, results: tuple[Layout, Layout | None], parts: tuple[DType, DType],
    constants: dict[str, object], turned: bool = False,
) -> Run[tuple[DeviceArray, DeviceArray | None]]: ...  # fmt: skip
def _of_pairs(
    kernel: JITFunction, x: Layout, plan: Walk, results: tuple[Layout, Layout | None], parts: tuple[DType, DType],
    constants: dict[str, object], turned: bool = False,
) -> Run[tuple[DeviceArray, DeviceArray | None]]:  # fmt: skip
    """run(x): the results of a kernel that makes two arrays of one or, where x is split, of the two that it made first.

    Args:
        parts: dtypes of those two; turned: it takes them in the other order than it makes them in.
    """
    order = -1 if turned else 1

    def launch_of(plan: Walk, *arrays: Layout | None) -> RawLaunch:
        return prepare_raw(kernel, x.device_index, plan.grid, arrays, *plan.args, **constants, **plan.constants)

    if plan.num_splits == 1:
        whole = into_new(launch_of(plan, *results, x, None), *results)
        return lambda x: whole(x, None)
    one, other = (layout_of((plan.num_splits, plan.num_kept), dtype, x.device_index) for dtype in parts)
    made = one, other
    first = into_new(launch_of(plan, *made, x, None), *made)
    taken = made[::order]
    last = into_new(launch_of(walk(taken[0], (0,), one_split=True), *results, *taken), *results)
    return lambda x: last(*first(x, None)[::order])


MOMENTS = 4  # tiles per program at least: each partial result is three numbers, and they merge slowly


def merging(num_splits: int, num_kept: int) -> tuple[int, dict[str, int]]:
    """Arguments of a kernel that merges splits as it reads: its number of programs, its constants."""
    block_splits = power_of_2(num_splits)
    block_kept = min(max(2048 // block_splits, 1), power_of_2(num_kept))
    return -(-num_kept // block_kept), {"BLOCK_SPLITS": block_splits, "BLOCK_KEPT": block_kept}


def moments(x: Layout, plan: Walk) -> tuple[Layout, RawLaunch]:
    """The moments of x along a walk: per split and kept element the count, the mean, Σ (x − mean)².

    Returns: the layout of each of the three, and run(stream, counts, means, squares, x). Kernels merge the splits as
        they read; kept elements are in the walk's order.
    """
    accumulate = accumulator(x.dtype)
    part = layout_of((plan.num_splits, plan.num_kept), accumulate, x.device_index)
    run = prepare_raw(
        moments_kernels._moments_kernel, x.device_index, plan.grid, (part, part, part, x), *plan.args,
        ACCUMULATE=COMPUTE[accumulate], **plan.constants,
    )  # fmt: skip
    return part, run


@planned
def var(x: Layout, dims: Shape, correction: float, keepdim: bool = False) -> Reduce:
    array.require_float("var", x.dtype)
    plan, device = walk(x, dims, least_tiles=MOMENTS), x.device_index
    result = _result(x, dims, keepdim, plan, x.dtype)
    part, find = moments(x, plan)
    num_programs, constants = merging(plan.num_splits, plan.num_kept)
    join = prepare_raw(
        moments_kernels._variance_kernel, device, (num_programs,), (result, part, part, part), plan.num_kept,
        plan.num_splits, float(correction), **constants,
    )  # fmt: skip

    def run(x: DeviceArray) -> DeviceArray:
        stream = streams.current_handle(device)
        out, parts = result.new(stream), [part.new(stream) for _ in range(3)]
        places = [each.data_pointer for each in parts]
        find(stream, *places, x.data_pointer)
        join(stream, out.data_pointer, *places)
        return out

    return _viewable(run, result)


# --- running sums -----------------------------------------------------------------------------------------------------
@planned
def cumsum(x: Layout, dim: int) -> Reduce:
    dtype, device = _total(x.dtype), x.device_index
    if not x.shape:
        return lambda x: sum(x, (), False)
    out, plan = layout_like(x, dtype), walk(x, (dim,))
    # A running sum meets as many roundings as it has summands: a tree of them, as other sums have, is not to be had.
    accumulate = dtypes.float64 if dtype is dtypes.float32 else accumulator(dtype)
    kept_dims = [i for i in range(len(x.shape)) if i != dim]
    walks = [tuple(steps[i] for i in kept_dims) for steps in (x.strides, out.strides)]
    sizes, (steps, out_steps) = collapse(tuple(x.shape[i] for i in kept_dims), walks)
    inner_first = [(*sizes[::-1], *group[::-1]) for group in (steps, out_steps)]
    sums = layout_of((plan.num_splits, plan.num_kept), accumulate, device) if plan.num_splits > 1 else None
    launch = prepare_raw(
        kernels._cumsum_kernel, device, plan.grid, (out, x, sums), plan.args[0], *inner_first, plan.args[3],
        out.strides[dim], ACCUMULATE=COMPUTE[accumulate], KEPT_RANK=len(sizes),
        BLOCK_SPLITS=power_of_2(plan.num_splits),
        **{name: plan.constants[name] for name in ("WIDE", "BLOCK_KEPT", "BLOCK_INNER")},
    )  # fmt: skip
    add_up = into_new(launch, out)
    if sums is None:
        return _viewable(lambda x: add_up(x, None), out)
    constants = {"OP": "sum", "TEST": False, "IDENTITY": 0, "ACCUMULATE": COMPUTE[accumulate]}
    of_splits = prepare_raw(
        kernels._reduce_kernel, device, plan.grid, (sums, x), None, *plan.args, **constants, COMPUTE=COMPUTE[x.dtype],
        **plan.constants,
    )  # fmt: skip
    find = into_new(of_splits, sums)
    return _viewable(lambda x: add_up(x, find(x)), out)


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


def _viewable(run: Reduce, result: Layout) -> Reduce:
    """run, or where its result lies in an order that `view` cannot flatten, run and a copy in row-major order."""
    return run if storage.is_viewable(result) else lambda x: storage.viewable(run(x))


def _result(x: Layout, dims: Shape, keepdim: bool, plan: Walk, dtype: DType) -> Layout:
    strides = tuple(step for i, step in enumerate(plan.kept_strides) if keepdim or i not in dims)
    return layout_of(reduced(x.shape, dims, keepdim), dtype, x.device_index, strides)
