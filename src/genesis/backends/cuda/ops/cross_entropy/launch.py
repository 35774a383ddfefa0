"""Cross entropy over class indices: forward one launch, and of many rows a second, which adds them up; one backward."""

from __future__ import annotations

from typing import TypedDict

import triton.language as tl

from genesis.backends.cuda.launch.planned import Run, planned
from genesis.backends.cuda.launch.reduction_grid import power_of_2
from genesis.backends.cuda.launch.triton import prepare_raw
from genesis.backends.cuda.ops.cross_entropy import kernels
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.reduction.launch import accumulator
from genesis.backends.cuda.ops.storage.rows import address
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray, Layout, layout_of

_TILE, _BLOCK = 2048, 1024
Loss = tuple[DeviceArray, DeviceArray | None, DeviceArray]


@planned
def cross_entropy(
    logits: Layout, target: Layout, weight: Layout | None, ignore_index: int, smoothing: float, reduction: str
) -> Run[Loss]:
    device, (num_rows, num_classes) = logits.device_index, logits.shape
    wide = accumulator(logits.dtype)
    rows, log_probs = layout_of((num_rows,), wide, device), layout_of(logits.shape, logits.dtype, device)
    none, grid = reduction == "none", _grid(logits)
    loss = layout_of((num_rows,), logits.dtype, device) if none else rows
    out, total = layout_of((), logits.dtype, device), layout_of((), wide, device) if reduction == "mean" else None
    in_one = grid == (1,) and not none
    results = (out, total, None, None) if in_one else (None, None, loss, rows)
    compute = prepare_raw(
        kernels._cross_entropy_kernel, device, grid, (*results, log_probs, logits, target, weight),
        num_rows, num_classes, ignore_index, *logits.strides, target.strides[0],
        1 if weight is None else weight.strides[0], **_tile(logits, smoothing),
    )  # fmt: skip
    finish = None if none or in_one else prepare_raw(
        kernels._finish_kernel, device, (1,), (out, total, rows, rows), num_rows, COMPUTE=COMPUTE[wide], BLOCK=_BLOCK
    )  # fmt: skip

    def run(logits: DeviceArray, target: DeviceArray, weight: DeviceArray | None) -> Loss:
        stream = streams.current_handle(device)
        kept, operands = log_probs.new(stream), (logits.data_pointer, target.data_pointer, address(weight))
        sum_of_weights = None if total is None else total.new(stream)
        if in_one:
            result = out.new(stream)
            compute(stream, result.data_pointer, address(sum_of_weights), 0, 0, kept.data_pointer, *operands)
            return result, sum_of_weights, kept
        losses, each = loss.new(stream), rows.new(stream)
        compute(stream, 0, 0, losses.data_pointer, each.data_pointer, kept.data_pointer, *operands)
        if finish is None:
            return losses, None, kept
        result = out.new(stream)
        finish(stream, result.data_pointer, address(sum_of_weights), losses.data_pointer, each.data_pointer)
        return result, sum_of_weights, kept

    return run


@planned
def cross_entropy_backward(
    grad: Layout, log_probs: Layout, target: Layout, weight: Layout | None, total: Layout | None, ignore_index: int,
    smoothing: float,
) -> Run[DeviceArray]:  # fmt: skip
    device, (num_rows, num_classes) = log_probs.device_index, log_probs.shape
    result = layout_of(log_probs.shape, log_probs.dtype, device)
    launch = prepare_raw(
        kernels._cross_entropy_backward_kernel, device, _grid(log_probs),
        (result, grad, log_probs, target, weight, total), num_rows, num_classes, ignore_index,
        grad.strides[0] if grad.shape else 0, target.strides[0], 1 if weight is None else weight.strides[0],
        **_tile(log_probs, smoothing),
    )  # fmt: skip

    def run(
        grad: DeviceArray, log_probs: DeviceArray, target: DeviceArray, weight: DeviceArray | None,
        total: DeviceArray | None,
    ) -> DeviceArray:  # fmt: skip
        stream = streams.current_handle(device)
        grad_logits = result.new(stream)
        operands = (grad.data_pointer, log_probs.data_pointer, target.data_pointer, address(weight), address(total))
        launch(stream, grad_logits.data_pointer, *operands)
        return grad_logits

    return run


class _Tile(TypedDict):
    """The rows that a program has, and the kernels' constants."""

    SMOOTHING: float
    SPREAD: float
    COMPUTE: tl.dtype
    WIDE: bool
    BLOCK_ROWS: int
    BLOCK_COLUMNS: int
    num_warps: int


def _tile(logits: Layout, smoothing: float) -> _Tile:
    num_rows, num_classes = logits.shape
    columns = power_of_2(num_classes)
    reach = sum((size - 1) * step for size, step in zip(logits.shape, logits.strides, strict=True))
    return {
        "SMOOTHING": smoothing, "SPREAD": smoothing / num_classes, "COMPUTE": COMPUTE[logits.dtype],
        "WIDE": reach + num_rows >= 2**31 or num_rows * num_classes >= 2**31, "BLOCK_ROWS": _rows_at_once(logits),
        "BLOCK_COLUMNS": columns, "num_warps": max(4, min(columns // 512, 16)),
    }  # fmt: skip


def _rows_at_once(logits: Layout) -> int:
    num_rows, num_classes = logits.shape
    return min(max(_TILE // power_of_2(num_classes), 1), power_of_2(num_rows))


def _grid(logits: Layout) -> tuple[int]:
    return (-(-logits.shape[0] // _rows_at_once(logits)),)
