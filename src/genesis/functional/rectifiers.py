"""Activations with a threshold: what is beyond it passes, the rest is scaled, shrunk or replaced."""

from __future__ import annotations

from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.dtypes import Number
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.activation import elu, hardtanh, leaky_relu
from genesis.functional.comparison import ge, gt, le, logical_and
from genesis.functional.elementwise import add, clamp, div, mul, sub, where
from genesis.functional.selection import masked_fill
from genesis.functional.shape import reshape
from genesis.functional.unary import expm1
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray

__all__ = [
    "celu", "celu_", "elu_", "hardshrink", "hardtanh_", "leaky_relu_", "prelu", "rrelu", "rrelu_", "selu", "selu_",
    "softshrink", "threshold", "threshold_",
]  # fmt: skip

SELU_ALPHA = 1.6732632423543772848170429916717
SELU_SCALE = 1.0507009873554804934193349852946


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, else alpha · (exp(x / alpha) − 1): elu whose slope is 1 on both sides of 0.

    Args:
        input: any shape, a floating dtype.
        alpha: the limit is −alpha as x → −∞; not 0.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: ValueError: alpha is 0. DTypeError: input is not floating.
    Grad: input.
    Source: Barron 2017, arXiv:1704.07483.

    Example:
        >>> F.celu(genesis.tensor([-genesis.inf, 3.0]), alpha=2.0).tolist()
        [-2.0, 3.0]
    """
    _require_floating("celu", input)
    if alpha == 0:
        raise ValueError(describe("celu", "alpha", "a number other than 0", alpha))
    if inplace:
        return input._change(celu, alpha)
    if alpha > 0:
        return mul(elu(div(input, alpha)), alpha)
    return where(gt(input, 0), input, mul(expm1(div(input, alpha)), alpha))


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """scale · elu(x, alpha), whose constants keep mean 0 and variance 1 through a deep network.

    Args:
        input: any shape, a floating dtype.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is not floating.
    Grad: input.
    Source: Klambauer et al. 2017, arXiv:1706.02515.

    Example:
        >>> [round(y, 4) for y in F.selu(genesis.tensor([-genesis.inf, 1.0])).tolist()]
        [-1.7581, 1.0507]
    """
    _require_floating("selu", input)
    return input._change(selu) if inplace else mul(elu(input, SELU_ALPHA), SELU_SCALE)


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where it is positive, else weight · x, with a learned slope.

    Args:
        input: (N, C, …), or any shape for a single slope; a floating dtype.
        weight: one slope, or (C,); dtype of input.
    Returns: the shape and dtype of input.
    Raises: ShapeError: weight has neither one element nor C. DTypeError: the dtypes differ, or are not floating.
    Grad: input, weight.
    Source: He et al. 2015, arXiv:1502.01852.

    Example:
        >>> F.prelu(genesis.tensor([-2.0, 3.0]), genesis.tensor([0.25])).tolist()
        [-0.5, 3.0]
    """
    _require_floating("prelu", input)
    require_tensor("prelu", "weight", weight)
    x, w = input.array, weight.array
    if w.dtype is not x.dtype:
        raise DTypeError(describe("prelu", "weight", f"the dtype of input, {x.dtype}", w.dtype))
    if w.ndim > 1:
        raise ShapeError(describe("prelu", "weight", "0 or 1 dimensions", f"shape {w.shape}"))
    channels = x.shape[1] if x.ndim > 1 else 1
    if w.numel not in (1, channels) or (w.numel != 1 and x.ndim == 0):
        raise ShapeError(describe("prelu", "weight", f"1 or {channels} elements, as input has channels", w.shape))
    slopes = reshape(weight, (w.numel,) + (1,) * (x.ndim - 2) if x.ndim else ())
    return where(gt(input, 0), input, mul(slopes, input))


