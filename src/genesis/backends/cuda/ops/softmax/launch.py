"""softmax and log_softmax along any dimension. Results keep the operand's order of memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genesis.backends.cuda import driver
from genesis.backends.cuda.launch.reduction_grid import power_of_2
from genesis.backends.cuda.launch.strides import collapse
from genesis.backends.cuda.launch.triton import prepare
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.pointwise.launch import apply, new_like
from genesis.backends.cuda.ops.reduction import launch as reduction
from genesis.backends.cuda.ops.softmax import kernels
from genesis.backends.cuda.runtime import array
from genesis.backends.cuda.runtime.array import DeviceArray

_LONGEST = 16384  # elements of 4 bytes in a row that is held in registers
_TILE = 2048


def softmax(x: DeviceArray, dim: int) -> DeviceArray:
    return _forward("softmax", x, dim, log=False)


def log_softmax(x: DeviceArray, dim: int) -> DeviceArray:
    return _forward("log_softmax", x, dim, log=True)


def softmax_backward(grad: DeviceArray, y: DeviceArray, dim: int) -> DeviceArray:
    return _backward(grad, y, dim, log=False)


def log_softmax_backward(grad: DeviceArray, y: DeviceArray, dim: int) -> DeviceArray:
    return _backward(grad, y, dim, log=True)


def _forward(op: str, x: DeviceArray, dim: int, log: bool) -> DeviceArray:
    array.require_float(op, x.dtype)
    if _is_long(x, dim):
        of_parts = kernels._log_softmax_of_parts_kernel if log else kernels._softmax_of_parts_kernel
        return apply(of_parts, x, *reduction.logsumexp_parts(x, dim), dtype=x.dtype)
    y = new_like(x)
    _launch(kernels._softmax_kernel, (y, x), dim, log)
    return y


def _backward(grad: DeviceArray, y: DeviceArray, dim: int, log: bool) -> DeviceArray:
    if _is_long(y, dim):
        wide = reduction.accumulator(y.dtype)
        if log:
            of_sum, products = kernels._log_softmax_backward_of_sum_kernel, grad
        else:
            of_sum, products = (
                kernels._softmax_backward_of_sum_kernel,
                apply(kernels._product_kernel, grad, y, dtype=wide),
            )
        total = reduction.sum_in(products, (dim,), True, wide)
        return apply(of_sum, grad, y, total, dtype=y.dtype)
    grad_input = new_like(y)
    _launch(kernels._softmax_backward_kernel, (grad_input, grad, y), dim, log)
    return grad_input


def _is_long(x: DeviceArray, dim: int) -> bool:
    return bool(x.shape) and x.shape[dim] * max(x.dtype.itemsize, 4) > _LONGEST * 4


def _launch(kernel: Any, arrays: tuple[DeviceArray, ...], dim: int, log: bool) -> None:
    key = (kernel.fn, *[x._layout or x.layout for x in arrays], dim, log)
    run = _plans.get(key)
    if run is None:
        run = _plans[key] = _plan(kernel, arrays, dim, log)
    run(*arrays)


_plans: dict[tuple[Any, ...], Callable[..., None]] = {}
driver.forget_on_switch(_plans.clear)


def _plan(kernel: Any, arrays: tuple[DeviceArray, ...], dim: int, log: bool) -> Callable[..., None]:
    """Rows are the other dimensions, in the order of memory of the result (the first array)."""
    shape = arrays[0].shape or (1,)
    steps = [x.strides or (1,) for x in arrays]
    others = [i for i in range(len(shape)) if i != dim]
    sizes, walks = collapse(tuple(shape[i] for i in others), [tuple(walk[i] for i in others) for walk in steps])
    num_rows, num_columns = math.prod(sizes), shape[dim]
    if 0 in (num_rows, num_columns):
        return lambda *arrays: None
    block_columns = power_of_2(num_columns)
    block_rows = min(max(_TILE // block_columns, 1), power_of_2(num_rows))
    reach = max(sum((size - 1) * step for size, step in zip(shape, walk, strict=True)) for walk in steps)
    return prepare(
        kernel,
        (-(-num_rows // block_rows),),
        arrays,
        num_rows,
        num_columns,
        *((*sizes[::-1], *walk[::-1]) for walk in walks),
        *(walk[dim] for walk in steps),
        LOG=log,
        COMPUTE=COMPUTE[arrays[0].dtype],
        RANK=len(sizes),
        WIDE=reach + num_rows >= 2**31,
        BLOCK_ROWS=block_rows,
        BLOCK_COLUMNS=block_columns,
        num_warps=max(4, min(block_columns // 512, 16)),
    )
