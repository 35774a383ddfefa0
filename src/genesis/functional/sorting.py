"""Sorting: sort, argsort, topk, and running maxima; all give indices of the elements too."""

from __future__ import annotations

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_ints
from genesis.functional.extremes import ValuesAndIndices
from genesis.functional.keywords import also
from genesis.ndarray import NDArray, ops

__all__ = ["argsort", "cummax", "sort", "topk"]


def sort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False, *, axis: int | None = None
) -> ValuesAndIndices:
    """Sort along dim; NaN is the largest.

    Args:
        input: any shape, numbers or bool.
        dim: counts from the end if negative.
        axis: NumPy's name of dim.
        descending: largest first.
        stable: equal elements keep their order.
    Returns: (values, indices): dtype of input, and int64.
    Raises: IndexError: input has no such dimension.
    Grad: input. Saves the indices.
    Example: >>> F.sort(genesis.tensor([3.0, 1.0, 2.0])).indices.tolist()
    [1, 2, 0]
    """
    dim = dim if axis is None else axis
    dim = shapes.normalize_dim("sort", dim, input.array.ndim)
    return ValuesAndIndices(*Sort.apply(input, dim=dim, descending=descending, stable=bool(stable)))


class Ordered(ArrayFunction):
    """A function that gives (values, indices) along a dimension."""

    @staticmethod
    def backward(ctx: Context, grad: NDArray, _: None) -> NDArray:
        (indices,) = ctx.saved
        return ops.scatter(grad.full_like(0, ctx.shape), ctx.dim, indices, grad)


class Sort(Ordered):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int, descending: bool, stable: bool) -> tuple[NDArray, NDArray]:
        values, indices = ops.sort(x, dim, descending, stable)
        ctx.shape, ctx.dim = x.shape, dim
        ctx.save(indices)
        return values, indices


def argsort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False, *, axis: int | None = None
) -> Tensor:
    """The indices that sort input along dim.

    Args:
        input: any shape, numbers or bool.
        dim, descending, stable: as in `F.sort`.
        axis: NumPy's name of dim.
    Returns: the shape of input, int64.
    Grad: none.
    Example: >>> F.argsort(genesis.tensor([3.0, 1.0, 2.0]), descending=True).tolist()
    [0, 2, 1]
    """
    dim = dim if axis is None else axis
    return sort(input, dim, descending, stable).indices


@also(axis="dim")
def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesAndIndices:
    """The k largest (or smallest) elements along dim, in order.

    Args:
        input: any shape, numbers.
        k: how many, from 0 to the size of dim.
        dim: counts from the end if negative.
        largest, sorted: the largest or the smallest; they are sorted in either case.
    Returns: (values, indices) with k in the place of dim: dtype of input, and int64.
    Raises: ShapeError: k is negative or more than there are. DTypeError: k is no int; input is bool.
    Grad: input. Saves the indices.
    Example: >>> F.topk(genesis.tensor([3.0, 1.0, 2.0]), 2).values.tolist()
    [3.0, 2.0]
    """
    require_ints("topk", k=k)
    if input.array.dtype is dtypes.bool_:
        raise DTypeError(describe("topk", "input", "numbers", input.array.dtype))
    dim = shapes.normalize_dim("topk", dim, input.array.ndim)
    size = input.array.shape[dim] if input.array.ndim else 1
    if not 0 <= k <= size:
        raise ShapeError(describe("topk", "k", f"a number from 0 to {size}, the size of dimension {dim}", k))
    return ValuesAndIndices(*TopK.apply(input, k=k, dim=dim, largest=largest))


class TopK(Ordered):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, k: int, dim: int, largest: bool) -> tuple[NDArray, NDArray]:
        values, indices = ops.topk(x, k, dim, largest)
        ctx.shape, ctx.dim = x.shape, dim
        ctx.save(indices)
        return values, indices


@also(axis="dim")
def cummax(input: Tensor, dim: int) -> ValuesAndIndices:
    """(values, indices) of the greatest element so far along dim; of equals the last, and NaN is the largest.

    Args:
        input: any shape and dtype.
        dim: the dimension to go along.
    Returns: values, as input; indices, int64. Both have the shape of input.
    Grad: input, at the indices. Saves the indices.
    Example: >>> F.cummax(genesis.tensor([1.0, 3.0, 2.0, 3.0]), 0).indices.tolist()
    [0, 1, 1, 3]
    """
    dim = shapes.normalize_dim("cummax", dim, input.array.ndim)
    return ValuesAndIndices(*CumMax.apply(input, dim=dim))


class CumMax(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int) -> tuple[NDArray, NDArray]:
        values, indices = ops.cummax(x, dim)
        ctx.shape, ctx.dim = x.shape, dim
        ctx.save(indices)
        return values, indices

    @staticmethod
    def backward(ctx: Context, grad: NDArray, _: None) -> NDArray:
        (indices,) = ctx.saved
        return ops.scatter_add(grad.full_like(0, ctx.shape), ctx.dim, indices, grad)  # an element leads several
