"""softmax and log_softmax along any dimension. Results are row-major, as PyTorch's; gradients have their order."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

from genesis.backends.cuda.launch.planned import Run, into_new, planned
from genesis.backends.cuda.launch.reduction_grid import power_of_2
from genesis.backends.cuda.launch.strides import collapse
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import apply, layout_like
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.softmax import kernels
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of
from genesis.dtypes import DType
from genesis.shapes import contiguous_strides

if TYPE_CHECKING:
    from triton.runtime.jit import JITFunction

Rows: TypeAlias = Run[DeviceArray]

_LONGEST = 16384  # elements of 4 bytes in a row that is held in registers
_TILE = 2048


@planned
def softmax(x: Layout, dim: int) -> Rows:
    return _forward("softmax", x, dim, log=False)


@planned
def log_softmax(x: Layout, dim: int) -> Rows:
    return _forward("log_softmax", x, dim, log=True)


@planned
def softmax_backward(grad: Layout, y: Layout, dim: int) -> Rows:
    return _backward(grad, y, dim, log=False)


@planned
def log_softmax_backward(grad: Layout, y: Layout, dim: int) -> Rows:
    return _backward(grad, y, dim, log=True)


def _forward(op: str, x: Layout, dim: int, log: bool) -> Rows:
    array.require_float(op, x.dtype)
    row_major = contiguous_strides(x.shape)
    if _is_long(x, dim):
        of_parts = kernels._log_softmax_of_parts_kernel if log else kernels._softmax_of_parts_kernel

        def run(x: DeviceArray) -> DeviceArray:
            x = x if x.strides == row_major else storage.copy(x, row_major)
            return apply(of_parts, x, *reduction.logsumexp_parts(x, dim), dtype=x.dtype)

        return run
    return _rows(kernels._softmax_kernel, layout_of(x.shape, x.dtype, x.device_index, row_major), (x,), dim, log)


def _backward(grad: Layout, y: Layout, dim: int, log: bool) -> Rows:
    if _is_long(y, dim):
        return _long_backward(reduction.accumulator(y.dtype), dim, log)
    return _rows(kernels._softmax_backward_kernel, layout_like(y, y.dtype), (grad, y), dim, log)


def _long_backward(wide: DType, dim: int, log: bool) -> Rows:
    of_sum = kernels._log_softmax_backward_of_sum_kernel if log else kernels._softmax_backward_of_sum_kernel

    def run(grad: DeviceArray, y: DeviceArray) -> DeviceArray:
        products = grad if log else apply(kernels._product_kernel, grad, y, dtype=wide)
        return apply(of_sum, grad, y, reduction.sum_in(products, (dim,), True, wide), dtype=y.dtype)

    return run


def _is_long(x: Layout, dim: int) -> bool:
    return bool(x.shape) and x.shape[dim] * max(x.dtype.itemsize, 4) > _LONGEST * 4


def _rows(kernel: JITFunction, result: Layout, operands: tuple[Layout, ...], dim: int, log: bool) -> Rows:
    """Rows are the other dimensions, in the result's order of memory."""
    arrays = (result, *operands)
    shape = result.shape or (1,)
    steps = [x.strides or (1,) for x in arrays]
    others = [i for i in range(len(shape)) if i != dim]
    sizes, walks = collapse(tuple(shape[i] for i in others), [tuple(walk[i] for i in others) for walk in steps])
    num_rows, num_columns = math.prod(sizes), shape[dim]
    block_columns = power_of_2(num_columns)
    block_rows = min(max(_TILE // block_columns, 1), power_of_2(num_rows))
    reach = max(sum((size - 1) * step for size, step in zip(shape, walk, strict=True)) for walk in steps)
    launch = prepare_raw(
        kernel,
        result.device_index,
        (-(-num_rows // block_rows) if num_columns else 0,),
        arrays,
        num_rows,
        num_columns,
        *((*sizes[::-1], *walk[::-1]) for walk in walks),
        *(walk[dim] for walk in steps),
        LOG=log,
        COMPUTE=COMPUTE[result.dtype],
        RANK=len(sizes),
        WIDE=reach + num_rows >= 2**31,
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=block_columns,
        num_warps=max(4, min(block_columns // 512, 16)),
    )
    return into_new(launch, result)
