"""Losses of distributions: each is its function of genesis.nn.functional as a module."""

from __future__ import annotations

import math
import warnings

from genesis import functional as F
from genesis.creation import DeviceLike
from genesis.dtypes import DType
from genesis.errors import ShapeError, describe
from genesis.functional.ctc import Lengths
from genesis.nn.module import Module
from genesis.nn.modules.linear import Linear
from genesis.nn.modules.loss import NLLLoss, _Loss, _WeightedLoss
from genesis.tensor import Tensor

__all__ = [
    "CTCLoss", "GaussianNLLLoss", "HuberLoss", "KLDivLoss", "LinearCrossEntropyLoss", "MultiLabelSoftMarginLoss",
    "NLLLoss2d", "PoissonNLLLoss", "SoftMarginLoss",
]  # fmt: skip


class CTCLoss(_Loss):
    """Connectionist temporal classification: −ln of the probability of a sequence of labels over all its alignments.

    Args:
        blank: the class that stands for no label.
        reduction: "mean" (of each loss divided by its target's length) | "sum" | "none".
        zero_infinity: loss and gradient are 0 where no alignment fits into the steps, instead of ∞ and NaN.
    Shape: log_probs (T, N, C) or (T, C), targets (N, S) or (sum of target_lengths,), input_lengths and target_lengths
        (N,) or () → (), or (N,).
    Source: Graves et al. 2006, doi:10.1145/1143844.1143891.

    Example:
        >>> log_probs = genesis.full((4, 1, 3), -1.0).log_softmax(2)  # 15 of the 3⁴ paths give the labels 1, 2
        >>> loss = nn.CTCLoss(reduction="sum")(log_probs, genesis.tensor([[1, 2]]), [4], [2])
        >>> round(81 * (-loss).exp().item(), 3)
        15.0
    """

    def __init__(self, blank: int = 0, reduction: str = "mean", zero_infinity: bool = False) -> None:
        super().__init__(reduction)
        self.blank, self.zero_infinity = blank, zero_infinity

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> Tensor:
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )


