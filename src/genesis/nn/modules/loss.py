"""Losses: each is its function of genesis.nn.functional as a module, and Dice.

reduction is "mean", "sum", or "none" for one value per element (or sample). Inputs have a floating dtype, which is the
result's too.
"""

from __future__ import annotations

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

    weight: Tensor | None

    def __init__(self, weight: Tensor | None = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)


class CrossEntropyLoss(_WeightedLoss):
    """Cross entropy of logits: −ln softmax(input)[target].

    Args:
        weight: (C,), weight of each class.
        ignore_index: target class that contributes neither loss nor gradient.
        reduction: "mean" (weighted by class) | "sum" | "none".
        label_smoothing: share of the target distribution that is spread evenly over all classes, in [0, 1].
    Shape: logits (N, C, …), with class indices (N, …) or class probabilities (N, C, …) as targets → (), or (N, …).

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

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(
            input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip


class NLLLoss(_WeightedLoss):
    """Negative log-likelihood: −input[target].

    Args:
        weight: (C,), weight of each class.
        ignore_index: target class that contributes neither loss nor gradient.
        reduction: "mean" (weighted by class) | "sum" | "none".
    Shape: log-probabilities (N, C, …) and class indices (N, …) → (), or (N, …).

    Example:
        >>> nn.NLLLoss()(genesis.tensor([[-1.0, -2.0]]), genesis.tensor([1])).item()
        2.0
    """

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)
        self.ignore_index = ignore_index

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.nll_loss(input, target, weight=self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class MSELoss(_Loss):
    """Squared error: (input − target)².

    Args:
        reduction: "mean" | "sum" | "none".
    Shape: input and target of one shape → (), or that shape.

    Example:
        >>> nn.MSELoss()(genesis.tensor([1.0, 3.0]), genesis.zeros(2)).item()
        5.0
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(input, target, reduction=self.reduction)


class L1Loss(_Loss):
    """Absolute error: |input − target|.

    Args:
        reduction: "mean" | "sum" | "none".
    Shape: input and target of one shape → (), or that shape.

    Example:
        >>> nn.L1Loss()(genesis.tensor([1.0, -3.0]), genesis.zeros(2)).item()
        2.0
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(_Loss):
    """Quadratic near zero, linear beyond: d² / (2 · beta) where d = |input − target| < beta, else d − beta / 2.

    Args:
        reduction: "mean" | "sum" | "none".
        beta: where the quadratic part ends.
    Shape: input and target of one shape → (), or that shape.
    Source: Girshick 2015, arXiv:1504.08083.

    Example:
        >>> nn.SmoothL1Loss(reduction="none")(genesis.tensor([0.5, 3.0]), genesis.zeros(2)).tolist()
        [0.125, 2.5]
    """

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class BCELoss(_WeightedLoss):
    """Binary cross entropy of probabilities: −(t · ln p + (1 − t) · ln(1 − p)).

    Args:
        weight: weight of each element, broadcast against the target.
        reduction: "mean" | "sum" | "none".
    Shape: probabilities p and targets t, both in [0, 1] and of one shape → (), or that shape.

    Example:
        >>> round(nn.BCELoss()(genesis.tensor([0.5]), genesis.tensor([1.0])).item(), 4)  # ln 2
        0.6931
    """

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy(input, target, weight=self.weight, reduction=self.reduction)


class BCEWithLogitsLoss(_WeightedLoss):
    """Binary cross entropy of logits: BCELoss of sigmoid(input), computed from the logits without overflow.

    Args:
        weight: weight of each element, broadcast against the target.
        reduction: "mean" | "sum" | "none".
        pos_weight: weight of the positive targets, broadcast against them.
    Shape: logits, and targets in [0, 1] of one shape → (), or that shape.

    Example:
        >>> round(nn.BCEWithLogitsLoss()(genesis.zeros(2), genesis.ones(2)).item(), 4)  # ln 2
        0.6931
    """

    pos_weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, *, reduction: str = "mean", pos_weight: Tensor | None = None
    ) -> None:
        super().__init__(weight, reduction)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(
            input, target, weight=self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class DiceLoss(_Loss):
    """Soft Dice loss of logits, 1 − (2 · Σ p·t + smooth) / (Σ p + Σ t + smooth) per sample and channel.

    p = sigmoid(input). The loss measures overlap, so a small object counts as much as a large one.

    Args:
        smooth: keeps the loss defined, and 0, where neither prediction nor target has any object.
        reduction: over samples and channels.
    Shape: logits (N, C, …), and targets in [0, 1] of the same shape → (), or (N, C).
    Raises: ShapeError: the shapes differ, or there is no spatial dimension.
    Source: Milletari et al. 2016, arXiv:1606.04797, with the plain sums of Sudre et al. 2017, arXiv:1707.03237.

    Example:
        >>> loss = nn.DiceLoss()
        >>> round(loss(genesis.full((1, 1, 2, 2), 20.0), genesis.ones(1, 1, 2, 2)).item(), 4)
        0.0
    """

    def __init__(self, smooth: float = 1.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.smooth = smooth

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
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
