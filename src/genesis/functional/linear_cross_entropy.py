"""Cross entropy of a linear layer's logits."""

from __future__ import annotations

from genesis.autograd import Tensor
from genesis.errors import ShapeError, describe
from genesis.functional.classification import cross_entropy
from genesis.functional.dense import linear
from genesis.functional.shape import reshape
from genesis.functional.windows import require_tensor

__all__ = ["linear_cross_entropy"]


def linear_cross_entropy(
    input: Tensor, linear_weight: Tensor, target: Tensor, *, linear_bias: Tensor | None = None,
    weight: Tensor | None = None, reduction: str = "mean", ignore_index: int | None = None,
    label_smoothing: float = 0.0, options: object = None,
) -> Tensor:  # fmt: skip
    """cross_entropy(linear(input, linear_weight, linear_bias), target).

    Args:
        input: (I,) or (N, I), a floating dtype.
        linear_weight: (C, I), or (C, …, I) for logits of shape (N, C, …).
        target, weight, reduction, label_smoothing: as in `F.cross_entropy`.
        linear_bias: (C,), or (C, …).
        ignore_index: as there; None for −100. Not with probabilities as targets.
        options: how PyTorch splits the work; Genesis computes all logits at once, whatever they are.
    Returns: 0-d, or for "none" the shape of the classes.
    Raises: ShapeError: shapes that do not fit. ValueError: ignore_index with probabilities.
    Grad: input, linear_weight, linear_bias, target.

    Example:
        >>> loss = F.linear_cross_entropy(genesis.zeros(2, 3), genesis.ones(4, 3), genesis.tensor([0, 3]))
        >>> round(loss.item(), 4)  # ln 4
        1.3863
    """
    op = "linear_cross_entropy"
    for name, value in (("input", input), ("linear_weight", linear_weight), ("target", target)):
        require_tensor(op, name, value)
    x, w = input.array.shape, linear_weight.array.shape
    if len(x) not in (1, 2):
        raise ShapeError(describe(op, "input", "1 or 2 dimensions", f"shape {x}"))
    if len(w) < 2 or w[-1] != x[-1]:
        raise ShapeError(describe(op, "linear_weight", f"(C, …, {x[-1]})", f"shape {w}"))
    classes, more = w[0], w[1:-1]
    if more and len(x) == 1:
        raise ShapeError(describe(op, "input", "2 dimensions, as linear_weight has more than 2", f"shape {x}"))
    if linear_bias is not None and linear_bias.array.shape != (classes, *more):
        raise ShapeError(describe(op, "linear_bias", f"shape {(classes, *more)}", linear_bias.array.shape))
    shape = (*x[:-1], classes, *more)
    if target.array.shape == shape and ignore_index is not None:
        raise ValueError(describe(op, "ignore_index", "None with probabilities as targets", ignore_index))
    if more:
        linear_weight = reshape(linear_weight, (-1, w[-1]))
        linear_bias = None if linear_bias is None else reshape(linear_bias, (-1,))
    logits = linear(input, linear_weight, linear_bias)
    return cross_entropy(
        reshape(logits, shape) if more else logits, target, weight=weight, reduction=reduction,
        ignore_index=-100 if ignore_index is None else ignore_index, label_smoothing=label_smoothing,
    )  # fmt: skip
