"""Losses that compare numbers: differences, distributions, overlaps. See also binary_loss.py and classification.py."""

from __future__ import annotations

import warnings

from genesis import shapes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.elementwise import div, mul, sub
from genesis.functional.reduction import mean, sum
from genesis.functional.unary import abs as absolute
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops

__all__ = ["dice_loss", "huber_loss", "kl_div", "l1_loss", "mse_loss", "smooth_l1_loss"]


def mse_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The squared difference (input − target)².

    Args:
        input, target: floating, at least one of them; shapes that broadcast (with a warning where they differ).
        size_average, reduce: PyTorch's old names for reduction.
        reduction: "mean", "sum" or "none".
        weight: the shape of input; the mean is then Σ w·loss / Σ w.
    Returns: 0-d, or for "none" the common shape.
    Raises: ValueError: another reduction; weight's shape. DTypeError: no operand is floating.
    Grad: input, target, weight. Saves the difference.

    Example:
        >>> F.mse_loss(genesis.tensor([1.0, 2.0]), genesis.tensor([1.0, 4.0])).item()
        2.0
    """
    reduction = check_pair("mse_loss", input, target, reduction, size_average, reduce, floating="one")
    if weight is not None:
        each = MSELoss.apply(input, target, reduction="none")
        return _weighted("mse_loss", each, input, weight, reduction)
    return MSELoss.apply(input, target, reduction=reduction)


class DifferenceLoss(ArrayFunction):
    """A loss of d = x − target: its gradients are the slope at d and the negative of it."""

    autocast = "float32"

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        (slope,) = ctx.saved
        grad_x = spread(grad, slope, ctx.reduction)
        return grad_x, grad_x.neg() if ctx.needs_input_grad[1] else None


class MSELoss(DifferenceLoss):
    @staticmethod
    def forward(ctx: Context, x: NDArray, target: NDArray, *, reduction: str) -> NDArray:
        d = x.sub(target)
        ctx.save(d)
        ctx.reduction = reduction
        return reduced(d.mul(d), reduction)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return DifferenceLoss.backward(ctx, grad.mul(2))  # d/dd d² = 2d


def l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The absolute difference |input − target|.

    Args:
        input, target: shapes that broadcast (with a warning where they differ).
        size_average, reduce, reduction, weight: as in `F.mse_loss`.
    Returns: 0-d, or for "none" the common shape.
    Raises: ValueError: another reduction; weight's shape. DTypeError: integers that would be averaged.
    Grad: input, target, weight. Saves the sign of the difference.
    Example: >>> F.l1_loss(genesis.tensor([1.0, 2.0]), genesis.tensor([1.0, 4.0])).item()
    1.0
    """
    reduction = check_pair("l1_loss", input, target, reduction, size_average, reduce, floating="none")
    dtypes = [input.array.dtype, target.array.dtype]
    subtracts = reduction != "mean" and not any(dtype.name == "bool" for dtype in dtypes)
    if any(dtype.is_complex for dtype in dtypes):
        size = absolute(sub(input, target))
        if weight is not None:
            return _weighted("l1_loss", size, input, weight, reduction)
        return size if reduction == "none" else (sum if reduction == "sum" else mean)(size)
    if not (subtracts or any(dtype.is_floating_point for dtype in dtypes)):
        expected = "a floating dtype (integers only where nothing is averaged)"
        raise DTypeError(describe("l1_loss", "input", expected, dtypes[0]))
    if weight is not None:
        return _weighted("l1_loss", L1Loss.apply(input, target, reduction="none"), input, weight, reduction)
    return L1Loss.apply(input, target, reduction=reduction)


class L1Loss(DifferenceLoss):
    @staticmethod
    def forward(ctx: Context, x: NDArray, target: NDArray, *, reduction: str) -> NDArray:
        d = x.sub(target)
        ctx.reduction = reduction
        if any(ctx.needs_input_grad):
            ctx.save(d.sign())  # d/dd |d|
        return reduced(d.abs(), reduction)


def smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", beta: float = 1.0,
) -> Tensor:  # fmt: skip
    """½d²/beta where |d| < beta, else |d| − ½beta, with d = input − target: huber_loss / beta; l1_loss for beta 0.

    Args:
        the others are those of mse_loss.
        input, target, size_average, reduce, reduction: as in `F.mse_loss`.
        beta: where the parabola goes over into the line; at least 0.
    Returns: 0-d, or for "none" the common shape.
    Raises: ValueError: beta < 0; another reduction.
    Grad: input, target. Saves the slope.
    Source: Girshick 2015, arXiv:1504.08083.
    Example: >>> F.smooth_l1_loss(genesis.tensor([3.0]), genesis.tensor([0.0])).item()
    2.5
    """
    reduction = check_pair("smooth_l1_loss", input, target, reduction, size_average, reduce, floating="one")
    if beta < 0:
        raise ValueError(describe("smooth_l1_loss", "beta", "a number >= 0", beta))
    if beta == 0:
        return L1Loss.apply(input, target, reduction=reduction)
    return HuberLoss.apply(input, target, delta=beta, scale=1 / beta, reduction=reduction)


def huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, weight: Tensor | None = None
) -> Tensor:
    """½d² where |d| < delta, else delta·(|d| − ½delta), with d = input − target.

    Args:
        delta: where the parabola goes over into the line; positive.
        weight: the shape of input; multiplies each loss before an unweighted mean.
        the others are those of mse_loss.
        input, target, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" the common shape.
    Raises: ValueError: delta ≤ 0; another reduction; weight's shape.
    Grad: input, target, weight. Saves the slope.
    Source: Huber 1964, doi:10.1214/aoms/1177703732.
    Example: >>> F.huber_loss(genesis.tensor([3.0]), genesis.tensor([0.0])).item()
    2.5
    """
    check_pair("huber_loss", input, target, reduction)
    if delta <= 0:
        raise ValueError(describe("huber_loss", "delta", "a positive number", delta))
    if weight is None:
        return HuberLoss.apply(input, target, delta=delta, scale=1.0, reduction=reduction)
    _check_weight("huber_loss", input, weight)
    each = mul(HuberLoss.apply(input, target, delta=delta, scale=1.0, reduction="none"), weight)
    return {"none": lambda x: x, "sum": sum, "mean": mean}[reduction](each)


class HuberLoss(DifferenceLoss):
    @staticmethod
    def forward(ctx: Context, x: NDArray, target: NDArray, *, delta: float, scale: float, reduction: str) -> NDArray:
        d = x.sub(target)
        slope = d.clamp(-delta, delta)
        ctx.save(slope.mul(scale))
        ctx.reduction = reduction
        return reduced(slope.mul(d.sub(slope.mul(0.5))).mul(scale), reduction)  # c·(d − ½c) with c = clamp(d, ±delta)


def kl_div(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean", log_target: bool = False,
) -> Tensor:  # fmt: skip
    """The Kullback-Leibler divergence, element by element: t·(ln t − input), where input holds logarithms.

    Args:
        input: logarithms of probabilities, any shape and floating dtype.
        target: probabilities, or their logarithms with log_target; a shape that broadcasts with input.
        size_average, reduce: PyTorch's old names for reduction.
        reduction: "mean", "sum", "none", or "batchmean" (the sum divided by the first size: the divergence proper).
        log_target: whether target holds logarithms.
    Returns: 0-d, or for "none" the common shape.
    Grad: input, target. Saves both.

    Example:
        >>> F.kl_div(genesis.tensor([0.0]), genesis.tensor([1.0]), reduction="sum").item()
        0.0
    """
    by_batch = reduction == "batchmean"
    reduction = check_pair("kl_div", input, target, "sum" if by_batch else reduction, size_average, reduce)
    result = KLDiv.apply(input, target, reduction=reduction, log_target=log_target)
    return div(result, input.array.shape[0]) if by_batch and input.array.ndim else result


class KLDiv(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, target: NDArray, *, reduction: str, log_target: bool) -> NDArray:
        ctx.save(x, target)
        ctx.reduction, ctx.log_target = reduction, log_target
        if log_target:
            return reduced(target.exp().mul(target.sub(x)), reduction)
        entropy = target.eq(0).where(0.0, target.mul(target.log()))
        return reduced(entropy.sub(target.mul(x)), reduction)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, target = ctx.saved
        probability = target.exp() if ctx.log_target else target
        grad_x = spread(grad, probability.neg(), ctx.reduction) if ctx.needs_input_grad[0] else None
        grad_target = None
        if ctx.needs_input_grad[1]:
            slope = probability.mul(target.sub(x).add(1)) if ctx.log_target else target.log().add(1).sub(x)
            grad_target = spread(grad, slope, ctx.reduction)
        return grad_x, grad_target


