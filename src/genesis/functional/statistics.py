"""Statistics by sorting and scanning: medians, quantiles, running products, differences, integrals, NaN left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from genesis import shapes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.dtypes import DType, Number, int64
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.comparison import isnan, logical_not, ne
from genesis.functional.conversion import cast
from genesis.functional.dimensions import squeeze
from genesis.functional.elementwise import add, div, mul, sub, where
from genesis.functional.extremes import ValuesAndIndices, amax, amin
from genesis.functional.indexing import getitem
from genesis.functional.joining import cat
from genesis.functional.keywords import also
from genesis.functional.reduction import mean, std, var
from genesis.functional.reduction import sum as total
from genesis.functional.selection import gather
from genesis.functional.shape import expand, reshape
from genesis.functional.sorting import sort
from genesis.ndarray import NDArray, ops

__all__ = [
    "aminmax", "count_nonzero", "cummin", "cumprod", "cumulative_trapezoid", "diff", "kthvalue", "median", "msort",
    "nanmean", "nanmedian", "nansum", "std_mean", "trapezoid", "trapz", "var_mean",
]  # fmt: skip

Dims = int | Sequence[int] | None


class MinMax(NamedTuple):
    """The least and the greatest."""

    min: Tensor
    max: Tensor


@also(axis="dim", keepdims="keepdim")
def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
    """The least and the greatest value over dim.

    Args:
        input: any shape and dtype.
        dim: one dimension; all if None.
        keepdim: keep dim, with size 1.
    Returns: (min, max), the shape of input without dim.
    Raises: ShapeError: there is no element.
    Grad: input; equal extremes share it.
    Example: >>> F.aminmax(genesis.tensor([1, 3, 2])).max.item()
    3
    """
    require_tensors("aminmax", input=input)
    dims = () if dim is None else dim
    if dim is None and not input.array.numel:
        raise ShapeError(describe("aminmax", "input", "at least one element", f"shape {input.array.shape}"))
    least, greatest = amin(input, dims, keepdim), amax(input, dims, keepdim)
    if dim is None and keepdim:
        least, greatest = (reshape(each, (1,) * input.array.ndim) for each in (least, greatest))
    return MinMax(least, greatest)


@also(axis="dim", keepdims="keepdim")
def std_mean(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The standard deviation and the mean over dim. See `F.std`."""
    found = std(input, dim, unbiased, keepdim, correction=correction)
    return found, mean(input, None if isinstance(dim, bool) else dim, keepdim)


