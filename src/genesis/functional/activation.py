"""Activation functions."""

from __future__ import annotations

from typing import Any

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, ElementwiseFunction
from genesis.autograd import Variable as Tensor
from genesis.dtypes import DType
from genesis.errors import DTypeError, describe
from genesis.functional.elementwise import mul
from genesis.ndarray import NDArray, ops

__all__ = [
    "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_softmax", "mish", "relu", "relu6",
    "sigmoid", "silu", "softmax", "softplus", "tanh",
]  # fmt: skip


def relu(input: Tensor, inplace: bool = False) -> Any:
    """max(0, input).

    Args:
        input: any shape and floating dtype (integers too, without gradient).
        inplace: write the result into input.
    Grad: input. Saves the output.

    Example:
        >>> F.relu(genesis.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    return input._change(relu) if inplace else ReLU.apply(input)


class ReLU(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        y = ops.relu(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return ops.relu_backward(grad, y)  # 1 where y > 0


def relu6(input: Tensor, inplace: bool = False) -> Any:
    """min(max(0, input), 6)."""
    return input._change(relu6) if inplace else hardtanh(input, 0.0, 6.0)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Any:
    """input, limited to [min_val, max_val]; the gradient at the limits is zero."""
    if min_val > max_val:
        raise ValueError(describe("hardtanh", "min_val", f"at most max_val, {max_val}", min_val))
    if inplace:
        return input._change(hardtanh, min_val, max_val)
    if not input.array.dtype.is_floating_point:
        min_val, max_val = _integer_limits(input.array.dtype, min_val, max_val)
    return Hardtanh.apply(input, low=min_val, high=max_val)


def _integer_limits(dtype: DType, low: float, high: float) -> tuple[Any, Any]:
    if dtype.name == "bool":
        raise DTypeError(describe("hardtanh", "input", "numbers", dtype))
    if dtype.name == "uint8" and low < 0:
        raise ValueError(describe("hardtanh", "min_val", "at least 0, as input is uint8", low))
    return dtypes.number("hardtanh", "min_val", low, dtype), dtypes.number("hardtanh", "max_val", high, dtype)


class Hardtanh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, low: float, high: float) -> NDArray:
        ctx.save(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return x.le(ctx.low).logical_or(x.ge(ctx.high)).where(0.0, grad)  # NaN hands its gradient on


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    """input where it is positive, else negative_slope · input."""
    return (
        input._change(leaky_relu, negative_slope) if inplace else LeakyReLU.apply(input, negative_slope=negative_slope)
    )


class LeakyReLU(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, negative_slope: float) -> NDArray:
        ctx.save(x)
        ctx.negative_slope = negative_slope
        return ops.leaky_relu(x, negative_slope)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return ops.leaky_relu_backward(grad, x, ctx.negative_slope)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Any:
    """input where it is positive, else alpha · (eˣ − 1)."""
    return input._change(elu, alpha) if inplace else ELU.apply(input, alpha=alpha)


class ELU(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, alpha: float) -> NDArray:
        ctx.save(x)
        ctx.alpha = alpha
        return ops.elu(x, alpha)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return ops.elu_backward(grad, x, ctx.alpha)


def gelu(input: Tensor, approximate: str = "none") -> Any:
    """x · Φ(x), Φ the normal distribution; approximate="tanh" for its approximation by tanh.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(describe("gelu", "approximate", '"none" or "tanh"', repr(approximate)))
    return GELU.apply(input, approximate=approximate)


class GELU(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, approximate: str) -> NDArray:
        ctx.save(x)
        ctx.approximate = approximate
        return ops.gelu(x, approximate)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return ops.gelu_backward(grad, x, ctx.approximate)


def silu(input: Tensor, inplace: bool = False) -> Any:
    """x · sigmoid(x), also called swish."""
    return input._change(silu) if inplace else SiLU.apply(input)


class SiLU(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.silu(x)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return ops.silu_backward(grad, x)


def mish(input: Tensor, inplace: bool = False) -> Any:
    """x · tanh(softplus(x)).

    Args:
        input: any shape, a floating dtype.
        inplace: write the result into input.
    Returns: shape and dtype of input.
    Grad: input.
    Source: Misra 2019, arXiv:1908.08681.

    Example:
        >>> F.mish(genesis.tensor([0.0, 20.0])).tolist()
        [0.0, 20.0]
    """
    return input._change(mish) if inplace else mul(input, tanh(softplus(input)))


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """ln(1 + exp(beta · x)) / beta; x itself where beta · x > threshold."""
    return Softplus.apply(input, beta=beta, threshold=threshold)


class Softplus(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, beta: float, threshold: float) -> NDArray:
        ctx.save(x)
        ctx.beta = beta
        ctx.threshold = threshold
        return ops.softplus(x, beta, threshold)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return ops.softplus_backward(grad, x, ctx.beta, ctx.threshold)


def hardswish(input: Tensor, inplace: bool = False) -> Any:
    """x · relu6(x + 3) / 6."""
    return input._change(hardswish) if inplace else Hardswish.apply(input)


class Hardswish(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.hardswish(x)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return ops.hardswish_backward(grad, x)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Any:
    """relu6(x + 3) / 6."""
    return input._change(hardsigmoid) if inplace else Hardsigmoid.apply(input)


class Hardsigmoid(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.hardsigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return ops.hardsigmoid_backward(grad, x)


def sigmoid(input: Tensor) -> Any:
    """1 / (1 + e⁻ˣ)."""
    return Sigmoid.apply(input)


class Sigmoid(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        y = x.sigmoid()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return ops.sigmoid_backward(grad, y)


def tanh(input: Tensor) -> Any:
    """The hyperbolic tangent."""
    return Tanh.apply(input)


class Tanh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Any, x: NDArray) -> NDArray:
        y = x.tanh()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return ops.tanh_backward(grad, y)


def softmax(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Any:
    """exp(x) / Σ exp(x) along dim; never overflows.

    Args:
        input: any shape.
        dim: the dimension that sums to one.
        dtype: compute in and return this dtype.
    """
    dim = _given_dim("softmax", dim, input)
    return Softmax.apply(input, dim=dim, dtype=dtype)


class Softmax(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dim: int, dtype: DType | None) -> NDArray:
        x = x if dtype is None else x.to(dtype)
        y = ops.softmax(x, dim)
        ctx.save(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return ops.softmax_backward(grad, y, ctx.dim)


def log_softmax(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Any:
    """x − ln Σ exp(x) along dim.

    Args:
        input: any shape.
        dim: the dimension that sums to one after exp.
        dtype: compute in and return this dtype.
    """
    dim = _given_dim("log_softmax", dim, input)
    return LogSoftmax.apply(input, dim=dim, dtype=dtype)


class LogSoftmax(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dim: int, dtype: DType | None) -> NDArray:
        x = x if dtype is None else x.to(dtype)
        y = ops.log_softmax(x, dim)
        ctx.save(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (y,) = ctx.saved
        return ops.log_softmax_backward(grad, y, ctx.dim)


def _given_dim(op: str, dim: int | None, input: Tensor) -> int:
    """PyTorch guesses a dim that is left out, and warns; here it must be said."""
    if dim is None:
        raise ValueError(describe(op, "dim", "a dimension", None))
    return shapes.normalize_dim(op, dim, input.array.ndim)
