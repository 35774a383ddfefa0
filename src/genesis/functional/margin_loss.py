"""Losses that want a margin: between classes, ranks, or distances."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.activation import relu
from genesis.functional.comparison import eq, ne
from genesis.functional.distance import pairwise_distance
from genesis.functional.elementwise import add, clamp, div, minimum, mul, pow, sub, where
from genesis.functional.loss import check_reduction
from genesis.functional.reduction import mean, sum
from genesis.functional.selection import gather, index_select
from genesis.functional.shape import unsqueeze
from genesis.functional.unary import neg
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops

__all__ = [
    "cosine_embedding_loss", "hinge_embedding_loss", "margin_ranking_loss", "multi_margin_loss",
    "multilabel_margin_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
]  # fmt: skip

TINY = 1e-12  # added to squared lengths


class Reduction(TypedDict, total=False):
    """How the losses become one: "mean", "sum" or "none", and PyTorch's old names for that."""

    reduction: str
    size_average: bool | None
    reduce: bool | None


def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """x where target is 1, max(0, margin − x) where it is −1: x is the distance of two similar or dissimilar things.

    Args:
        input: any shape, a floating dtype.
        target: 1 or −1, a shape that broadcasts with input.
        margin: from here on dissimilar things are far enough.
        size_average, reduce, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" the common shape.
    Raises: ValueError: another reduction; the shapes do not broadcast.
    Grad: input.

    Example:
        >>> F.hinge_embedding_loss(genesis.tensor([0.5, 0.25]), genesis.tensor([1, -1])).item()
        0.625
    """
    reduction = _check("hinge_embedding_loss", reduction, size_average, reduce, input=input, target=target)
    apart = where(ne(target, 1), clamp(sub(margin, input), min=0), 0.0)
    return _reduced(add(apart, where(ne(target, -1), input, 0.0)), reduction)


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """max(0, −target · (x1 − x2) + margin): x1 ranks higher where target is 1, x2 where it is −1.

    Args:
        input1, input2: shapes that broadcast, numbers.
        target: 1 or −1, as many dimensions as the inputs.
        margin: by which the ranks differ.
        size_average, reduce, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" the common shape.
    Raises: ShapeError: other numbers of dimensions. ValueError: another reduction.
    Grad: input1, input2.

    Example:
        >>> F.margin_ranking_loss(genesis.tensor([1.0]), genesis.tensor([3.0]), genesis.tensor([1])).item()
        2.0
    """
    op = "margin_ranking_loss"
    reduction = _check(op, reduction, size_average, reduce, input1=input1, input2=input2, target=target)
    for name, value in (("input2", input2), ("target", target)):
        if value.array.ndim != input1.array.ndim:
            expected = f"{input1.array.ndim} dimensions, as input1"
            raise ShapeError(describe(op, name, expected, f"shape {value.array.shape}"))
    return _reduced(clamp(add(mul(neg(target), sub(input1, input2)), margin), min=0), reduction)


def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """1 − cos(x1, x2) where target is 1, max(0, cos(x1, x2) − margin) where it is −1.

    Args:
        input1, input2: (N, D), or (D,); floating, shapes that broadcast.
        target: (N,), or 0-d: 1 or −1.
        margin: the cosine of dissimilar vectors that costs nothing, in [−1, 1].
        size_average, reduce, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" (N,).
    Raises: ShapeError: other numbers of dimensions. ValueError: another reduction.
    Grad: input1, input2.

    Example:
        >>> x = genesis.tensor([[1.0, 0.0]])
        >>> F.cosine_embedding_loss(x, x, genesis.tensor([-1]), margin=0.25).item()
        0.75
    """
    op = "cosine_embedding_loss"
    reduction = _check(op, reduction, size_average, reduce, input1=input1, input2=input2, target=target)
    if target.array.ndim > 1:
        raise ShapeError(describe(op, "target", "0 or 1 dimensions", f"shape {target.array.shape}"))
    for name, value in (("input1", input1), ("input2", input2)):
        if value.array.ndim != target.array.ndim + 1:
            expected = f"{target.array.ndim + 1} dimensions, one more than target"
            raise ShapeError(describe(op, name, expected, f"shape {value.array.shape}"))
    dim = target.array.ndim
    product = sum(mul(input1, input2), dim)
    lengths = mul(*(add(sum(mul(x, x), dim), TINY) for x in (input1, input2)))
    cosine = div(product, pow(lengths, 0.5))
    near = where(eq(target, 1), sub(1, cosine), 0.0)
    return _reduced(add(near, where(eq(target, -1), clamp(sub(cosine, margin), min=0), 0.0)), reduction)


def triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, **options: Unpack[Reduction],
) -> Tensor:  # fmt: skip
    """max(0, ‖anchor − positive‖ₚ − ‖anchor − negative‖ₚ + margin), over the last dimension.

    Args:
        anchor, positive, negative: (N, D) or (D,), shapes that broadcast; floating.
        margin: by which the negative is farther; positive.
        p, eps: as in `F.pairwise_distance`.
        swap: take the distance of positive and negative where that is less.
        options: reduction="mean", "sum" or "none"; size_average and reduce, PyTorch's old names for it.
    Returns: 0-d, or for "none" (N,).
    Raises: ShapeError: other numbers of dimensions. ValueError: margin ≤ 0; another reduction.
    Grad: anchor, positive, negative.
    Source: Balntas et al. 2016, "Learning shallow convolutional feature descriptors with triplet losses".

    Example:
        >>> a, b = genesis.zeros(1, 1), genesis.ones(1, 1)
        >>> round(F.triplet_margin_loss(a, b, b).item(), 4)
        1.0
    """
    op = "triplet_margin_loss"
    if margin <= 0:
        raise ValueError(describe(op, "margin", "a positive number", margin))
    reduction = _check(op, **options, anchor=anchor, positive=positive, negative=negative)
    for name, value in (("positive", positive), ("negative", negative)):
        if value.array.ndim != anchor.array.ndim:
            expected = f"{anchor.array.ndim} dimensions, as anchor"
            raise ShapeError(describe(op, name, expected, f"shape {value.array.shape}"))
    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    far = minimum(far, pairwise_distance(positive, negative, p, eps)) if swap else far
    return _reduced(clamp(add(sub(near, far), margin), min=0), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0, swap: bool = False,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Compute triplet_margin_loss with a distance of your own.

    Args:
        anchor, positive, negative: (N, …), shapes that broadcast; floating.
        distance_function: gives the distances of two tensors; pairwise_distance if None.
        margin, swap: as in `F.triplet_margin_loss`.
        reduction: "mean", "sum" or "none".
    Returns: 0-d, or for "none" the shape of the distances.
    Raises: ValueError: margin ≤ 0; another reduction. ShapeError: other numbers of dimensions.
    Grad: anchor, positive, negative.

    Example:
        >>> a, b = genesis.zeros(1, 1), genesis.ones(1, 1)
        >>> F.triplet_margin_with_distance_loss(a, b, b, distance_function=lambda x, y: (x - y).abs().sum(-1)).item()
        1.0
    """
    op = "triplet_margin_with_distance_loss"
    if margin <= 0:
        raise ValueError(describe(op, "margin", "a positive number", margin))
    reduction = _check(op, reduction, anchor=anchor, positive=positive, negative=negative)
    for name, value in (("positive", positive), ("negative", negative)):
        if value.array.ndim != anchor.array.ndim:
            expected = f"{anchor.array.ndim} dimensions, as anchor"
            raise ShapeError(describe(op, name, expected, f"shape {value.array.shape}"))
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    far = minimum(far, distance(positive, negative)) if swap else far
    return _reduced(clamp(add(sub(near, far), margin), min=0), reduction)


def multi_margin_loss(
    input: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None,
    size_average: bool | None = None, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Σ_{c ≠ t} max(0, margin − x_t + x_c)ᵖ / C: the class t scores higher than all others by margin.

    Args:
        input: (N, C) or (C,): scores, a floating dtype.
        target: (N,) or 0-d: class indices, int64.
        p: 1 or 2.
        margin: by which the class scores higher.
        weight: (C,), one for each class as target; dtype of input.
        size_average, reduce, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" (N,).
    Raises: ValueError: another p or reduction. ShapeError, DTypeError: what does not fit. IndexError: no such class.
    Grad: input.

    Example:
        >>> F.multi_margin_loss(genesis.tensor([[1.0, 3.0]]), genesis.tensor([0])).item()
        1.5
    """
    op = "multi_margin_loss"
    reduction = _check(op, reduction, size_average, reduce, input=input, target=target)
    if p not in (1, 2):
        raise ValueError(describe(op, "p", "1 or 2", p))
    rows, classes = _rows_and_classes(op, input)
    if target.array.shape != (rows,) and (input.array.ndim == 2 or target.array.shape != ()):
        raise ShapeError(describe(op, "target", f"shape {(rows,)} for input {input.array.shape}", target.array.shape))
    _require_classes(op, target)
    if weight is not None and weight.array.shape != (classes,):
        raise ShapeError(describe(op, "weight", f"shape {(classes,)}, one for each class", weight.array.shape))
    one, index = _batched(input), target if target.array.ndim else unsqueeze(target, 0)
    column = unsqueeze(index, 1)
    over = relu(add(sub(one, gather(one, 1, column)), margin))
    over = mul(over, over) if p == 2 else over
    over = mul(over, unsqueeze(index_select(weight, 0, index), 1)) if weight is not None else over
    each = div(sum(where(OthersThan.apply(one, column), over, 0.0), 1), classes)
    return _reduced(sum(each) if reduction == "none" and input.array.ndim < 2 else each, reduction)


class OthersThan(ArrayFunction):
    """A mask (N, C): all but the classes in index (N, K)."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, index: NDArray) -> NDArray:
        return ops.scatter(x.full_like(1), 1, index, 0).ne(0)


def multilabel_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """Σ_{t ∈ target} Σ_{c ∉ target} max(0, 1 − x_t + x_c) / C: several classes score higher than the others.

    Args:
        input: (N, C) or (C,): scores, a floating dtype.
        target: the shape of input: class indices, int64, up to the first −1.
        size_average, reduce, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" (N,).
    Raises: ValueError: another reduction. ShapeError, DTypeError: what does not fit. IndexError: no such class.
    Grad: input.

    Example:
        >>> F.multilabel_margin_loss(genesis.tensor([[1.0, 3.0]]), genesis.tensor([[0, -1]])).item()
        1.5
    """
    op = "multilabel_margin_loss"
    reduction = _check(op, reduction, size_average, reduce, input=input, target=target)
    _, classes = _rows_and_classes(op, input)
    if target.array.shape != input.array.shape:
        raise ShapeError(describe(op, "target", f"the shape of input, {input.array.shape}", target.array.shape))
    _require_classes(op, target)
    one, targets = _batched(input), _batched(target)
    index, listed, others = Labels.apply(one, targets)
    over = relu(add(sub(unsqueeze(one, 1), unsqueeze(gather(one, 1, index), 2)), 1))  # (N, labels, C)
    over = where(unsqueeze(listed, 2), where(unsqueeze(others, 1), over, 0.0), 0.0)
    each = div(sum(over, (1, 2)), classes)
    return _reduced(sum(each) if reduction == "none" and input.array.ndim < 2 else each, reduction)


class Labels(ArrayFunction):
    """For labels (N, C) that end with −1: indices to gather, which of them are listed, and the other classes."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, target: NDArray) -> tuple[NDArray, NDArray, NDArray]:
        listed = ops.cumsum(target.lt(0).to(target.dtype), 1).eq(0)
        index = listed.where(target, 0)
        marks = ops.scatter_add(x.full_like(0), 1, index, listed.to(x.dtype))
        return index, listed, marks.eq(0)


# --- what they share --------------------------------------------------------------------------------------------------


def _check(
    op: str, reduction: str = "mean", size_average: bool | None = None, reduce: bool | None = None, **tensors: Tensor
) -> str:  # fmt: skip
    for name, value in tensors.items():
        require_tensor(op, name, value)
    return check_reduction(op, reduction, size_average, reduce)


def _reduced(each: Tensor, reduction: str) -> Tensor:
    return each if reduction == "none" else sum(each) if reduction == "sum" else mean(each)


def _rows_and_classes(op: str, input: Tensor) -> tuple[int, int]:
    """(N, C) of scores (N, C) or (C,)."""
    shape = input.array.shape
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
    if len(shape) > 2 or shape[-1:] == (0,):
        raise ShapeError(describe(op, "input", "1 or 2 dimensions, the last not empty", f"shape {shape}"))
    rows, classes = ((1, 1, 1) + shape)[-2:] if shape else (1, 1)
    return (1 if len(shape) < 2 else rows), classes


def _batched(x: Tensor) -> Tensor:
    while x.array.ndim < 2:
        x = unsqueeze(x, 0)
    return x


def _require_classes(op: str, target: Tensor) -> None:
    if target.array.dtype.name != "int64":
        raise DTypeError(describe(op, "target", "class indices in int64", target.array.dtype))
