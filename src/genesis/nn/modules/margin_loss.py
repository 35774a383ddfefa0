"""Losses that want a margin, and losses of distances: each is its function of genesis.nn.functional as a module."""

from __future__ import annotations

from collections.abc import Callable

from genesis import functional as F
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.nn.modules.loss import _Loss, _WeightedLoss
from genesis.tensor import Tensor

__all__ = [
    "CosineEmbeddingLoss", "CosineSimilarity", "HingeEmbeddingLoss", "MarginRankingLoss", "MultiLabelMarginLoss",
    "MultiMarginLoss", "PairwiseDistance", "TripletMarginLoss", "TripletMarginWithDistanceLoss",
]  # fmt: skip


class PairwiseDistance(Module):
    """Distance of vectors: ‖x1 − x2 + eps‖ₚ over the last dimension.

    Args:
        p: order of the norm.
        eps: keeps the gradient finite where both are equal.
        keepdim: keep the last dimension, with size 1.
    Shape: (…, D) and (…, D) → (…), or (…, 1).

    Example:
        >>> round(nn.PairwiseDistance()(genesis.tensor([[3.0, 4.0]]), genesis.zeros(1, 2)).item(), 4)
        5.0
    """

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm = p
        self.eps = eps
        self.keepdim = keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class CosineSimilarity(Module):
    """Cosine of the angle between vectors along dim.

    Args:
        dim: the dimension of a vector.
        eps: the least length.
    Shape: shapes that broadcast → the common shape without dim.

    Example:
        >>> nn.CosineSimilarity()(genesis.tensor([[1.0, 0.0]]), genesis.tensor([[0.0, 1.0]])).tolist()
        [0.0]
    """

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self.dim = dim
        self.eps = eps

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.cosine_similarity(x1, x2, self.dim, self.eps)


class _MarginLoss(_Loss):
    """A loss with a margin and a reduction."""

    def __init__(self, margin: float, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin


class HingeEmbeddingLoss(_MarginLoss):
    """Compute x where the target is 1, max(0, margin − x) where it is −1, for distances x.

    Args:
        margin: from here on dissimilar things are far enough.
        reduction: "mean" | "sum" | "none".
    Shape: distances and targets of one shape → (), or that shape.

    Example:
        >>> nn.HingeEmbeddingLoss()(genesis.tensor([0.5, 0.25]), genesis.tensor([1, -1])).item()
        0.625
    """

    def __init__(self, margin: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.hinge_embedding_loss(input, target, self.margin, reduction=self.reduction)


class MarginRankingLoss(_MarginLoss):
    """Ranking: max(0, −target · (x1 − x2) + margin); the first ranks higher where the target is 1.

    Args:
        margin: by which the ranks differ.
        reduction: "mean" | "sum" | "none".
    Shape: three of one shape → (), or that shape.

    Example:
        >>> nn.MarginRankingLoss()(genesis.tensor([1.0]), genesis.tensor([3.0]), genesis.tensor([1])).item()
        2.0
    """

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.margin_ranking_loss(input1, input2, target, self.margin, reduction=self.reduction)


class CosineEmbeddingLoss(_MarginLoss):
    """Compute 1 − cos(x1, x2) where the target is 1, max(0, cos(x1, x2) − margin) where it is −1.

    Args:
        margin: the cosine of dissimilar vectors that costs nothing.
        reduction: "mean" | "sum" | "none".
    Shape: (N, D), (N, D) and (N,), or (D,), (D,) and () → (), or (N,).

    Example:
        >>> x = genesis.tensor([[1.0, 0.0]])
        >>> nn.CosineEmbeddingLoss(0.25)(x, x, genesis.tensor([-1])).item()
        0.75
    """

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(margin, reduction)

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return F.cosine_embedding_loss(input1, input2, target, self.margin, reduction=self.reduction)


class TripletMarginLoss(_MarginLoss):
    """Triplets: max(0, ‖anchor − positive‖ − ‖anchor − negative‖ + margin).

    Args:
        margin: by which the negative is farther.
        p: order of the norm.
        eps: keeps the gradient finite where vectors are equal.
        swap: take the distance of positive and negative where that is less.
        reduction: "mean" | "sum" | "none".
    Shape: three of (N, D), or of (D,) → (), or (N,).
    Raises: ValueError: margin ≤ 0; another reduction.
    Source: Balntas et al. 2016, "Learning shallow convolutional feature descriptors with triplet losses".

    Example:
        >>> a, b = genesis.zeros(1, 1), genesis.ones(1, 1)
        >>> round(nn.TripletMarginLoss()(a, b, b).item(), 4)
        1.0
    """

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, eps: float = 1e-6, swap: bool = False, *, reduction: str = "mean"
    ) -> None:
        super().__init__(margin, reduction)
        if margin <= 0:
            raise ValueError(describe("TripletMarginLoss", "margin", "a positive number", margin))
        self.p = p
        self.eps = eps
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, reduction=self.reduction
        )


