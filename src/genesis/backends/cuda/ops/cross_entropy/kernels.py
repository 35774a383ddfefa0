"""Cross entropy over class indices with a whole row of logits in registers: one pass forward, one backward.

SMOOTHING: so much of the target's distribution is spread evenly over the classes; SPREAD: that by their number.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from genesis import dtypes
from genesis.backends.cuda.launch.overlap import _follow
from genesis.backends.cuda.launch.triton import Specimen
from genesis.backends.cuda.ops.loss.kernels import _weight_of
from genesis.backends.cuda.ops.pointwise.kernels import COMPUTE
from genesis.backends.cuda.ops.reduction.kernels.reduction import _greatest
from genesis.backends.cuda.ops.softmax.kernels import _tile


@triton.jit
def _targets(target_ptr, rows, num_rows, num_classes, target_stride, ignore_index):
    """The class of each row, whether the row counts, and whether there is such a class."""
    target = tl.load(target_ptr + rows * target_stride, mask=rows < num_rows, other=ignore_index)
    kept = (rows < num_rows) & (target != ignore_index)
    return target, kept, kept & (target >= 0) & (target < num_classes)


@triton.jit
def _weights(weight_ptr, weight_stride, columns, num_classes, COMPUTE: tl.constexpr):
    """The weight of each class; 0 beyond the last."""
    return _weight_of(weight_ptr, weight_stride, columns, columns < num_classes, COMPUTE)


@triton.jit
def _store_sum(out_ptr, total_ptr, loss, total):
    """out = loss, or by total where that is kept."""
    if total_ptr is not None:
        tl.store(total_ptr, total)
        loss = libdevice.div_rn(loss, total)
    tl.store(out_ptr, loss.to(out_ptr.dtype.element_ty))


@triton.jit
def _cross_entropy_kernel(
    out_ptr,
    total_ptr,
    loss_ptr,
    each_ptr,
    log_probs_ptr,
    logits_ptr,
    target_ptr,
    weight_ptr,
    num_rows,
    num_classes,
    ignore_index,
    row_stride,
    class_stride,
    target_stride,
    weight_stride,
    SMOOTHING: tl.constexpr,
    SPREAD: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute of each row its loss and its target's weight, both 0 where that is ignore_index; and log_probs.

    A class that there is not makes NaN. With out, one program has all rows: out is the sum of their losses, by total,
    the sum of their weights, where that is wanted.
    """
    _follow(PDL)
    rows, columns, mask = _tile(num_rows, num_classes, WIDE, BLOCK_ROWS, BLOCK_COLUMNS)
    target, kept, valid = _targets(target_ptr, rows, num_rows, num_classes, target_stride, ignore_index)
    starts = logits_ptr + rows * row_stride
    x = tl.load(starts[:, None] + (columns * class_stride)[None, :], mask=mask, other=-float("inf")).to(COMPUTE)
    greatest = _greatest(x)
    shifted = x - greatest[:, None]
    logarithm = libdevice.log(tl.sum(tl.where(mask, libdevice.exp(shifted), 0.0), 1))
    log_probs = shifted - logarithm[:, None]
    out = log_probs_ptr + (rows * num_classes)[:, None] + columns[None, :]
    tl.store(out, log_probs.to(log_probs_ptr.dtype.element_ty), mask=mask)
    picked = tl.load(starts + target * class_stride, mask=valid, other=float("nan")).to(COMPUTE)
    weight = _weight_of(weight_ptr, weight_stride, target, valid, COMPUTE)
    loss = (picked - greatest - logarithm) * weight * -1.0
    if SMOOTHING > 0:
        weights = _weights(weight_ptr, weight_stride, columns, num_classes, COMPUTE)
        spread = tl.where(mask, libdevice.mul_rn(log_probs, tl.zeros_like(x) + weights[None, :]), 0.0)
        loss = loss * (1 - SMOOTHING) - tl.sum(spread, 1) * SPREAD
    loss = tl.where(kept, loss, 0.0)
    if out_ptr is None:
        tl.store(loss_ptr + rows, loss.to(loss_ptr.dtype.element_ty), mask=rows < num_rows)
        tl.store(each_ptr + rows, weight, mask=rows < num_rows)
    else:
        _store_sum(out_ptr, total_ptr, tl.sum(loss, 0), tl.sum(weight, 0))