class KLDivLoss(Module):
    """Kullback-Leibler divergence, element by element: t · (ln t − x) for logarithms x.

    Args:
        reduction: "mean" | "batchmean" (the divergence proper) | "sum" | "none".
        log_target: whether the targets are logarithms too.
    Shape: logarithms of probabilities and probabilities of one shape → (), or that shape.
    Raises: ValueError: another reduction.

    Example:
        >>> nn.KLDivLoss(reduction="sum")(genesis.tensor([0.0]), genesis.tensor([1.0])).item()
        0.0
    """

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum", "batchmean"):
            expected = '"none", "mean", "sum" or "batchmean"'
            raise ValueError(describe("KLDivLoss", "reduction", expected, repr(reduction)))
        self.reduction = reduction
        self.log_target = log_target

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class HuberLoss(_Loss):
    """Quadratic near zero, linear beyond: d² / 2 where d = |input − target| < delta, else delta · (d − delta / 2).

    Args:
        reduction: "mean" | "sum" | "none".
        delta: where the quadratic part ends; positive.
    Shape: input and target of one shape → (), or that shape.

    Example:
        >>> nn.HuberLoss(reduction="none")(genesis.tensor([0.5, 3.0]), genesis.zeros(2)).tolist()
        [0.125, 2.5]
    """

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class SoftMarginLoss(_Loss):
    """Logistic regression with targets 1 and −1: ln(1 + exp(−target · x)).

    Args:
        reduction: "mean" | "sum" | "none".
    Shape: logits and targets of one shape → (), or that shape.

    Example:
        >>> round(nn.SoftMarginLoss()(genesis.tensor([0.0]), genesis.tensor([1.0])).item(), 4)  # ln 2
        0.6931
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.soft_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(_WeightedLoss):
    """Mean of binary cross entropies of logits over the classes.

    Args:
        weight: (C,), weight of each class.
        reduction: "mean" | "sum" | "none".
    Shape: logits and targets (N, C) → (), or (N,).

    Example:
        >>> round(nn.MultiLabelSoftMarginLoss()(genesis.zeros(1, 2), genesis.ones(1, 2)).item(), 4)  # ln 2
        0.6931
    """

    def __init__(self, weight: Tensor | None = None, *, reduction: str = "mean") -> None:
        super().__init__(weight, reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return F.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class PoissonNLLLoss(_Loss):
    """Negative log-likelihood of counts: exp(x) − target · x for the logarithm x of their rate.

    Args:
        log_input: whether the input is the logarithm, or the rate itself.
        full: add Stirling's approximation of ln target!.
        eps: keeps the logarithm of a rate finite.
        reduction: "mean" | "sum" | "none".
    Shape: input and target of one shape → (), or that shape.

    Example:
        >>> nn.PoissonNLLLoss()(genesis.tensor([0.0]), genesis.tensor([5.0])).item()
        1.0
    """

    def __init__(
        self, log_input: bool = True, full: bool = False, *, eps: float = 1e-8, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.log_input = log_input
        self.full = full
        self.eps = eps

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        return F.poisson_nll_loss(
            log_input, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction
        )  # fmt: skip


class GaussianNLLLoss(_Loss):
    """Negative log-likelihood of a normal distribution whose mean and variance are given.

    Args:
        full: add the constant ½·ln 2π.
        eps: the least variance.
        reduction: "mean" | "sum" | "none".
    Shape: mean, target and variance of one shape → (), or that shape.

    Example:
        >>> nn.GaussianNLLLoss()(genesis.tensor([1.0]), genesis.tensor([3.0]), genesis.tensor([1.0])).item()
        2.0
    """

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full = full
        self.eps = eps

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return F.gaussian_nll_loss(input, target, var, full=self.full, eps=self.eps, reduction=self.reduction)


class NLLLoss2d(NLLLoss):
    """NLLLoss under an old name, with a warning. See `nn.NLLLoss`."""

    def __init__(self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean") -> None:
        warnings.warn("nn.NLLLoss2d is the old name of nn.NLLLoss", FutureWarning, stacklevel=2)
        super().__init__(weight, ignore_index=ignore_index, reduction=reduction)


class LinearCrossEntropyLoss(_WeightedLoss):
    """Cross entropy of the logits of a linear layer of its own.

    Args:
        in_features: I, size of an input.
        num_classes: C.
        out_features: sizes of further dimensions of the logits, (N, C, *out_features).
        bias: whether the linear layer has one.
        device, dtype: of its parameters.
        reduction: "mean" (weighted by class) | "sum" | "none".
        weight: (C,), weight of each class.
        ignore_index: target class that contributes neither loss nor gradient; None for −100.
        label_smoothing: share of the target distribution that is spread evenly over all classes, in [0, 1].
        options: as in `F.linear_cross_entropy`.
    Shape: (N, I) or (I,), with class indices (N, *out_features) or probabilities (N, C, *out_features) → (), or (N, …).
    Parameters: those of linear, an nn.Linear.
    Raises: ShapeError: weight has another shape. ValueError: label_smoothing is out of range.

    Example:
        >>> nn.LinearCrossEntropyLoss(5, 10)(genesis.ones(2, 5), genesis.tensor([3, 7])).shape
        ()
    """

    def __init__(
        self, in_features: int, num_classes: int, *, out_features: tuple[int, ...] = (), bias: bool = False,
        device: DeviceLike = None, dtype: DType | None = None, reduction: str = "mean", weight: Tensor | None = None,
        ignore_index: int | None = None, label_smoothing: float = 0.0, options: object = None,
    ) -> None:  # fmt: skip
        if weight is not None and weight.shape != (num_classes,):
            raise ShapeError(describe("LinearCrossEntropyLoss", "weight", f"shape {(num_classes,)}", weight.shape))
        if not 0 <= label_smoothing <= 1:
            expected = "a number in [0, 1]"
            raise ValueError(describe("LinearCrossEntropyLoss", "label_smoothing", expected, label_smoothing))
        super().__init__(weight, reduction)
        self.num_classes, self.out_features = num_classes, tuple(out_features)
        self.ignore_index, self.label_smoothing, self.options = ignore_index, label_smoothing, options
        outputs = math.prod(self.out_features, start=num_classes)
        self.linear = Linear(in_features, outputs, bias=bias, device=device, dtype=dtype)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        shape = (self.num_classes, *self.out_features)
        return F.linear_cross_entropy(
            input, F.reshape(weight, (*shape, weight.shape[-1])), target,
            linear_bias=None if bias is None else F.reshape(bias, shape), weight=self.weight,
            reduction=self.reduction, ignore_index=self.ignore_index, label_smoothing=self.label_smoothing,
            options=self.options,
        )  # fmt: skip
