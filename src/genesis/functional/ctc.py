"""Connectionist temporal classification: the likelihood of a sequence of labels, over all its alignments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from genesis import dtypes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.autograd.modes import unrecordable
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.dimensions import squeeze
from genesis.functional.elementwise import div
from genesis.functional.loss import check_reduction
from genesis.functional.reduction import mean, sum
from genesis.functional.shape import unsqueeze
from genesis.functional.windows import require_tensor
from genesis.ndarray import Device, NDArray, ops
from genesis.shapes import Shape

__all__ = ["ctc_loss"]

Lengths = Tensor | Sequence[int] | int
Integers: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"


def ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int = 0,
    reduction: str = "mean", zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """−ln of the probability of each target: the sum over all ways to stretch its labels, with blanks between them.

    The lengths and the labels are read on the host.

    Args:
        log_probs: (T, N, C) or (T, C): logarithms of probabilities, as log_softmax gives them; a floating dtype.
        targets: (N, S) labels, or (sum of target_lengths,), one after the other; integers, in [0, C), no blank.
        input_lengths: (N,): how many of the T steps of each sample count; a tensor or a sequence. () without a batch.
        target_lengths: (N,): how many labels each sample has; as input_lengths.
        blank: the class that stands for no label.
        reduction: "mean" (of each loss divided by its target's length), "sum" or "none".
        zero_infinity: loss and gradient are 0 where no alignment fits into the steps, instead of ∞ and NaN.
    Returns: 0-d, or (N,) for "none"; dtype of log_probs.
    Raises: ShapeError: shapes or numbers of lengths. DTypeError: dtypes. ValueError: a length, a label or blank is out
        of range; another reduction.
    Grad: log_probs, which are taken to be normalized, as by PyTorch: behind log_softmax it is that of the logits. Saves
        them, and (T, N, 2S + 1) sums.
    Source: Graves et al. 2006, doi:10.1145/1143844.1143891.

    Example:
        >>> halves = genesis.full((2, 1, 2), 0.5).log()  # of four equally likely paths, three give the label 1
        >>> round(F.ctc_loss(halves, genesis.tensor([[1]]), [2], [1]).exp().item(), 4)
        1.3333
    """
    op = "ctc_loss"
    reduction = check_reduction(op, reduction, None, None)
    require_tensor(op, "log_probs", log_probs)
    require_tensor(op, "targets", targets)
    if not log_probs.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "log_probs", "a floating dtype", log_probs.array.dtype))
    if log_probs.array.ndim not in (2, 3):
        expected = "3 dimensions, or 2 without a batch"
        raise ShapeError(describe(op, "log_probs", expected, f"shape {log_probs.array.shape}"))
    is_batch = log_probs.array.ndim == 3
    samples = log_probs if is_batch else unsqueeze(log_probs, 1)
    labels = _labels(op, samples.array.shape, targets.array, blank, input_lengths, target_lengths)
    each = CTCLoss.apply(samples, labels=labels, blank=blank, zero_infinity=bool(zero_infinity))
    if reduction == "mean":
        lengths = np.maximum(labels.targets, 1).astype(np.float64)
        divisors = NDArray.from_numpy(lengths, dtypes.float64, each.array.device).to(each.array.dtype)
        return mean(div(each, each._like(divisors)))
    if reduction == "sum":
        return sum(each)
    return each if is_batch else squeeze(each, 0)


class Labels(NamedTuple):
    """Holds what a batch is to say, on the host."""

    steps: Integers  # (N,): how many steps of each sample count
    targets: Integers  # (N,): how many labels each has
    extended: Integers  # (N, L): its labels with blanks around each, L = 2S + 1

    def on(self, device: Device, array: Integers | Flags) -> NDArray:
        kind = dtypes.bool_ if array.dtype == np.bool_ else dtypes.int64
        return NDArray.from_numpy(np.ascontiguousarray(array), kind, device)


class CTCLoss(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, labels: Labels, blank: int, zero_infinity: bool) -> NDArray:
        wide = x if x.dtype.itemsize > 2 else x.to(dtypes.float32)
        scores = _scores(wide, labels)
        alphas = _alphas(scores, labels, blank)
        loss = _loss(alphas, labels)
        ctx.save(x, scores, alphas, loss)
        ctx.labels, ctx.blank, ctx.zero_infinity = labels, blank, zero_infinity
        return (loss.eq(math.inf).where(0.0, loss) if zero_infinity else loss).to(x.dtype)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        x, scores, alphas, loss = ctx.saved
        labels: Labels = ctx.labels
        steps, batch, classes = x.shape
        paths = alphas.add(_betas(scores, labels, ctx.blank))  # both have the score of the step itself
        mass = paths.sub(scores).add(loss.reshape((1, batch, 1))).exp()  # the posterior of label l at step t
        mass = paths.eq(-math.inf).where(0.0, mass)
        index = labels.on(x.device, labels.extended).reshape((1, *labels.extended.shape)).expand(mass.shape)
        posterior = ops.scatter_add(mass.full_like(0, (steps, batch, classes)), 2, index.contiguous(), mass)
        # d loss / d logits = softmax − posterior
        impossible = loss.eq(math.inf).reshape((1, batch, 1))
        each = impossible.where(0.0 if ctx.zero_infinity else math.nan, x.to(mass.dtype).exp().sub(posterior))
        counts = labels.on(x.device, np.arange(steps)[:, None] < labels.steps).reshape((steps, batch, 1))
        return counts.where(each.mul(grad.to(each.dtype).reshape((1, batch, 1))), 0.0).to(x.dtype)


def _scores(x: NDArray, labels: Labels) -> NDArray:
    """(T, N, L): the logarithm of the probability of each extended label at each step."""
    batch, length = labels.extended.shape
    index = labels.on(x.device, labels.extended).reshape((1, batch, length)).expand((x.shape[0], batch, length))
    return ops.gather(x, 2, index.contiguous())


def _alphas(scores: NDArray, labels: Labels, blank: int) -> NDArray:
    """(T, N, L): the logarithm of all ways to have come to label l by step t, that step included."""
    batch, length = labels.extended.shape
    may_skip = labels.on(scores.device, _may_skip(labels.extended, blank))
    nowhere = scores.full_like(-math.inf, (batch, 2))
    is_first = labels.on(scores.device, np.broadcast_to(np.arange(length) < 2, (batch, length)))
    found: list[NDArray] = []
    for step in range(scores.shape[0]):
        if not found:
            found.append(is_first.where(scores.select(0, 0), -math.inf))
            continue
        before = ops.cat([nowhere, found[-1]], 1)
        skipped = may_skip.where(before.narrow(1, 0, length), -math.inf)
        ways = (found[-1], before.narrow(1, 1, length), skipped)
        found.append(_total(ways).add(scores.select(0, step)))
    return _stacked(found, scores)


def _betas(scores: NDArray, labels: Labels, blank: int) -> NDArray:
    """(T, N, L): the logarithm of all ways to come from label l at step t, that step included, to the end."""
    batch, length = labels.extended.shape
    skip = np.zeros((batch, length), np.bool_)
    skip[:, :-2] = _may_skip(labels.extended, blank)[:, 2:]
    may_skip = labels.on(scores.device, skip)
    places = np.arange(length)
    ends = (places == 2 * labels.targets[:, None]) | (places == 2 * labels.targets[:, None] - 1)
    nowhere = scores.full_like(-math.inf, (batch, 2))
    following, found = scores.full_like(-math.inf, (batch, length)), []
    for step in reversed(range(scores.shape[0])):
        after = ops.cat([following, nowhere], 1)
        skipped = may_skip.where(after.narrow(1, 2, length), -math.inf)
        total = _total((following, after.narrow(1, 1, length), skipped))
        last = labels.steps == step + 1
        if last.any():
            total = labels.on(scores.device, ends & last[:, None]).where(0.0, total)
        following = total.add(scores.select(0, step))
        found.append(following)
    return _stacked(found[::-1], scores)


def _loss(alphas: NDArray, labels: Labels) -> NDArray:
    """(N,): of the ways that end with the last label, or with the blank behind it."""
    batch = len(labels.steps)
    if not batch or not len(alphas):
        return alphas.full_like(0, (batch,))
    rows, device = labels.on(alphas.device, np.arange(batch)), alphas.device
    steps = labels.on(device, np.maximum(labels.steps - 1, 0))
    blank_behind = ops.take(alphas, (steps, rows, labels.on(device, 2 * labels.targets)))
    last_label = ops.take(alphas, (steps, rows, labels.on(device, np.maximum(2 * labels.targets - 1, 0))))
    last_label = labels.on(device, labels.targets > 0).where(last_label, -math.inf)
    loss = _total((blank_behind, last_label)).neg()
    nothing = np.where(labels.targets > 0, math.inf, 0.0)  # where no step counts
    without = NDArray.from_numpy(nothing, dtypes.float64, device).to(loss.dtype)
    return labels.on(device, labels.steps == 0).where(without, loss)


def _total(ways: Sequence[NDArray]) -> NDArray:
    """ln Σ exp of each."""
    return ops.logsumexp(ops.cat([way.unsqueeze(0) for way in ways], 0), (0,))


def _stacked(rows: list[NDArray], like: NDArray) -> NDArray:
    return ops.cat([row.unsqueeze(0) for row in rows], 0) if rows else like


def _may_skip(extended: Integers, blank: int) -> Flags:
    """(N, L): whether the blank before a label may be left out: not between equal labels."""
    skip = np.zeros(extended.shape, np.bool_)
    skip[:, 2:] = (extended[:, 2:] != blank) & (extended[:, 2:] != extended[:, :-2])
    return skip


# --- checks -----------------------------------------------------------------------------------------------------------


def _labels(
    op: str, shape: Shape, targets: NDArray, blank: int, input_lengths: Lengths, target_lengths: Lengths
) -> Labels:
    unrecordable("reads the labels of ctc_loss on the host")
    steps, batch, classes = shape
    if not 0 <= blank < classes:
        raise ValueError(describe(op, "blank", f"a class in [0, {classes})", blank))
    if targets.dtype.is_floating_point or targets.dtype is dtypes.bool_:
        raise DTypeError(describe(op, "targets", "integers", targets.dtype))
    counts = _lengths(op, "input_lengths", input_lengths, batch)
    lengths = _lengths(op, "target_lengths", target_lengths, batch)
    if batch and counts.max() > steps:
        raise ValueError(describe(op, "input_lengths", f"at most {steps}, the steps of log_probs", int(counts.max())))
    values = targets.numpy().astype(np.int64)
    table = np.full((batch, int(lengths.max(initial=0))), blank, np.int64)
    present = np.arange(table.shape[1]) < lengths[:, None]
    if values.ndim == 2 and len(values) == batch:
        if table.shape[1] > values.shape[1]:
            expected = f"at most {values.shape[1]}, the labels of targets"
            raise ValueError(describe(op, "target_lengths", expected, table.shape[1]))
        table[present] = values[:, : table.shape[1]][present]
    elif values.ndim == 1 and len(values) == present.sum():
        table[present] = values
    elif values.ndim == 1 and batch == 1 and len(values) >= present.sum():  # of one sample, with labels to spare
        table[present] = values[: table.shape[1]]
    else:
        expected = f"shape ({batch}, S), or ({present.sum()},) as target_lengths say"
        raise ShapeError(describe(op, "targets", expected, f"shape {targets.shape}"))
    wrong = present & ((table < 0) | (table >= classes))
    if wrong.any():
        raise ValueError(describe(op, "targets", f"labels in [0, {classes})", int(table[wrong][0])))
    extended = np.full((batch, 2 * table.shape[1] + 1), blank, np.int64)
    extended[:, 1::2] = table
    return Labels(counts, lengths, extended)


def _lengths(op: str, name: str, given: Lengths, batch: int) -> Integers:
    """(N,) numbers that are not negative."""
    values = np.atleast_1d(given.array.numpy() if isinstance(given, Tensor) else np.asarray(given, dtype=None))
    if values.size and values.dtype.kind not in "iu":
        raise DTypeError(describe(op, name, "integers", values.dtype))
    if values.shape != (batch,):
        raise ShapeError(describe(op, name, f"{batch} of them", f"shape {values.shape}"))
    if (values < 0).any():
        raise ValueError(describe(op, name, "numbers >= 0", int(values.min())))
    return values.astype(np.int64)
