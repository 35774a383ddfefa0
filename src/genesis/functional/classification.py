"""Losses over classes: cross entropy and the negative log likelihood."""

from __future__ import annotations

from genesis import dtypes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor
from genesis.autograd.modes import state as modes
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.activation import log_softmax
from genesis.functional.loss import check_reduction, reduced
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops

__all__ = ["cross_entropy", "nll_loss"]

_MOST_CLASSES = 8192  # of a row that a GPU's registers hold


def cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """−Σ_c q_c · ln softmax(input)_c, with q the target's distribution over the classes.

    Args:
        input: (C,), (N, C) or (N, C, …): logits.
        target: class indices of shape (), (N,) or (N, …), int64; or probabilities of the shape of input.
        weight: (C,), one for each class.
        size_average, reduce: PyTorch's old names for reduction.
        ignore_index: class indices with this value don't count.
        reduction: "none", "sum" or "mean" (for class indices divided by the sum of their weights).
        label_smoothing: in [0, 1]; so much of q is spread evenly over the classes.
    Returns: 0-d, or for "none" the shape of the class indices.
    Raises: TypeError: class indices that aren't integers. IndexError: a class index out of range.
    Grad: input, and target where it holds probabilities.
    Source: Szegedy et al. 2015, arXiv:1512.00567 (label smoothing).

    Example:
        >>> F.cross_entropy(genesis.zeros(1, 4), genesis.tensor([2])).item()
        1.3862943649291992
    """
    op = "cross_entropy"
    reduction = _check(op, input, target, weight, reduction, size_average, reduce)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(describe(op, "label_smoothing", "a number in [0, 1]", label_smoothing))
    of_probabilities = target.array.shape == input.array.shape and target.array.dtype.is_floating_point
    options = {"ignore_index": ignore_index, "reduction": reduction, "smoothing": label_smoothing}
    if not of_probabilities:
        _check_classes(op, input, target)
        if _is_one_op(input.array):
            return CrossEntropy.apply(input, target, weight, **options)
    log_probs = log_softmax(input, 0 if input.array.ndim == 1 else 1)
    if of_probabilities:
        return ProbabilityLoss.apply(log_probs, target, weight, reduction=reduction, smoothing=label_smoothing)
    return NLLLoss.apply(log_probs, target, weight, **options)


def nll_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    ignore_index: int = -100, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """−weight[target] · input[target], where input holds logarithms of probabilities: cross_entropy after log_softmax.

    Args:
        target: class indices of shape (), (N,) or (N, …), int64.
        The others are those of cross_entropy.
        input: (C,), (N, C) or (N, C, …): logarithms of probabilities.
        weight, size_average, ignore_index, reduce, reduction: as in `F.cross_entropy`.
    Returns: 0-d, or for "none" the shape of target.
    Raises: DTypeError: target has no integers. IndexError: a class out of range. ShapeError: shapes that do not fit.
    Grad: input.

    Example:
        >>> F.nll_loss(genesis.tensor([[-1.0, -2.0]]), genesis.tensor([1])).item()
        2.0
    """
    op = "nll_loss"
    reduction = _check(op, input, target, weight, reduction, size_average, reduce)
    _check_classes(op, input, target)
    return NLLLoss.apply(input, target, weight, ignore_index=ignore_index, reduction=reduction, smoothing=0.0)


def _is_one_op(input: NDArray) -> bool:
    """Is it one op of the backends? Who observes the calls of functions sees those that the loss is composed of."""
    return modes.observer is None and input.ndim == 2 and 0 not in input.shape and input.shape[1] <= _MOST_CLASSES


class CrossEntropy(ArrayFunction):
    """NLLLoss after log_softmax, of (N, C) and class indices."""

    autocast = "float32"

    @staticmethod
    def forward(
        ctx: Context, logits: NDArray, target: NDArray, weight: NDArray | None, *, ignore_index: int, reduction: str,
        smoothing: float,
    ) -> NDArray:  # fmt: skip
        target = target.to(dtypes.int64)
        loss, total, log_probs = ops.cross_entropy(logits, target, weight, ignore_index, smoothing, reduction)
        ctx.save(log_probs, target, weight, total)
        ctx.options = (ignore_index, smoothing)
        return loss

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return ops.cross_entropy_backward(grad, *ctx.saved, *ctx.options), None, None