def rrelu(
    input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False
) -> Tensor:
    """x where it is positive, else slope · x; in training, each element has its own slope from [lower, upper).

    Args:
        input: any shape, a floating dtype.
        lower, upper: limits of the slope, whose mean is used outside training.
        training: whether to draw slopes.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: ValueError: lower > upper. DTypeError: input is not floating.
    Grad: input.
    Source: Xu et al. 2015, arXiv:1505.00853.

    Example:
        >>> F.rrelu(genesis.tensor([-2.0, 3.0]), 0.25, 0.75).tolist()
        [-1.0, 3.0]
    """
    _require_floating("rrelu", input)
    if lower > upper:
        raise ValueError(describe("rrelu", "lower", f"at most upper, {upper}", lower))
    if inplace:
        return input._change(rrelu, lower, upper, training)
    if not training:
        return leaky_relu(input, (lower + upper) / 2)
    slopes = add(mul(UniformLike.apply(input), upper - lower), lower)
    return where(gt(input, 0), input, mul(slopes, input))


class UniformLike(ArrayFunction):
    """Draws from [0, 1) in the shape and dtype of x, which has no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return NDArray.random("rand", x.device, x.shape, None, x.dtype)


def threshold(input: Tensor, threshold: Number, value: Number, inplace: bool = False) -> Tensor:
    """x where it exceeds threshold, else value.

    Args:
        input: any shape, numbers.
        threshold: the largest x that is replaced.
        value: what replaces it; the dtype holds it.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: OverflowError: the dtype does not hold value.
    Grad: input.

    Example:
        >>> F.threshold(genesis.tensor([0.5, 2.0]), 1.0, -1.0).tolist()
        [-1.0, 2.0]
    """
    require_tensor("threshold", "input", input)
    if inplace:
        return input._change(_THRESHOLD, threshold, value)
    return masked_fill(input, le(input, threshold), value)


_THRESHOLD = threshold  # whose argument has the same name


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x where |x| > lambd, else 0.

    Args:
        input: any shape, a floating dtype.
        lambd: the largest |x| that becomes 0.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is not floating.
    Grad: input.

    Example:
        >>> F.hardshrink(genesis.tensor([-1.0, 0.25, 2.0])).tolist()
        [-1.0, 0.0, 2.0]
    """
    _require_floating("hardshrink", input)
    return masked_fill(input, logical_and(ge(input, -lambd), le(input, lambd)), 0.0)


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """x moved towards 0 by lambd: x − lambd above lambd, x + lambd below −lambd, else 0.

    Args:
        input: any shape, a floating dtype.
        lambd: at least 0.
    Returns: the shape and dtype of input.
    Raises: ValueError: lambd is negative. DTypeError: input is not floating.
    Grad: input.

    Example:
        >>> F.softshrink(genesis.tensor([-1.0, 0.25, 2.0])).tolist()
        [-0.5, 0.0, 1.5]
    """
    _require_floating("softshrink", input)
    if not lambd >= 0:
        raise ValueError(describe("softshrink", "lambd", "a number >= 0", lambd))
    return sub(input, clamp(input, -lambd, lambd))


# --- in place ---------------------------------------------------------------------------------------------------------


def celu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Change input to celu(input). See `F.celu`."""
    return celu(input, alpha, inplace=True)


def elu_(input: Tensor, alpha: float = 1.0) -> Tensor:
    """Change input to elu(input). See `F.elu`."""
    return elu(input, alpha, inplace=True)


def hardtanh_(input: Tensor, min_val: float = -1.0, max_val: float = 1.0) -> Tensor:
    """Change input to hardtanh(input). See `F.hardtanh`."""
    return hardtanh(input, min_val, max_val, inplace=True)


def leaky_relu_(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Change input to leaky_relu(input). See `F.leaky_relu`."""
    return leaky_relu(input, negative_slope, inplace=True)


def rrelu_(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False) -> Tensor:
    """Change input to rrelu(input). See `F.rrelu`."""
    return rrelu(input, lower, upper, training, inplace=True)


def selu_(input: Tensor) -> Tensor:
    """Change input to selu(input). See `F.selu`."""
    return selu(input, inplace=True)


def threshold_(input: Tensor, threshold: Number, value: Number) -> Tensor:
    """Change input to threshold(input). See `F.threshold`."""
    return _THRESHOLD(input, threshold, value, inplace=True)


def _require_floating(op: str, input: Tensor) -> None:
    require_tensor(op, "input", input)
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
