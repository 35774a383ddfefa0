"""Smooth activations composed of others, gates, and samples of categories."""

from __future__ import annotations

from genesis import shapes
from genesis.autograd import ArrayFunction, Context, ElementwiseFunction, Tensor
from genesis.dtypes import DType
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.activation import sigmoid, softmax, softplus, tanh
from genesis.functional.elementwise import add, div, mul, sub
from genesis.functional.extremes import argmax
from genesis.functional.joining import chunk
from genesis.functional.unary import abs, neg
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops

__all__ = ["glu", "gumbel_softmax", "logsigmoid", "softmin", "softsign", "tanhshrink"]

LINEAR = 40.0  # from here on softplus(x) is x in every dtype


def logsigmoid(input: Tensor) -> Tensor:
    """ln sigmoid(x) = −softplus(−x), without overflow.

    Args:
        input: any shape, a floating dtype.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is not floating.
    Grad: input.

    Example:
        >>> F.logsigmoid(genesis.tensor([-1000.0, 0.0])).tolist()
        [-1000.0, -0.6931471824645996]
    """
    _require_floating("logsigmoid", input)
    return neg(softplus(neg(input), threshold=LINEAR))


def softsign(input: Tensor) -> Tensor:
    """x / (1 + |x|).

    Args:
        input: any shape, numbers.
    Returns: the shape of input, in its dtype, integers in the default float dtype.
    Raises: DTypeError: input is no tensor.
    Grad: input.

    Example:
        >>> F.softsign(genesis.tensor([-1.0, 3.0])).tolist()
        [-0.5, 0.75]
    """
    require_tensor("softsign", "input", input)
    return div(input, add(abs(input), 1))


def tanhshrink(input: Tensor) -> Tensor:
    """x − tanh(x).

    Args:
        input: any shape, numbers.
    Returns: the shape of input, in its dtype, integers in the default float dtype.
    Raises: DTypeError: input is no tensor.
    Grad: input.

    Example:
        >>> F.tanhshrink(genesis.tensor([0.0, 20.0])).tolist()
        [0.0, 19.0]
    """
    require_tensor("tanhshrink", "input", input)
    return sub(input, tanh(input))


def softmin(input: Tensor, dim: int | None = None, dtype: DType | None = None) -> Tensor:
    """softmax(−x) along dim.

    Args:
        input: any shape and floating dtype; computed in float32 under autocast.
        dim, dtype: as in `F.softmax`.
    Returns: the shape of input, in its dtype or the given one.
    Raises: ValueError: no dim is given. IndexError: input has no such dimension.
    Grad: input.

    Example:
        >>> F.softmin(genesis.tensor([1.0, 1.0]), dim=0).tolist()
        [0.5, 0.5]
    """
    require_tensor("softmin", "input", input)
    return softmax(neg(input), dim, dtype)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a · sigmoid(b), where a and b are the halves of input along dim.

    Args:
        input: at least 1 dimension, a floating dtype.
        dim: the dimension that is halved; its size is even.
    Returns: the shape of input, half as long in dim.
    Raises: ShapeError: an odd size, or no dimension. DTypeError: input is not floating.
    Grad: input.
    Source: Dauphin et al. 2017, arXiv:1612.08083.

    Example:
        >>> F.glu(genesis.tensor([4.0, 0.0])).tolist()
        [2.0]
    """
    _require_floating("glu", input)
    shape = input.array.shape
    if not shape:
        raise ShapeError(describe("glu", "input", "at least 1 dimension", "0"))
    dim = shapes.normalize_dim("glu", dim, len(shape))
    if shape[dim] % 2:
        raise ShapeError(describe("glu", "input", f"an even size in dimension {dim}", shape))
    if shape[dim] == 0:
        return input
    value, gate = chunk(input, 2, dim)
    return mul(value, sigmoid(gate))


def gumbel_softmax(logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1) -> Tensor:
    """softmax((logits + Gumbel noise) / tau): a sample of categories that has a gradient.

    Args:
        logits: any shape, a floating dtype; unnormalized logarithms of probabilities along dim.
        tau: temperature, positive; the lower, the nearer to a category.
        hard: return the category itself, with the gradient of the sample.
        eps: without effect, as in PyTorch.
        dim: the dimension of the categories.
    Returns: the shape and dtype of logits; sums to 1 along dim.
    Raises: DTypeError: logits are not floating. IndexError: there is no such dimension.
    Grad: logits.
    Source: Jang, Gu & Poole 2017, arXiv:1611.01144.

    Example:
        >>> F.gumbel_softmax(genesis.tensor([100.0, 0.0]), hard=True).tolist()
        [1.0, 0.0]
    """
    _require_floating("gumbel_softmax", logits)
    soft = softmax(div(add(logits, GumbelLike.apply(logits)), tau), dim)
    if not hard:
        return soft
    one_hot = OneHotAlong.apply(
        soft, argmax(soft, dim, True), dim=shapes.normalize_dim("gumbel_softmax", dim, soft.array.ndim)
    )
    return add(sub(one_hot, soft.detach()), soft)


class GumbelLike(ElementwiseFunction):
    """−ln(−ln u) of uniform draws u in the shape and dtype of x, which has no gradient."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        u = NDArray.random("rand", x.device, x.shape, None, x.dtype)
        return ops.sub(1, u).log().neg().clamp(2.0**-24, None).log().neg()


class OneHotAlong(ArrayFunction):
    """1 at index along dim, else 0."""

    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, index: NDArray, *, dim: int) -> NDArray:
        return ops.scatter(x.full_like(0), dim, index, 1)


def _require_floating(op: str, input: Tensor) -> None:
    require_tensor(op, "input" if op != "gumbel_softmax" else "logits", input)
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe(op, "input", "a floating dtype", input.array.dtype))