class NLLLoss(ArrayFunction):
    """(1 − s)·nll + s/C · Σ_c −w_c·log_probs_c, with s the label smoothing."""

    autocast = "float32"

    @staticmethod
    def forward(
        ctx: Context, log_probs: NDArray, target: NDArray, weight: NDArray | None, *, ignore_index: int, reduction: str,
        smoothing: float,
    ) -> NDArray:  # fmt: skip
        single = log_probs.ndim == 1
        if single:
            log_probs, target = log_probs.unsqueeze(0), target.unsqueeze(0)
        target = target.to(dtypes.int64)
        each, weights = ops.nll_loss(log_probs, target, weight, ignore_index)
        if smoothing:
            kept = target.ne(ignore_index)
            spread = kept.where(ops.sum(_weighted(log_probs, weight), (1,)).neg(), 0.0)
            each = each.mul(1 - smoothing).add(spread.mul(smoothing / log_probs.shape[1]))
        every = tuple(range(each.ndim))
        total = ops.sum(weights, every) if reduction == "mean" else None
        ctx.save(target, weight, total)
        ctx.shape, ctx.single, ctx.options = log_probs.shape, single, (ignore_index, reduction, smoothing)
        if reduction == "none":
            return each.select(0, 0) if single else each
        return ops.sum(each, every) if total is None else ops.sum(each, every).div(total)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        target, weight, total = ctx.saved
        ignore_index, reduction, smoothing = ctx.options
        if reduction == "none":
            each = grad.unsqueeze(0) if ctx.single else grad
        else:
            each = (grad if total is None else grad.div(total)).expand(target.shape)
        if not smoothing:
            result = ops.nll_loss_backward(each, ctx.shape, target, weight, ignore_index)
        else:
            result = ops.nll_loss_backward(each.mul(1 - smoothing), ctx.shape, target, weight, ignore_index)
            kept = target.ne(ignore_index).where(each, 0.0).mul(-smoothing / ctx.shape[1]).unsqueeze(1)
            result = result.add(_weighted(kept, weight))
        return result.select(0, 0) if ctx.single else result, None, None


class ProbabilityLoss(ArrayFunction):
    """−Σ_c w_c · q_c · log_probs_c with q = (1 − s)·target + s/C; its mean is over everything but the classes."""

    autocast = "float32"

    @staticmethod
    def forward(
        ctx: Context, log_probs: NDArray, target: NDArray, weight: NDArray | None, *, reduction: str, smoothing: float
    ) -> NDArray:
        dim = 0 if log_probs.ndim == 1 else 1
        ctx.save(log_probs if ctx.needs_input_grad[1] else None, target, weight)
        ctx.dim, ctx.options, ctx.count = dim, (reduction, smoothing), log_probs.numel // log_probs.shape[dim]
        q = target.mul(1 - smoothing).add(smoothing / log_probs.shape[dim]) if smoothing else target
        each = ops.sum(_weighted(log_probs.mul(q), weight), (dim,)).neg()
        return reduced(each, reduction)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        log_probs, target, weight = ctx.saved
        reduction, smoothing = ctx.options
        if reduction == "none":
            grad = grad.unsqueeze(ctx.dim)
        elif reduction == "mean" and ctx.count:
            grad = grad.mul(1 / ctx.count)
        grad_log_probs = grad_target = None
        if ctx.needs_input_grad[0]:
            q = target.mul(1 - smoothing).add(smoothing / target.shape[ctx.dim]) if smoothing else target
            grad_log_probs = _weighted(q, weight).mul(grad).neg()
        if ctx.needs_input_grad[1]:
            grad_target = _weighted(log_probs, weight).mul(grad).mul(smoothing - 1)
        return grad_log_probs, grad_target, None


def _weighted(x: NDArray, weight: NDArray | None) -> NDArray:
    """x times the weight of each class; the classes are dimension 1, or the only one."""
    if weight is None or x.ndim == 1:
        return x if weight is None else x.mul(weight)
    return x.mul(weight.reshape((1, weight.shape[0], *(1,) * (x.ndim - 2))))


def _check(
    op: str,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    size_average: bool | None,
    reduce: bool | None,
) -> str:
    require_tensor(op, "input", input)
    require_tensor(op, "target", target)
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
    if input.array.ndim == 0:
        raise ShapeError(describe(op, "input", "at least 1 dimension", "0"))
    if weight is not None:
        require_tensor(op, "weight", weight)
        classes = input.array.shape[0 if input.array.ndim == 1 else 1]
        if weight.array.shape != (classes,):
            raise ShapeError(describe(op, "weight", f"shape {(classes,)}, one for each class", weight.array.shape))
    return check_reduction(op, reduction, size_average, reduce)


def _check_classes(op: str, input: Tensor, target: Tensor) -> None:
    shape = input.array.shape
    expected = () if len(shape) == 1 else (shape[0], *shape[2:])
    if target.array.dtype.name not in ("int64", "uint8"):
        raise DTypeError(describe(op, "target", "class indices in int64", target.array.dtype))
    if target.array.shape != expected:
        raise ShapeError(describe(op, "target", f"shape {expected} for input {shape}", target.array.shape))