@also(axis="dim", keepdims="keepdim")
def var_mean(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The variance and the mean over dim. See `F.var`."""
    found = var(input, dim, unbiased, keepdim, correction=correction)
    return found, mean(input, None if isinstance(dim, bool) else dim, keepdim)


@also(axis="dim", keepdims="keepdim")
def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """The sum over dim, NaN counted as 0. See `F.sum`."""
    require_tensors("nansum", input=input)
    floats = input.array.dtype.is_floating_point
    return total(where(isnan(input), 0.0, input) if floats else input, dim, keepdim, dtype=dtype)


@also(axis="dim", keepdims="keepdim")
def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Tensor:
    """The mean over dim of what is not NaN. See `F.mean`."""
    require_tensors("nanmean", input=input)
    if not input.array.dtype.is_floating_point:
        raise DTypeError(describe("nanmean", "input", "a floating dtype", input.array.dtype))
    count = total(logical_not(isnan(input)), dim, keepdim)
    return div(nansum(input, dim, keepdim, dtype=dtype), count)


@also(axis="dim")
def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """How many elements are not 0, over dim.

    Args:
        input: any shape and dtype.
        dim: one or several dimensions; all if None.
    Returns: the shape of input without dim, int64.
    Raises: IndexError: no such dimension.
    Example: >>> F.count_nonzero(genesis.tensor([0, 1, 2])).item()
    2
    """
    return total(ne(input, 0), None if dim == () else dim)


def msort(input: Tensor) -> Tensor:
    """The values sorted along dimension 0. See `F.sort`."""
    return sort(input, 0).values


# --- by rank ----------------------------------------------------------------------------------------------------------


@also(axis="dim", keepdims="keepdim")
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The k-th smallest value along dim, and where it is.

    Args:
        input: any shape, numbers; NaN is the greatest.
        k: from 1 to the size of dim.
        dim: one dimension.
        keepdim: keep dim, with size 1.
    Returns: (values, indices), the shape of input without dim.
    Raises: ValueError: no such k. IndexError: no such dimension.
    Grad: input.
    Example: >>> F.kthvalue(genesis.tensor([3.0, 1.0, 2.0]), 2).values.item()
    2.0
    """
    require_tensors("kthvalue", input=input)
    x = input if input.array.ndim else reshape(input, (1,))
    dim = shapes.normalize_dim("kthvalue", dim, x.array.ndim)
    size = x.array.shape[dim]
    if not 1 <= k <= size:
        raise ValueError(describe("kthvalue", "k", f"from 1 to {size}", k))
    places = getitem(sort(x.detach(), dim, stable=True).indices, (*(slice(None),) * dim, slice(k - 1, k)))
    return _chosen(input, x, dim, places, keepdim)


@also(axis="dim", keepdims="keepdim")
def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor | ValuesAndIndices:
    """The value in the middle, the lower of two; with dim, along it and with its index. NaN if there is one.

    Args:
        input: any shape, numbers.
        dim: one dimension; all elements, without index, if None.
        keepdim: keep dim, with size 1.
    Returns: a 0-d tensor, or (values, indices) in the shape of input without dim.
    Raises: IndexError: no such dimension, or an empty one.
    Grad: input.
    Example: >>> F.median(genesis.tensor([3.0, 1.0, 2.0, 4.0])).item()
    2.0
    """
    return _median("median", input, dim, keepdim)


@also(axis="dim", keepdims="keepdim")
def nanmedian(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor | ValuesAndIndices:
    """The median of what is not NaN. See `F.median`."""
    return _median("nanmedian", input, dim, keepdim)


def _median(op: str, input: Tensor, dim: int | None, keepdim: bool) -> Tensor | ValuesAndIndices:
    require_tensors(op, input=input)
    if input.array.dtype.name == "bool":
        raise DTypeError(describe(op, "input", "numbers", "bool"))
    if dim is None:
        if not input.array.numel:
            nothing = input.array.full_like(math.nan if input.array.dtype.is_floating_point else 0, ())
            return input._like(nothing)
        return _by_rank(op, input, reshape(input, (-1,)), 0, False).values.reshape(())
    x = input if input.array.ndim else reshape(input, (1,))
    dim = shapes.normalize_dim(op, dim, x.array.ndim)
    if not x.array.shape[dim]:
        raise IndexError(describe(op, "input", f"at least one element in dimension {dim}", x.array.shape))
    return _by_rank(op, input, x, dim, keepdim)


def _by_rank(op: str, input: Tensor, x: Tensor, dim: int, keepdim: bool) -> ValuesAndIndices:
    size = x.array.shape[dim]
    order = sort(x.detach(), dim, stable=True).indices
    count = NDArray.full((1,) * x.array.ndim, size, int64, x.array.device)
    if x.array.dtype.is_floating_point:
        valid = ops.sum(x.array.isnan().logical_not(), (dim,), True)
        count = valid.maximum(1) if op == "nanmedian" else valid.eq(size).where(valid, 2 * size)  # NaN is the last
    places = count.sub(1).floor_divide(2).minimum(size - 1)
    shape = [1 if number == dim else length for number, length in enumerate(x.array.shape)]
    if op == "median" and x.array.dtype.is_floating_point:  # the first NaN
        places = count.gt(size).where(ops.sum(x.array.isnan().logical_not(), (dim,), True), places)
    return _chosen(input, x, dim, gather(order, dim, expand(x._like(places), shape)), keepdim)


def _chosen(input: Tensor, x: Tensor, dim: int, places: Tensor, keepdim: bool) -> ValuesAndIndices:
    values = gather(x, dim, places)
    if not keepdim:
        values, places = squeeze(values, dim), squeeze(places, dim)
    if not input.array.ndim:
        values, places = reshape(values, ()), reshape(places, ())
    return ValuesAndIndices(values, places)


# --- running ----------------------------------------------------------------------------------------------------------


@also(axis="dim")
def cummin(input: Tensor, dim: int) -> ValuesAndIndices:
    """The least value so far along dim, and where it is: the last of equals.

    Args:
        input: any shape and dtype; NaN is the least.
        dim: one dimension.
    Returns: (values, indices), the shape of input.
    Raises: IndexError: input has no such dimension.
    Grad: input.
    Example: >>> F.cummin(genesis.tensor([2, 3, 1]), 0).values.tolist()
    [2, 2, 1]
    """
    require_tensors("cummin", input=input)
    dim = shapes.normalize_dim("cummin", dim, input.array.ndim)
    return ValuesAndIndices(*CumMin.apply(input, dim=dim))


class CumMin(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int) -> tuple[NDArray, NDArray]:
        floats = x.dtype.is_floating_point
        values, indices = ops.cummax(x.neg() if floats else x.bitwise_not(), dim)
        ctx.shape, ctx.dim = x.shape, dim
        ctx.save(indices)
        return values.neg() if floats else values.bitwise_not(), indices

    @staticmethod
    def backward(ctx: Context, grad: NDArray, _: None) -> NDArray:
        (indices,) = ctx.saved
        return ops.scatter_add(grad.full_like(0, ctx.shape), ctx.dim, indices, grad)  # an element leads several


@also(axis="dim")
def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """The running product along dim.

    Args:
        input: any shape and dtype; bool and integers are multiplied in int64.
        dim: one dimension.
        dtype: compute in and return this dtype.
    Returns: the shape of input.
    Raises: IndexError: input has no such dimension.
    Grad: input, exact where elements are zero. Saves input.
    Example: >>> F.cumprod(genesis.tensor([1, 2, 3]), 0).tolist()
    [1, 2, 6]
    """
    require_tensors("cumprod", input=input)
    dim = shapes.normalize_dim("cumprod", dim, input.array.ndim)
    wanted = dtype or (input.array.dtype if input.array.dtype.is_differentiable else int64)
    return CumProd.apply(cast(input, wanted), dim=dim)


class CumProd(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int) -> NDArray:
        ctx.save(x)
        ctx.dim = dim
        return _running_product(x, dim)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        if not x.ndim:
            return grad
        dim, zero = ctx.dim, x.eq(0)
        # d yⱼ / d xᵢ = yⱼ / xᵢ for i ≤ j; at the first zero the product of the others, behind it 0.
        first = zero.logical_and(ops.cumsum(zero, dim).eq(1))
        others = _running_product(first.where(1.0, x), dim)
        at_zero = first.where(_to_the_end(grad.mul(others), dim), 0.0)
        return zero.where(at_zero, _to_the_end(grad.mul(_running_product(x, dim)), dim).div(x))


def _running_product(x: NDArray, dim: int) -> NDArray:
    """By doubling: after step k each element is the product of the 2ᵏ up to it."""
    size, step = x.shape[dim] if x.ndim else 1, 1
    while step < size:
        early, late = x.narrow(dim, 0, size - step), x.narrow(dim, step, size - step)
        x = ops.cat([x.narrow(dim, 0, step), early.mul(late)], dim)
        step *= 2
    return x.clone() if step == 1 else x


def _to_the_end(x: NDArray, dim: int) -> NDArray:
    return ops.flip(ops.cumsum(ops.flip(x, (dim,)), dim), (dim,))


# --- differences and integrals ----------------------------------------------------------------------------------------


@also(axis="dim")
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:  # fmt: skip
    """The differences of neighbours along dim, n times.

    Args:
        input: at least 1 dimension.
        n: how often.
        dim: one dimension.
        prepend, append: tensors to put before and after input along dim first.
    Returns: the shape of input, n shorter in dim.
    Raises: ShapeError: a 0-d tensor, or shapes that don't fit. ValueError: n < 0.
    Grad: input, prepend, append.
    Example: >>> F.diff(genesis.tensor([1, 3, 6])).tolist()
    [2, 3]
    """
    require_tensors("diff", input=input)
    if not input.array.ndim:
        raise ShapeError(describe("diff", "input", "at least 1 dimension", "a 0-d tensor"))
    if n < 0:
        raise ValueError(describe("diff", "n", "at least 0", n))
    dim = shapes.normalize_dim("diff", dim, input.array.ndim)
    if n == 0:
        return input.clone()
    parts = [part for part in (prepend, input, append) if part is not None]
    x = cat(parts, dim) if len(parts) > 1 else input
    if n > x.array.shape[dim]:
        n = x.array.shape[dim]
    before = (slice(None),) * dim
    for _ in range(n):
        late, early = getitem(x, (*before, slice(1, None))), getitem(x, (*before, slice(None, -1)))
        x = ne(late, early) if x.array.dtype.name == "bool" else sub(late, early)
    return x


@also(axis="dim")
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Number | Tensor | None = None, dim: int = -1) -> Tensor:
    """The integral along dim by the trapezoidal rule.

    Args:
        y: values, at least 1 dimension.
        x: where they are, broadcasts with y or has the size of dim; 0, dx, 2·dx … if None.
        dx: their distance, a number; 1 if None.
        dim: one dimension.
    Returns: the shape of y without dim.
    Raises: ValueError: both x and dx. ShapeError: shapes that don't fit.
    Grad: y, x.
    Example: >>> F.trapezoid(genesis.tensor([1.0, 2.0, 3.0])).item()
    4.0
    """
    pieces, at = _pieces("trapezoid", y, x, dx, dim)
    return total(pieces, at)


trapz = trapezoid


@also(axis="dim")
def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: Number | Tensor | None = None, dim: int = -1
) -> Tensor:  # fmt: skip
    """The running integral along dim by the trapezoidal rule, one shorter than y. See `F.trapezoid`."""
    pieces, at = _pieces("cumulative_trapezoid", y, x, dx, dim)
    return pieces.cumsum(at)


