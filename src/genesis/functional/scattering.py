"""Scattering where several elements meet: sums, products, means and extremes of what comes to one place."""

from __future__ import annotations

from genesis import shapes
from genesis.autograd import Context, Function, Tensor
from genesis.autograd.modes import no_grad
from genesis.dtypes import Number
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.comparison import eq, ne
from genesis.functional.conversion import cast
from genesis.functional.elementwise import clamp, div, floor_divide, maximum, minimum, mul, where
from genesis.functional.joining import cat, narrow
from genesis.functional.keywords import also
from genesis.functional.selection import Scatter, gather, require_scattering, scatter_add
from genesis.functional.shape import expand, reshape
from genesis.functional.sorting import argsort

__all__ = ["index_reduce", "scatter", "scatter_reduce"]

_KINDS = ("sum", "prod", "mean", "amax", "amin")


@also(axis="dim")
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Tensor | Number | None = None, *, value: Number | None = None,
    reduce: str | None = None,
) -> Tensor:  # fmt: skip
    """A copy of input with y[i][index[i][j][k]][k] = src[i][j][k] for dim=1.

    Args:
        input: any shape and dtype.
        dim: the dimension that index selects in.
        index: int64 or int32, as many dimensions as input, no larger than it but in dim, nor than src.
        src, value: dtype of input, any shape that holds index; or a number, under either name.
        reduce: "add" or "multiply" what is there and what comes, instead of replacing it.
    Returns: shape and dtype of input.
    Raises: TypeError: dtypes; neither src nor value. ShapeError: shapes. ValueError: no such reduce.
    Grad: input, src. Saves index.
    Example: >>> F.scatter(genesis.zeros(3), 0, genesis.tensor([2, 0]), genesis.tensor([5.0, 6.0])).tolist()
    [6.0, 0.0, 5.0]
    """
    source = value if src is None else src
    if source is None:
        raise DTypeError(describe("scatter", "src", "a tensor or a number", None))
    dim, index, source = require_scattering("scatter", input, dim, index, source)
    if reduce is None:
        return Scatter.apply(input, source, dim=dim, index=index.array)
    if reduce not in ("add", "multiply"):
        raise ValueError(describe("scatter", "reduce", "'add' or 'multiply'", repr(reduce)))
    if not isinstance(source, Tensor):
        source = input._like(input.array.full_like(source, index.array.shape))
    return scatter_reduce(input, dim, index, source, {"add": "sum", "multiply": "prod"}[reduce])


@also(axis="dim")
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:  # fmt: skip
    """A copy of input in which y[i][index[i][j][k]][k] is made of all src[i][j][k] that come there, for dim=1.

    Args:
        input: any shape, numbers.
        dim: the dimension that index selects in.
        index: int64 or int32, as many dimensions as input, no larger than it but in dim, nor than src.
        src: dtype of input, any shape that holds index.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: input's element counts too.
    Returns: shape and dtype of input. Where nothing comes, input.
    Raises: TypeError: dtypes; src is no tensor. ShapeError: shapes. ValueError: no such reduce.
    Grad: input, src; equal extremes share theirs.
    Example: >>> F.scatter_reduce(genesis.zeros(2), 0, genesis.tensor([1, 1]), genesis.ones(2), "amax").tolist()
    [0.0, 1.0]
    """
    require_tensors("scatter_reduce", src=src)
    if reduce not in _KINDS:
        raise ValueError(describe("scatter_reduce", "reduce", f"one of {', '.join(_KINDS)}", repr(reduce)))
    dim, index, _ = require_scattering("scatter_reduce", input, dim, index, src)
    if not input.array.ndim:
        flat = [reshape(each, (1,)) for each in (input, index, src)]
        return reshape(scatter_reduce(flat[0], 0, flat[1], flat[2], reduce, include_self=include_self), ())
    if not index.array.numel:
        return input.clone()
    part = src
    for each, size in enumerate(index.array.shape):
        part = narrow(part, each, 0, size)
    if reduce in ("amax", "amin"):
        return ScatterExtreme.apply(input, part, index, dim, reduce == "amax", include_self)
    start = input if include_self else Scatter.apply(input, int(reduce == "prod"), dim=dim, index=index.array)
    if reduce == "prod":
        return _of_groups(start, dim, index, part, mul)
    found = scatter_add(start, dim, index, part)
    if reduce == "sum":
        return found
    counts = input._like(input.array.full_like(int(include_self)))
    counts = clamp(scatter_add(counts, dim, index, part._like(part.array.full_like(1))), 1)
    return div(found, counts) if input.array.dtype.is_floating_point else floor_divide(found, counts)