def dice_loss(input: Tensor, target: Tensor, reduction: str = "mean", eps: float = 1e-6) -> Tensor:
    """1 − 2·Σ x·t / (Σ x² + Σ t²), the sums over all dimensions but the first: how little two masks overlap.

    Args:
        input: (N, …), probabilities.
        target: the shape of input, 0 or 1.
        reduction: over the N losses: "mean", "sum" or "none".
        eps: added to numerator and denominator, so that two empty masks have loss 0.
    Returns: 0-d, or (N,) for "none".
    Raises: ValueError: another reduction. ShapeError: fewer than 2 dimensions; target has another shape than input.
    Grad: input. Saves both.
    Source: Milletari, Navab & Ahmadi 2016, arXiv:1606.04797 (equation 3).

    Example:
        >>> loss = F.dice_loss(genesis.tensor([[1.0, 0.0]]), genesis.tensor([[1.0, 1.0]]), eps=0.0)
        >>> round(loss.item(), 4)
        0.3333
    """
    check_pair("dice_loss", input, target, reduction, equal=True)
    if input.array.ndim < 2:
        raise ShapeError(describe("dice_loss", "input", "at least 2 dimensions", f"shape {input.array.shape}"))
    return DiceLoss.apply(input, target, reduction=reduction, eps=eps)


class DiceLoss(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, target: NDArray, *, reduction: str, eps: float) -> NDArray:
        target = target.to(x.dtype)
        dims = tuple(range(1, x.ndim))
        overlap = ops.sum(x.mul(target), dims, True).mul(2).add(eps)
        total = ops.sum(x.mul(x).add(target.mul(target)), dims, True).add(eps)
        ctx.save(x, target, overlap, total)
        ctx.reduction = reduction
        return reduced(ops.sub(1, overlap.div(total)).reshape((x.shape[0],)), reduction)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, target, overlap, total = ctx.saved
        if ctx.reduction == "none":
            grad = grad.reshape(total.shape)
        elif ctx.reduction == "mean":
            grad = grad.mul(1 / x.shape[0])
        # L = 1 − I/D with I = 2·Σxt, D = Σx² + Σt²: dL/dx = (2x·I/D − 2t) / D, and the same for t
        scale, ratio = grad.div(total).mul(2), overlap.div(total)
        return tuple(
            scale.mul(one.mul(ratio).sub(other)) if needed else None
            for one, other, needed in zip((x, target), (target, x), ctx.needs_input_grad, strict=True)
        )


# --- what losses share ------------------------------------------------------------------------------------------------


def reduced(each: NDArray, reduction: str) -> NDArray:
    if reduction == "none":
        return each
    every = tuple(range(each.ndim))
    return ops.sum(each, every) if reduction == "sum" else ops.mean(each, every)


def spread(grad: NDArray, slope: NDArray, reduction: str) -> NDArray:
    """The gradient of reduced(each) with respect to what each depends on by slope."""
    return ops.mul(slope, grad.mul(1 / slope.numel) if reduction == "mean" and slope.numel else grad)


def check_reduction(op: str, reduction: str, size_average: bool | None, reduce: bool | None) -> str:
    """reduction, or what PyTorch's two older arguments mean."""
    if size_average is not None or reduce is not None:
        if reduce is not None and not reduce:
            return "none"
        return "mean" if size_average is None or size_average else "sum"
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(describe(op, "reduction", '"none", "mean" or "sum"', repr(reduction)))
    return reduction


def check_pair(
    op: str, input: Tensor, target: Tensor, reduction: str, size_average: bool | None = None,
    reduce: bool | None = None, equal: bool = False, floating: str = "input",
) -> str:  # fmt: skip
    """input and target are tensors whose shapes are equal, or at least broadcast; gives the reduction.

    floating: which of them must have a floating dtype: "input", "one" of both, or "none".
    """
    require_tensor(op, "input", input)
    require_tensor(op, "target", target)
    promoted = floating == "none" or (floating == "one" and target.array.dtype.is_floating_point)
    if not (promoted or input.array.dtype.is_floating_point):
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
    shape = input.array.shape
    if target.array.shape != shape:
        if equal:
            raise ShapeError(describe(op, "target", f"the shape of input, {shape}", target.array.shape))
        shapes.broadcast(op, shape, target.array.shape, names=("input", "target"))
        warnings.warn(
            f"{op}: target has shape {target.array.shape} and input {shape}: they are broadcast, which is seldom meant",
            stacklevel=3,
        )
    return check_reduction(op, reduction, size_average, reduce)


def _check_weight(op: str, input: Tensor, weight: Tensor) -> None:
    require_tensor(op, "weight", weight)
    if weight.array.shape != input.array.shape:
        raise ShapeError(describe(op, "weight", f"the shape of input, {input.array.shape}", weight.array.shape))


def _weighted(op: str, each: Tensor, input: Tensor, weight: Tensor, reduction: str) -> Tensor:
    _check_weight(op, input, weight)
    weighted = mul(each, weight)
    if reduction == "none":
        return weighted
    return sum(weighted) if reduction == "sum" else div(sum(weighted), sum(weight))