def _pieces(
    op: str, y: Tensor, x: Tensor | None, dx: Number | Tensor | None, dim: int
) -> tuple[Tensor, int]:  # fmt: skip
    require_tensors(op, y=y)
    if x is not None and dx is not None:
        raise ValueError(describe(op, "dx", "either x or dx", "both"))
    if y.array.dtype.name == "bool" or (x is not None and x.array.dtype.name == "bool"):
        raise DTypeError(describe(op, "y", "numbers", "bool"))
    at = shapes.normalize_dim(op, dim, y.array.ndim) - y.array.ndim
    before = (Ellipsis,), (slice(None),) * (-at - 1)

    def part(values: Tensor, cut: slice[int | None, int | None, None]) -> Tensor:
        return getitem(values, (*before[0], cut, *before[1]))

    sums = add(part(y, slice(1, None)), part(y, slice(None, -1)))
    if x is None:
        return div(mul(sums, 1.0 if dx is None else dx), 2.0), at
    if x.array.ndim == 1 and y.array.ndim > 1:
        if x.array.numel != y.array.shape[at]:
            raise ShapeError(describe(op, "x", f"{y.array.shape[at]} elements", x.array.numel))
        x = reshape(x, (-1, *(1,) * (-at - 1)))
    steps = sub(part(x, slice(1, None)), part(x, slice(None, -1)))
    return div(mul(sums, steps), 2.0), at