@triton.jit
def _finish_kernel(
    out_ptr, total_ptr, loss_ptr, each_ptr, num_rows,
    COMPUTE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The sum of losses, by that of weights where total is to keep it. One program."""
    _follow(PDL)
    losses, weights = tl.zeros((BLOCK,), COMPUTE), tl.zeros((BLOCK,), COMPUTE)
    for first in range(0, num_rows, BLOCK):
        rows = first + tl.arange(0, BLOCK)
        losses += tl.load(loss_ptr + rows, mask=rows < num_rows, other=0)
        if total_ptr is not None:
            weights += tl.load(each_ptr + rows, mask=rows < num_rows, other=0)
    _store_sum(out_ptr, total_ptr, tl.sum(losses, 0), tl.sum(weights, 0))


@triton.jit
def _cross_entropy_backward_kernel(
    grad_logits_ptr,
    grad_ptr,
    log_probs_ptr,
    target_ptr,
    weight_ptr,
    total_ptr,
    num_rows,
    num_classes,
    ignore_index,
    grad_stride,
    target_stride,
    weight_stride,
    SMOOTHING: tl.constexpr,
    SPREAD: tl.constexpr,
    COMPUTE: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLUMNS: tl.constexpr,
    PDL: tl.constexpr,
):
    """grad_logits (rows, classes) = p·(a + b·Σ w) − a·[the target's] − b·w, with a = grad·(1 − s)·w[t], b = grad·s/C.

    grad: one for each row, or with stride 0 one for all, which is divided by total if there is one.
    """
    _follow(PDL)
    rows, columns, mask = _tile(num_rows, num_classes, WIDE, BLOCK_ROWS, BLOCK_COLUMNS)
    target, kept, valid = _targets(target_ptr, rows, num_rows, num_classes, target_stride, ignore_index)
    at = (rows * num_classes)[:, None] + columns[None, :]
    probability = libdevice.exp(tl.load(log_probs_ptr + at, mask=mask, other=0).to(COMPUTE))
    grad = tl.load(grad_ptr + rows * grad_stride, mask=kept, other=0).to(COMPUTE)
    if total_ptr is not None:
        grad = tl.where(kept, libdevice.div_rn(grad, tl.zeros_like(grad) + tl.load(total_ptr)), 0.0)
    at_target = grad * _weight_of(weight_ptr, weight_stride, target, valid, COMPUTE)
    is_target = columns[None, :] == target[:, None]
    if SMOOTHING > 0:
        weights = _weights(weight_ptr, weight_stride, columns, num_classes, COMPUTE)
        at_target = at_target * (1 - SMOOTHING)
        at_each = grad * SPREAD
        result = probability * (at_target + at_each * tl.sum(weights, 0))[:, None]
        result -= at_each[:, None] * weights[None, :] + tl.where(is_target, at_target[:, None], 0.0)
    else:
        result = probability * at_target[:, None] - tl.where(is_target, at_target[:, None], 0.0)
    result = tl.where(kept[:, None], result, 0.0)
    tl.store(grad_logits_ptr + at, result.to(grad_logits_ptr.dtype.element_ty), mask=mask)


def _specimens(dtype, wide):
    tile = {"COMPUTE": COMPUTE[dtype], "WIDE": False, "BLOCK_ROWS": 2, "BLOCK_COLUMNS": 1024}
    for weight, total, smoothing in ((None, wide, 0.0), (dtype, None, 0.1)):
        constants = {"SMOOTHING": smoothing, "SPREAD": smoothing / 1000, **tile}
        numbers = (4096, 1000, -100)
        for results in ((None, None, wide, wide), (dtype, total, None, None)):
            args = (*results, dtype, dtype, dtypes.int64, weight, *numbers, 1000, 1, 1, 1)
            yield Specimen(_cross_entropy_kernel, args, constants)
        args = (dtype, dtype, dtype, dtypes.int64, weight, total, *numbers, 0, 1, 1)
        yield Specimen(_cross_entropy_backward_kernel, args, constants)
        finish = {"COMPUTE": COMPUTE[dtype], "BLOCK": 1024}
        yield Specimen(_finish_kernel, (dtype, total, wide, wide, 4096), finish)


SPECIMENS = [
    *_specimens(dtypes.float32, dtypes.float32),
    *_specimens(dtypes.bfloat16, dtypes.float32),
    *_specimens(dtypes.float64, dtypes.float64),
]
