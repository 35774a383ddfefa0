"""Losses: each is its function of genesis.nn.functional as a module, and Dice."""

from __future__ import annotations

from typing import Any

from genesis import functional as F
from genesis.errors import ShapeError, describe
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "DiceLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss",
]  # fmt: skip


class _Loss(Module):
    """A loss with a reduction: "mean", "sum", or "none" for one value per element."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum"):
            raise ValueError(describe(type(self).__name__, "reduction", '"none", "mean" or "sum"', repr(reduction)))
        self.reduction = reduction


class _WeightedLoss(_Loss):
    """A loss with a weight per class or element, which moves with the module."""

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(_WeightedLoss):
    """−ln softmax(input)[target], for logits (N, C, …) and class indices (N, …) or class probabilities (N, C, …).

    Args:
        weight: (C,), of each class.
        ignore_index: a target that costs nothing.
        reduction: "mean" (by weight), "sum" or "none".
        label_smoothing: the share of the target that is spread over all classes.

    Example:
        >>> loss = nn.CrossEntropyLoss()
        >>> round(loss(genesis.zeros(1, 4), genesis.tensor([2])).item(), 4)  # ln 4
        1.3863
    """

    def __init__(
        self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.cross_entropy(
            input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class NLLLoss(_WeightedLoss):
    """−input[target], for log-probabilities (N, C, …) and class indices (N, …); arguments as of CrossEntropyLoss."""

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class MSELoss(_Loss):
    """(input − target)²."""

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """|input − target|."""

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Squared below beta, linear above: d² / (2 · beta) where d = |input − target| < beta, else d − beta / 2."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class BCELoss(_WeightedLoss):
    """−(t · ln p + (1 − t) · ln(1 − p)), for probabilities p = input and targets t from 0 to 1."""

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_WeightedLoss):
    """BCELoss of sigmoid(input), computed from the logits so that it never overflows.

    Args:
        weight: of each element.
        pos_weight: of the positive targets, broadcast against them.
    """

    def __init__(
        self, weight: Tensor | None = None, *, reduction: str = "mean", pos_weight: Tensor | None = None
    ) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Any:
        return F.binary_cross_entropy_with_logits(
            input, target, weight=self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class DiceLoss(_Loss):
    """1 − (2 · Σ p·t + smooth) / (Σ p + Σ t + smooth) per sample and channel, with p = sigmoid(input).

    It measures overlap, so that a small object counts as much as a large one.

    Args:
        smooth: keeps the loss defined (and 0) where there is nothing to find and nothing was found.
        reduction: over samples and channels.
    Source: Milletari et al. 2016, arXiv:1606.04797, with the plain sums of Sudre et al. 2017, arXiv:1707.03237.

    Example:
        >>> loss = nn.DiceLoss()
        >>> round(loss(genesis.full((1, 1, 2, 2), 20.0), genesis.ones(1, 1, 2, 2)).item(), 4)
        0.0
    """

    def __init__(self, smooth: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.smooth = smooth

    def forward(self, input: Tensor, target: Tensor) -> Any:
        """input: logits (N, C, …); target: the same shape, from 0 to 1."""
        if input.shape != target.shape or input.ndim < 3:
            raise ShapeError(
                describe("DiceLoss", "target", f"the input's shape {input.shape}, (N, C, …)", target.shape)
            )
        probability, target = F.sigmoid(input), target.to(input.dtype)
        dims = tuple(range(2, input.ndim))
        overlap = F.sum(probability * target, dims)
        total = F.sum(probability, dims) + F.sum(target, dims)
        losses = 1 - (2 * overlap + self.smooth) / (total + self.smooth)
        return losses if self.reduction == "none" else F.mean(losses) if self.reduction == "mean" else F.sum(losses)
