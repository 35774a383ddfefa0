"""Activation functions."""

from __future__ import annotations

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, Context, ElementwiseFunction, Tensor
from genesis.dtypes import DType, Number
from genesis.errors import DTypeError, describe
from genesis.functional.elementwise import mul
from genesis.ndarray import NDArray, ops

__all__ = [
    "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_softmax", "mish", "relu", "relu6",
    "sigmoid", "silu", "softmax", "softplus", "tanh",
]  # fmt: skip


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """max(0, x).

    Args:
        input: any shape and floating dtype (integers too, without gradient).
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Grad: input. Saves the output.
    Example: >>> F.relu(genesis.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    return input._change(relu) if inplace else ReLU.apply(input)


class ReLU(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = ops.relu(x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return ops.relu_backward(grad, y)  # 1 where y > 0


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """min(max(0, x), 6).

    Args:
        input: any shape and floating dtype.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Grad: input. Saves input.
    Example: >>> F.relu6(genesis.tensor([-1.0, 2.0, 9.0])).tolist()
    [0.0, 2.0, 6.0]
    """
    return input._change(relu6) if inplace else hardtanh(input, 0.0, 6.0)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Clamp to [min_val, max_val]; the gradient at the limits is zero.

    Args:
        input: any shape and floating dtype.
        min_val, max_val: the limits; for integers they must fit the dtype.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is bool. ValueError: a negative limit for uint8.
    Grad: input. Saves input.
    Example: >>> F.hardtanh(genesis.tensor([-3.0, 0.5, 3.0])).tolist()
    [-1.0, 0.5, 1.0]
    """
    if min_val > max_val:
        raise ValueError(describe("hardtanh", "min_val", f"at most max_val, {max_val}", min_val))
    if inplace:
        return input._change(hardtanh, min_val, max_val)
    if not input.array.dtype.is_floating_point:
        min_val, max_val = _integer_limits(input.array.dtype, min_val, max_val)
    return Hardtanh.apply(input, low=min_val, high=max_val)


def _integer_limits(dtype: DType, low: float, high: float) -> tuple[Number, Number]:
    if dtype.name == "bool":
        raise DTypeError(describe("hardtanh", "input", "numbers", dtype))
    if dtype.name == "uint8" and low < 0:
        raise ValueError(describe("hardtanh", "min_val", "at least 0, as input is uint8", low))
    return dtypes.number("hardtanh", "min_val", low, dtype), dtypes.number("hardtanh", "max_val", high, dtype)