class TripletMarginWithDistanceLoss(_MarginLoss):
    """Triplets with a distance of your own.

    Args:
        distance_function: gives the distances of two tensors; PairwiseDistance if None.
        margin: by which the negative is farther.
        swap: take the distance of positive and negative where that is less.
        reduction: "mean" | "sum" | "none".
    Shape: three of one shape (N, …) → (), or that of the distances.
    Raises: ValueError: margin ≤ 0; another reduction.

    Example:
        >>> a, b = genesis.zeros(1, 1), genesis.ones(1, 1)
        >>> nn.TripletMarginWithDistanceLoss(distance_function=lambda x, y: (x - y).abs().sum(-1))(a, b, b).item()
        1.0
    """

    def __init__(
        self, *, distance_function: Callable[[Tensor, Tensor], Tensor] | None = None, margin: float = 1.0,
        swap: bool = False, reduction: str = "mean",
    ) -> None:  # fmt: skip
        super().__init__(margin, reduction)
        if margin <= 0:
            raise ValueError(describe("TripletMarginWithDistanceLoss", "margin", "a positive number", margin))
        self.distance_function = PairwiseDistance() if distance_function is None else distance_function
        self.swap = swap

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function, margin=self.margin, swap=self.swap,
            reduction=self.reduction,
        )  # fmt: skip


class MultiMarginLoss(_WeightedLoss):
    """Score the class higher than all others: Σ_{c ≠ t} max(0, margin − x_t + x_c)ᵖ / C.

    Args:
        p: 1 | 2.
        margin: by which the class scores higher.
        weight: (C,), weight of each class.
        reduction: "mean" | "sum" | "none".
    Shape: scores (N, C) and class indices (N,) → (), or (N,).
    Raises: ValueError: another p or reduction.

    Example:
        >>> nn.MultiMarginLoss()(genesis.tensor([[1.0, 3.0]]), genesis.tensor([0])).item()
        1.5
    """

    def __init__(
        self, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, *, reduction: str = "mean"
    ) -> None:
        super().__init__(weight, reduction)
        if p not in (1, 2):
            raise ValueError(describe("MultiMarginLoss", "p", "1 or 2", p))
        self.p = p
        self.margin = margin

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multi_margin_loss(input, target, self.p, self.margin, self.weight, reduction=self.reduction)


class MultiLabelMarginLoss(_Loss):
    """Score several classes higher than the others: Σ_t Σ_c max(0, 1 − x_t + x_c) / C.

    Args:
        reduction: "mean" | "sum" | "none".
    Shape: scores (N, C) and class indices (N, C) up to the first −1 → (), or (N,).

    Example:
        >>> nn.MultiLabelMarginLoss()(genesis.tensor([[1.0, 3.0]]), genesis.tensor([[0, -1]])).item()
        1.5
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_margin_loss(input, target, reduction=self.reduction)
