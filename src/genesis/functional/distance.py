"""Lengths, distances and angles of vectors."""

from __future__ import annotations

from genesis import shapes
from genesis.autograd import Tensor
from genesis.dtypes import float32, int64
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.conversion import cast
from genesis.functional.dense import linear
from genesis.functional.elementwise import add, clamp, div, mul, pow, sub
from genesis.functional.joining import narrow
from genesis.functional.keywords import also
from genesis.functional.padding import pad
from genesis.functional.reduction import Dims, norm, sum
from genesis.functional.selection import index_select
from genesis.functional.shape import expand, reshape
from genesis.functional.windows import require_tensor
from genesis.ndarray import NDArray, ops
from genesis.shapes import normalize_dim

__all__ = ["bilinear", "cosine_similarity", "local_response_norm", "normalize", "pairwise_distance", "pdist"]


def normalize(input: Tensor, p: float = 2.0, dim: Dims = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    """x / max(‖x‖ₚ, eps) along dim: vectors of length 1.

    Args:
        input: any shape, a floating dtype.
        p: order of the norm.
        dim: the dimension, or dimensions, of a vector.
        eps: the least divisor.
        out: None; results are new tensors.
    Returns: the shape and dtype of input.
    Raises: DTypeError: input is not floating; out is given. IndexError: there is no such dimension.
    Grad: input.

    Example:
        >>> [round(y, 4) for y in F.normalize(genesis.tensor([3.0, 4.0]), dim=0).tolist()]
        [0.6, 0.8]
    """
    require_tensor("normalize", "input", input)
    if out is not None:
        raise DTypeError(describe("normalize", "out", "None, as results are new tensors", type(out).__name__))
    return div(input, clamp(norm(input, p, dim, keepdim=True), min=eps))


@also(axis="dim")
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Σ x1·x2 / (max(‖x1‖, eps) · max(‖x2‖, eps)) along dim: the cosine of the angle between vectors.

    Args:
        x1, x2: shapes that broadcast; one of them floating.
        dim: the dimension of a vector, in the common shape.
        eps: the least length.
    Returns: the common shape without dim.
    Raises: ShapeError: the shapes do not broadcast. DTypeError: no operand is floating. IndexError: no such dimension.
    Grad: x1, x2.

    Example:
        >>> F.cosine_similarity(genesis.tensor([[1.0, 0.0]]), genesis.tensor([[1.0, 0.0]])).tolist()
        [1.0]
    """
    for name, x in (("x1", x1), ("x2", x2)):
        require_tensor("cosine_similarity", name, x)
        if not x.array.dtype.is_floating_point:
            raise DTypeError(describe("cosine_similarity", name, "a floating dtype", x.array.dtype))
    shape = shapes.broadcast("cosine_similarity", x1.array.shape, x2.array.shape, names=("x1", "x2"))
    dim = normalize_dim("cosine_similarity", dim, len(shape))
    x1, x2 = (x if x.array.shape == shape else expand(x, shape) for x in (x1, x2))
    return sum(mul(*(div(x, _length(x, dim, eps)) for x in (x1, x2))), dim)


def _length(x: Tensor, dim: int, eps: float) -> Tensor:
    """The norm along dim, at least eps; its gradient is that of the norm itself, as in PyTorch."""
    length = norm(x, 2, dim, keepdim=True)
    return add(length, sub(clamp(length.detach(), min=eps), length.detach()))


@also(keepdims="keepdim")
def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """‖x1 − x2 + eps‖ₚ over the last dimension.

    Args:
        x1, x2: (…, D), shapes that broadcast; floating.
        p: order of the norm.
        eps: keeps the gradient finite where both are equal.
        keepdim: keep the last dimension, with size 1.
    Returns: (…), or (…, 1).
    Raises: ShapeError: the shapes do not broadcast.
    Grad: x1, x2.

    Example:
        >>> round(F.pairwise_distance(genesis.tensor([[3.0, 4.0]]), genesis.zeros(1, 2)).item(), 4)
        5.0
    """
    for name, x in (("x1", x1), ("x2", x2)):
        require_tensor("pairwise_distance", name, x)
    return norm(add(sub(x1, x2), eps), p, -1, keepdim=keepdim)


def pdist(input: Tensor, p: float = 2.0) -> Tensor:
    """‖xᵢ − xⱼ‖ₚ of all pairs of rows i < j: the upper triangle of cdist(x, x), row by row.

    Args:
        input: (N, D), a floating dtype.
        p: order of the norm, at least 0; ∞ for the largest difference.
    Returns: (N·(N − 1)/2,).
    Raises: ShapeError: not 2 dimensions. DTypeError: not floating. ValueError: p < 0.
    Grad: input; 0 between equal rows.

    Example:
        >>> F.pdist(genesis.tensor([[0.0], [1.0], [3.0]])).tolist()
        [1.0, 3.0, 2.0]
    """
    require_tensor("pdist", "input", input)
    if input.array.ndim != 2:
        raise ShapeError(describe("pdist", "input", "2 dimensions", f"shape {input.array.shape}"))
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe("pdist", "input", "a floating dtype", input.array.dtype))
    if p < 0:
        raise ValueError(describe("pdist", "p", "a number >= 0", p))
    rows = NDArray.arange(0, 1, input.array.shape[0], int64, input.array.device)
    above = rows.unsqueeze(1).lt(rows.unsqueeze(0))
    pairs = ops.nonzero(above)
    first, second = (input._like(pairs.select(1, side)) for side in range(2))
    return norm(sub(index_select(input, 0, first), index_select(input, 0, second)), p, -1)


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y_o = Σᵢⱼ x1_i · w_oij · x2_j + b_o over the last dimensions.

    Args:
        input1: (…, I), a floating dtype.
        input2: (…, J), dtype of input1, the same leading dimensions.
        weight: (O, I, J), dtype of input1.
        bias: (O,), dtype of input1.
    Returns: (…, O).
    Raises: ShapeError: sizes that do not fit. DTypeError: the dtypes differ.
    Grad: input1, input2, weight, bias.

    Example:
        >>> F.bilinear(genesis.tensor([2.0]), genesis.tensor([3.0]), genesis.ones(1, 1, 1)).tolist()
        [6.0]
    """
    op = "bilinear"
    for name, value in (("input1", input1), ("input2", input2), ("weight", weight)):
        require_tensor(op, name, value)
        if value.array.dtype is not input1.array.dtype:
            raise DTypeError(describe(op, name, f"the dtype of input1, {input1.array.dtype}", value.array.dtype))
    first, second, w = input1.array.shape, input2.array.shape, weight.array.shape
    if len(w) != 3:
        raise ShapeError(describe(op, "weight", "3 dimensions", f"shape {w}"))
    if not first or first[-1] != w[1]:
        raise ShapeError(describe(op, "input1", f"a last dimension of {w[1]}, as weight {w} takes", f"shape {first}"))
    if second != (*first[:-1], w[2]):
        raise ShapeError(describe(op, "input2", f"shape {(*first[:-1], w[2])}", second))
    if bias is not None and bias.array.shape != w[:1]:
        raise ShapeError(describe(op, "bias", f"shape {w[:1]}", bias.array.shape))
    rows = shapes.numel(first[:-1])
    dtype = input1.array.dtype
    if dtype.itemsize < 4:  # products of two are not rounded before they are summed
        input1, input2, weight = (cast(x, float32) for x in (input1, input2, weight))
    products = mul(reshape(input1, (rows, w[1], 1)), reshape(input2, (rows, 1, w[2])))  # of all pairs
    y = cast(linear(reshape(products, (rows, w[1] * w[2])), reshape(weight, (w[0], w[1] * w[2]))), dtype)
    y = reshape(y, (*first[:-1], w[0]))
    return y if bias is None else add(y, bias)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha · m)^beta, where m is the mean of squares over size neighbouring channels, zeros beyond the edge.

    Args:
        input: (N, C, …), at least 3 dimensions, a floating dtype.
        size: number of channels.
        alpha, beta, k: constants of the divisor.
    Returns: the shape and dtype of input.
    Raises: ShapeError: fewer than 3 dimensions. ValueError: size < 1.
    Grad: input.
    Source: Krizhevsky, Sutskever & Hinton 2012.

    Example:
        >>> F.local_response_norm(genesis.ones(1, 1, 1), size=1, alpha=3.0, beta=0.5).item()
        0.5
    """
    require_tensor("local_response_norm", "input", input)
    shape = input.array.shape
    if len(shape) < 3:
        raise ShapeError(describe("local_response_norm", "input", "at least 3 dimensions", f"shape {shape}"))
    if size < 1:
        raise ValueError(describe("local_response_norm", "size", "an int >= 1", size))
    if input.array.numel == 0:
        return input
    framed = pad(mul(input, input), (0, 0) * (len(shape) - 2) + (size // 2, (size - 1) // 2))
    total = narrow(framed, 1, 0, shape[1])
    for start in range(1, size):
        total = add(total, narrow(framed, 1, start, shape[1]))
    return div(input, pow(add(mul(total, alpha / size), k), beta))