class Hardtanh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, low: float, high: float) -> NDArray:
        ctx.save(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return x.le(ctx.low).logical_or(x.ge(ctx.high)).where(0.0, grad)  # NaN hands its gradient on


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where it is positive, else negative_slope · x.

    Args:
        input: any shape and floating dtype.
        negative_slope: the slope below 0.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Grad: input. Saves input; in place, the result.
    Example: >>> F.leaky_relu(genesis.tensor([-2.0, 3.0]), 0.5).tolist()
    [-1.0, 3.0]
    """
    if inplace:
        return input._change(LeakyReLU.leaky_relu_, negative_slope)
    return LeakyReLU.apply(input, negative_slope=negative_slope)


class LeakyReLU(ElementwiseFunction):
    @classmethod
    def leaky_relu_(cls, input: Tensor, negative_slope: float) -> Tensor:
        return cls.apply(input, negative_slope=negative_slope, keeps_result=negative_slope >= 0)

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, negative_slope: float, keeps_result: bool = False) -> NDArray:
        y, ctx.negative_slope = ops.leaky_relu(x, negative_slope), negative_slope
        ctx.save(y if keeps_result else x)  # both are positive at the same places
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return ops.leaky_relu_backward(grad, x, ctx.negative_slope)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where it is positive, else alpha · (eˣ − 1).

    Args:
        input: any shape and floating dtype.
        alpha: the negative limit, −alpha, as x → −∞.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Grad: input. Saves input; in place, the result.
    Source: Clevert, Unterthiner & Hochreiter 2015, arXiv:1511.07289.
    Example: >>> F.elu(genesis.tensor([-genesis.inf, 3.0])).tolist()
    [-1.0, 3.0]
    """
    return input._change(ELU.elu_, alpha) if inplace else ELU.apply(input, alpha=alpha)


class ELU(ElementwiseFunction):
    @classmethod
    def elu_(cls, input: Tensor, alpha: float) -> Tensor:
        return cls.apply(input, alpha=alpha, keeps_result=alpha >= 0)

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, alpha: float, keeps_result: bool = False) -> NDArray:
        y, ctx.alpha, ctx.keeps_result = ops.elu(x, alpha), alpha, keeps_result
        ctx.save(y if keeps_result else x)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (kept,) = ctx.saved
        if not ctx.keeps_result:
            return ops.elu_backward(grad, kept, ctx.alpha)
        return kept.gt(0).where(grad, grad.mul(kept.add(ctx.alpha)))  # d/dx α·(eˣ − 1) = y + α


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """x · Φ(x), where Φ is the cumulative normal distribution.

    Args:
        input: any shape and floating dtype.
        approximate: "none", or "tanh" for the approximation by tanh.
    Returns: the shape and dtype of input.
    Raises: ValueError: another approximate.
    Grad: input. Saves input.
    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415.
    Example: >>> F.gelu(genesis.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(describe("gelu", "approximate", '"none" or "tanh"', repr(approximate)))
    return GELU.apply(input, approximate=approximate)


class GELU(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, approximate: str) -> NDArray:
        ctx.save(x)
        ctx.approximate = approximate
        return ops.gelu(x, approximate)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return ops.gelu_backward(grad, x, ctx.approximate)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """x · sigmoid(x), also known as swish.

    Args:
        input: any shape and floating dtype.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Grad: input. Saves input.
    Example: >>> F.silu(genesis.tensor([0.0, 100.0])).tolist()
    [0.0, 100.0]
    """
    return input._change(silu) if inplace else SiLU.apply(input)


class SiLU(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.silu(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return ops.silu_backward(grad, x)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """x · tanh(softplus(x)).

    Args:
        input: any shape, a floating dtype.
        inplace: write the result into input.
    Returns: shape and dtype of input.
    Grad: input.
    Source: Misra 2019, arXiv:1908.08681.
    Example: >>> F.mish(genesis.tensor([0.0, 20.0])).tolist()
    [0.0, 20.0]
    """
    return input._change(mish) if inplace else mul(input, tanh(softplus(input)))


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """ln(1 + exp(beta · x)) / beta, a smooth relu.

    Args:
        input: any shape and floating dtype.
        beta: the larger, the sharper.
        threshold: where beta · x exceeds it, the result is x itself.
    Returns: the shape and dtype of input.
    Grad: input. Saves input.
    Example: >>> F.softplus(genesis.tensor([0.0, 100.0])).tolist()
    [0.6931471824645996, 100.0]
    """
    return Softplus.apply(input, beta=beta, threshold=threshold)


class Softplus(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, beta: float, threshold: float) -> NDArray:
        ctx.save(x)
        ctx.beta = beta
        ctx.threshold = threshold
        return ops.softplus(x, beta, threshold)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return ops.softplus_backward(grad, x, ctx.beta, ctx.threshold)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """x · relu6(x + 3) / 6.

    Args:
        input: any shape and floating dtype.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Grad: input. Saves input.
    Example: >>> F.hardswish(genesis.tensor([-4.0, 0.0, 4.0])).tolist()
    [-0.0, 0.0, 4.0]
    """
    return input._change(hardswish) if inplace else Hardswish.apply(input)


class Hardswish(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.hardswish(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return ops.hardswish_backward(grad, x)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """relu6(x + 3) / 6.

    Args:
        input: any shape and floating dtype.
        inplace: write the result into input.
    Returns: the shape and dtype of input.
    Grad: input. Saves input.
    Example: >>> F.hardsigmoid(genesis.tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return input._change(hardsigmoid) if inplace else Hardsigmoid.apply(input)


class Hardsigmoid(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        ctx.save(x)
        return ops.hardsigmoid(x)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return ops.hardsigmoid_backward(grad, x)


def sigmoid(input: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ).

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.sigmoid(genesis.tensor([0.0])).tolist()
    [0.5]
    """
    return Sigmoid.apply(input)


class Sigmoid(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = x.sigmoid()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return ops.sigmoid_backward(grad, y)


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent.

    Args:
        input: any shape; integers and bool compute as the default float dtype.
    Returns: the shape of input, in the dtype it is computed in.
    Grad: input. Saves the output.
    Example: >>> F.tanh(genesis.tensor([0.0, 100.0])).tolist()
    [0.0, 1.0]
    """
    return Tanh.apply(input)


class Tanh(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        y = x.tanh()
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return ops.tanh_backward(grad, y)


def softmax(input: Tensor, dim: int | None = None, dtype: DType | None = None, *, axis: int | None = None) -> Tensor:
    """exp(x) / Σ exp(x) along dim, computed so that nothing overflows.

    Args:
        input: any shape and floating dtype; computed in float32 under autocast.
        dim, axis: the dimension that sums to one.
        dtype: compute in and return this dtype.
    Returns: the shape of input, in its dtype or the given one.
    Raises: ValueError: no dim is given. IndexError: input has no such dimension.
    Grad: input. Saves the output.
    Example: >>> F.softmax(genesis.tensor([1.0, 1.0]), dim=0).tolist()
    [0.5, 0.5]
    """
    dim = dim if axis is None else axis
    dim = _given_dim("softmax", dim, input)
    return Softmax.apply(input, dim=dim, dtype=dtype)


class Softmax(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int, dtype: DType | None) -> NDArray:
        x = x if dtype is None else x.to(dtype)
        y = ops.softmax(x, dim)
        ctx.save(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return ops.softmax_backward(grad, y, ctx.dim)


def log_softmax(
    input: Tensor, dim: int | None = None, dtype: DType | None = None, *, axis: int | None = None
) -> Tensor:  # fmt: skip
    """x − ln Σ exp(x) along dim: the logarithm of softmax, accurate where that is near 0.

    Args:
        input, dtype: as in `F.softmax`.
        dim, axis: the dimension that sums to one after exp.
    Returns: the shape of input, in its dtype or the given one.
    Raises: ValueError, IndexError: as `F.softmax`. Grad: input. Saves the output.
    Example: >>> F.log_softmax(genesis.tensor([1.0, 1.0]), dim=0).tolist()
    [-0.6931471824645996, -0.6931471824645996]
    """
    dim = _given_dim("log_softmax", dim if axis is None else axis, input)
    return LogSoftmax.apply(input, dim=dim, dtype=dtype)


class LogSoftmax(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int, dtype: DType | None) -> NDArray:
        x = x if dtype is None else x.to(dtype)
        y = ops.log_softmax(x, dim)
        ctx.save(y)
        ctx.dim = dim
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (y,) = ctx.saved
        return ops.log_softmax_backward(grad, y, ctx.dim)


def _given_dim(op: str, dim: int | None, input: Tensor) -> int:
    """PyTorch guesses a dim that is left out, and warns; here it must be said."""
    if dim is None:
        raise ValueError(describe(op, "dim", "a dimension", None))
    return shapes.normalize_dim(op, dim, input.array.ndim)
