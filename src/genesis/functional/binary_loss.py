"""Binary cross entropy, of probabilities and of logits."""

from __future__ import annotations

from genesis import dtypes
from genesis.autograd import ArrayFunction, Context, Gradients, Tensor
from genesis.errors import ShapeError, describe
from genesis.functional.loss import check_pair, reduced, spread
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits"]


def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    """−(t·ln x + (1 − t)·ln(1 − x)), the logarithms limited to at least −100.

    Args:
        input: probabilities in [0, 1], any shape and floating dtype; elsewhere the loss is NaN.
        target: the shape of input.
        weight: any shape that broadcasts to input.
        size_average, reduce, reduction: as in `F.mse_loss`.
    Returns: 0-d, or for "none" the shape of input.
    Raises: ValueError: another reduction. ShapeError: target's or weight's shape. DTypeError: no floating dtype.
    Grad: input, target. Saves both.

    Example:
        >>> F.binary_cross_entropy(genesis.tensor([0.5]), genesis.tensor([1.0])).item()
        0.6931471824645996
    """
    op = "binary_cross_entropy"
    reduction = check_pair(op, input, target, reduction, size_average, reduce, equal=True)
    _check_factors(op, input, weight=weight)
    return BCELoss.apply(input, target, weight, reduction=reduction)


class BCELoss(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, target: NDArray, weight: NDArray | None, *, reduction: str) -> NDArray:
        ctx.save(x, target, weight)
        ctx.reduction = reduction
        log_x, log_rest = _limited_logs(x)
        # t·ln x + (1 − t)·ln(1 − x) = ln(1 − x) + t·(ln x − ln(1 − x))
        each = log_rest.add(target.mul(log_x.sub(log_rest))).neg()
        return reduced(each if weight is None else each.mul(weight), reduction)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, target, weight = ctx.saved
        needs_x, needs_target, _ = ctx.needs_input_grad
        grad_x = grad_target = None
        if needs_x:
            slope = x.sub(target).div(x.mul(ops.sub(1, x)).clamp(1e-12, None))  # d/dx = (x − t) / (x·(1 − x))
            grad_x = spread(grad, slope if weight is None else slope.mul(weight), ctx.reduction)
        if needs_target:
            log_x, log_rest = _limited_logs(x)
            slope = log_rest.sub(log_x)
            grad_target = spread(grad, slope if weight is None else slope.mul(weight), ctx.reduction)
        return grad_x, grad_target, None


def _limited_logs(x: NDArray) -> tuple[NDArray, NDArray]:
    return x.log().clamp(-100.0, None), x.neg().log1p().clamp(-100.0, None)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: bool | None = None,
    reduce: bool | None = None, reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """binary_cross_entropy of sigmoid(input), computed so that nothing overflows.

        softplus(x) − t·x;  with pos_weight p: (1 − t)·x + (1 + (p − 1)·t)·softplus(−x)

    Args:
        input: logits, any shape and floating dtype.
        target: the shape of input.
        weight: any shape that broadcasts to input.
        size_average, reduce, reduction: as in `F.mse_loss`.
        pos_weight: weight of positive targets, any shape that broadcasts to input.
    Returns: 0-d, or for "none" the shape of input; dtype of target if that is floating, else of input.
    Raises: ValueError: another reduction. ShapeError: the shape of target, weight or pos_weight. DTypeError: no
        floating dtype.
    Grad: input, target. Saves both.

    Example:
        >>> F.binary_cross_entropy_with_logits(genesis.tensor([0.0]), genesis.tensor([1.0])).item()
        0.6931471824645996
    """
    op = "binary_cross_entropy_with_logits"
    reduction = check_pair(op, input, target, reduction, size_average, reduce, equal=True)
    _check_factors(op, input, weight=weight, pos_weight=pos_weight)
    return BCEWithLogitsLoss.apply(input, target, weight, pos_weight, reduction=reduction)


class BCEWithLogitsLoss(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(
        ctx: Context, x: NDArray, target: NDArray, weight: NDArray | None, pos_weight: NDArray | None, *, reduction: str
    ) -> NDArray:
        ctx.save(x, target, weight, pos_weight)
        ctx.reduction = reduction
        dtype = target.dtype if target.dtype.category == dtypes.FLOAT else x.dtype
        x, target = _at_least_float32(x), _at_least_float32(target)
        weight = None if weight is None else _at_least_float32(weight)
        pos_weight = None if pos_weight is None else _at_least_float32(pos_weight)
        if pos_weight is None:
            each = _softplus(x).sub(x.mul(target))
        else:
            each = ops.sub(1, target).mul(x).add(pos_weight.sub(1).mul(target).add(1).mul(_softplus(x.neg())))
        return reduced(each if weight is None else each.mul(weight), reduction).to(dtype)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        x, target, weight, pos_weight = ctx.saved
        x, target = _at_least_float32(x), _at_least_float32(target)
        weight = None if weight is None else _at_least_float32(weight)
        pos_weight = None if pos_weight is None else _at_least_float32(pos_weight)
        needs_x, needs_target, _, _ = ctx.needs_input_grad
        slope_x = slope_target = None
        if needs_x and pos_weight is None:
            slope_x = x.sigmoid().sub(target)
        elif needs_x and pos_weight is not None:
            slope_x = ops.sub(1, target).sub(pos_weight.sub(1).mul(target).add(1).mul(x.neg().sigmoid()))
        if needs_target:
            slope_target = x.neg() if pos_weight is None else pos_weight.sub(1).mul(_softplus(x.neg())).sub(x)
        slopes = [s if s is None or weight is None else s.mul(weight) for s in (slope_x, slope_target)]
        return *[None if s is None else spread(grad, s, ctx.reduction) for s in slopes], None, None


def _at_least_float32(x: NDArray) -> NDArray:
    """16 bits are too few for differences of rounded terms."""
    return x.to(dtypes.float32) if x.dtype.itemsize == 2 else x


def _softplus(x: NDArray) -> NDArray:
    return ops.softplus(x, 1.0, 50.0)  # beyond 50 the difference from x is below float64's precision


def _check_factors(op: str, input: Tensor, **factors: Tensor | None) -> None:
    for argument, factor in factors.items():
        if factor is not None:
            require_tensor(op, argument, factor)
            lead = input.array.ndim - factor.array.ndim
            sizes = zip(factor.array.shape, input.array.shape[max(lead, 0) :], strict=lead >= 0)
            if lead < 0 or any(size not in (1, full) for size, full in sizes):
                expected = f"a shape that broadcasts to input's {input.array.shape}"
                raise ShapeError(describe(op, argument, expected, factor.array.shape))
