"""Losses that are negative logarithms of likelihoods: Poisson, Gaussian, logistic."""

from __future__ import annotations

import math

from genesis.autograd import Tensor
from genesis.autograd.modes import checks_values
from genesis.dtypes import Number
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.activation import softplus
from genesis.functional.binary_loss import binary_cross_entropy_with_logits
from genesis.functional.comparison import le
from genesis.functional.elementwise import add, clamp, div, mul, sub
from genesis.functional.gates import LINEAR
from genesis.functional.loss import check_pair
from genesis.functional.reduction import mean, sum
from genesis.functional.selection import masked_fill
from genesis.functional.shape import unsqueeze
from genesis.functional.unary import exp, log, neg
from genesis.functional.windows import require_tensor
from genesis.ndarray import ops

__all__ = ["gaussian_nll_loss", "multilabel_soft_margin_loss", "poisson_nll_loss", "soft_margin_loss"]


def soft_margin_loss(
    input: Tensor, target: Tensor, size_average: bool | None = None, reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """ln(1 + exp(−target · x)): logistic regression with targets 1 and −1.

    Args:
        input: any shape, a floating dtype.
        target: 1 or −1, a shape that broadcasts with input.
        size_average, reduce, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" the common shape.
    Raises: ValueError: another reduction. DTypeError: input is not floating.
    Grad: input.

    Example:
        >>> round(F.soft_margin_loss(genesis.tensor([0.0]), genesis.tensor([1.0])).item(), 4)  # ln 2
        0.6931
    """
    reduction = check_pair("soft_margin_loss", input, target, reduction, size_average, reduce)
    return _reduced(softplus(mul(neg(target), input), threshold=LINEAR), reduction)


def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """The mean of binary cross entropies over classes: −(t · ln σ(x) + (1 − t) · ln σ(−x)).

    Args:
        input: (N, C), (…, C) or (C,): logits, a floating dtype.
        target: the shape of input, 0 or 1.
        weight: (C,), one for each class.
        size_average, reduce, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" the shape of input without the classes.
    Raises: ValueError: another reduction. DTypeError: input is not floating.
    Grad: input.

    Example:
        >>> round(F.multilabel_soft_margin_loss(genesis.zeros(1, 2), genesis.ones(1, 2)).item(), 4)  # ln 2
        0.6931
    """
    reduction = check_pair("multilabel_soft_margin_loss", input, target, reduction, size_average, reduce)
    each = binary_cross_entropy_with_logits(input, target, reduction="none")
    each = mul(each, weight) if weight is not None else each
    return _reduced(mean(each, -1) if input.array.ndim else each, reduction)


def poisson_nll_loss(
    input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: bool | None = None,
    eps: float = 1e-8, reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """exp(x) − target · x for the logarithm x of a Poisson distribution's rate, else x − target · ln(x + eps).

    Args:
        input: the rate, or its logarithm; any shape, a floating dtype.
        target: counts, a shape that broadcasts with input.
        log_input: whether input is the logarithm.
        full: add Stirling's approximation of ln target!.
        size_average, reduce, reduction: as in `F.mse_loss`.
        eps: keeps the logarithm finite.
    Returns: 0-d, or for "none" the common shape.
    Raises: ValueError: another reduction. DTypeError: input is not floating.
    Grad: input, target.

    Example:
        >>> F.poisson_nll_loss(genesis.tensor([0.0]), genesis.tensor([5.0])).item()
        1.0
    """
    op = "poisson_nll_loss"
    reduction = check_pair(op, input, target, reduction, size_average, reduce, floating="one")
    rate = exp(input) if log_input else input
    each = sub(rate, mul(target, input if log_input else log(add(input, eps))))
    if full:
        stirling = add(sub(mul(target, log(target)), target), mul(log(mul(target, 2 * math.pi)), 0.5))
        each = add(each, masked_fill(stirling, le(target, 1), 0))
    return _reduced(each, reduction)


def gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | Number, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """½·(ln v + (input − target)² / v), with v = max(var, eps): input and var are mean and variance of the target.

    Args:
        input: any shape, a floating dtype.
        target: a shape that broadcasts with input.
        var: a positive number, the shape of input, or that without its last dimension or with size 1 there.
        full: add the constant ½·ln 2π.
        eps: the least variance; its gradient is that of var.
        reduction: "mean", "sum" or "none".
    Returns: 0-d, or for "none" the shape of input.
    Raises: ValueError: a negative variance (on CUDA once the device has come to it); another reduction.
        ShapeError: var does not fit.
    Grad: input, target, var.
    Source: Nix & Weigend 1994, "Estimating the mean and variance of the target probability distribution".

    Example:
        >>> F.gaussian_nll_loss(genesis.tensor([1.0]), genesis.tensor([3.0]), genesis.tensor([1.0])).item()
        2.0
    """
    op = "gaussian_nll_loss"
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(describe(op, "reduction", '"none", "mean" or "sum"', repr(reduction)))
    require_tensor(op, "input", input)
    require_tensor(op, "target", target)
    variance = _variance(op, input, var)
    if checks_values():
        ops.refuse(variance.array.lt(0), describe(op, "var", "variances >= 0", "a negative one"))
    outside = variance.detach()
    variance = add(variance, sub(clamp(outside, min=eps), outside))  # clamped where no gradient sees it
    error = sub(input, target)
    each = mul(add(log(variance), div(mul(error, error), variance)), 0.5)
    return _reduced(add(each, 0.5 * math.log(2 * math.pi)) if full else each, reduction)


def _variance(op: str, input: Tensor, var: Tensor | Number) -> Tensor:
    """var in a shape that broadcasts with input."""
    if isinstance(var, int | float):
        if var < 0:
            raise ValueError(describe(op, "var", "a number >= 0", var))
        return input._like(input.array.full_like(float(var)))
    require_tensor(op, "var", var)
    if not var.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "var", "a floating dtype", var.array.dtype))
    x, v = input.array.shape, var.array.shape
    if x == v:
        return var
    if x[:-1] == v:
        return unsqueeze(var, -1)
    if len(x) == len(v) and [one for other, one in zip(x, v, strict=True) if other != one] == [1]:
        return var
    raise ShapeError(describe(op, "var", f"shape {x}, {x[:-1]}, or {(*x[:-1], 1)}", v))


def _reduced(each: Tensor, reduction: str) -> Tensor:
    return each if reduction == "none" else sum(each) if reduction == "sum" else mean(each)