@also(axis="dim")
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:  # fmt: skip
    """A copy of input in which slice index[i] along dim is made of all slices i of source that come there.

    Args:
        input: any shape, numbers.
        dim: the dimension of the slices.
        index: int64 or int32, at most 1 dimension.
        source: the shape of input, but index's size in dim; dtype of input.
        reduce: "prod", "mean", "amax" or "amin".
        include_self: input's slices count too.
    Returns: shape and dtype of input. Where nothing comes, input.
    Raises: TypeError: dtypes. ShapeError: shapes. ValueError: no such reduce.
    Grad: input, source; equal extremes share theirs.
    Example: >>> F.index_reduce(genesis.ones(2), 0, genesis.tensor([1, 1]), genesis.tensor([5.0, 6.0]), "prod").tolist()
    [1.0, 30.0]
    """
    require_tensors("index_reduce", input=input, index=index, source=source)
    dim = shapes.normalize_dim("index_reduce", dim, input.array.ndim)
    if reduce not in _KINDS[1:]:
        raise ValueError(describe("index_reduce", "reduce", f"one of {', '.join(_KINDS[1:])}", repr(reduce)))
    if index.array.ndim > 1:
        raise ShapeError(describe("index_reduce", "index", "at most 1 dimension", f"shape {index.array.shape}"))
    x, s = input.array.shape or (1,), source.array.shape or (1,)
    expected = (*x[:dim], index.array.numel, *x[dim + 1 :])
    if s != expected:
        raise ShapeError(describe("index_reduce", "source", f"shape {expected}", source.array.shape))
    places = reshape(index, tuple([-1 if each == dim else 1 for each in range(len(x))]))
    found = scatter_reduce(
        reshape(input, x), dim, expand(places, s), reshape(source, s), reduce, include_self=include_self
    )
    return reshape(found, input.array.shape)


def _of_groups(input: Tensor, dim: int, index: Tensor, src: Tensor, combine: object) -> Tensor:
    """input combined with all that comes to each place: by doubling, over src in the order of index."""
    order = argsort(index, dim, stable=True)
    places, values = gather(index, dim, order), gather(src, dim, order)
    size, step = places.array.shape[dim], 1
    while step < size:  # after it, each element is made of the 2·step last ones of its group up to it
        early, late = (narrow(values, dim, start, size - step) for start in (0, step))
        same = eq(narrow(places, dim, 0, size - step), narrow(places, dim, step, size - step))
        values = cat([narrow(values, dim, 0, step), where(same, combine(early, late), late)], dim)  # type: ignore[operator]
        step *= 2
    values = combine(gather(input, dim, places), values)  # type: ignore[operator]
    others = ne(narrow(places, dim, 0, size - 1), narrow(places, dim, 1, size - 1))
    last = cat([others, others._like(others.array.full_like(True, _one(places, dim)))], dim)
    dump = input.array.shape[dim]  # where those go that are not the last of their group
    wide = cat([input, input._like(input.array.full_like(0, _one(input, dim)))], dim)
    written = Scatter.apply(wide, values, dim=dim, index=where(last, places, dump).array)
    return narrow(written, dim, 0, dump)


def _one(x: Tensor, dim: int) -> tuple[int, ...]:
    return tuple([1 if each == dim else size for each, size in enumerate(x.array.shape)])


class ScatterExtreme(Function):
    """The largest or smallest of a group; its gradient is shared by those that are equal to it."""

    @staticmethod
    def forward(
        ctx: Context, input: Tensor, src: Tensor, index: Tensor, dim: int, largest: bool, include_self: bool
    ) -> Tensor:  # fmt: skip
        start = input
        if not include_self:  # an element of each group, instead of infinity, which not every dtype has
            start = Scatter.apply(input, src, dim=dim, index=index.array)
        with no_grad():
            found = _of_groups(start, dim, index, src, maximum if largest else minimum)
        ctx.save_for_backward(input, src, index, found)
        ctx.options = dim, include_self
        return found

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, src, index, found = (each.detach() for each in ctx.saved_tensors)
        dim, include_self = ctx.options
        of_input = eq(input, found)
        if not include_self:
            of_input = Scatter.apply(of_input, False, dim=dim, index=index.array)
            untouched = Scatter.apply(of_input._like(of_input.array.full_like(True)), False, dim=dim, index=index.array)
            of_input = of_input | untouched
        of_input, of_src = cast(of_input, grad.array.dtype), cast(eq(src, gather(found, dim, index)), grad.array.dtype)
        share = div(grad, clamp(scatter_add(of_input, dim, index, of_src), 1))
        return mul(share, of_input), mul(gather(share, dim, index), of_src), None, None, None, None
