"""Selection along a dimension: gather and scatter, by index and by mask."""

from __future__ import annotations

from typing import Literal, overload

from genesis import dtypes, shapes
from genesis.autograd import ArrayFunction, Context, ElementwiseFunction, Gradients, Tensor
from genesis.dtypes import Number
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.conversion import cast
from genesis.functional.elementwise import where
from genesis.functional.indexing import getitem
from genesis.functional.keywords import also
from genesis.functional.shape import expand, reshape
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = [
    "gather", "index_add", "index_select", "masked_fill", "masked_select", "nonzero", "scatter_add", "take_along_dim",
]  # fmt: skip

# --- by index ---------------------------------------------------------------------------------------------------------


@also(axis="dim")
def index_select(input: Tensor, dim: int, index: Tensor) -> Tensor:
    """Select slices along dim.

    Args:
        input: any shape and dtype.
        dim: the dimension of the slices.
        index: int64 or int32, at most 1 dimension.
    Returns: a copy; its size in dim is that of index.
    Raises: TypeError: index is no tensor of integers. ShapeError: its rank. IndexError: a position out of range.
    Grad: input. Saves index.
    Example: >>> F.index_select(genesis.tensor([5.0, 6.0, 7.0]), 0, genesis.tensor([2, 0])).tolist()
    [7.0, 5.0]
    """
    dim = shapes.normalize_dim("index_select", dim, input.array.ndim)
    _require_index("index_select", index, 1)
    return IndexSelect.apply(input, dim=dim, index=_int64(index))


class IndexSelect(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int, index: NDArray) -> NDArray:
        ctx.shape, ctx.dim, index = x.shape, dim, index.reshape((-1,))
        ctx.save(index)
        return ops.index_select(x, dim, index)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (index,) = ctx.saved
        return ops.index_add(grad.full_like(0, ctx.shape), ctx.dim, index, grad)


@also(axis="dim")
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Number = 1) -> Tensor:
    """A copy of input with alpha · source added to the slices at index; repeats add up.

    Args:
        input: any shape and dtype.
        dim: the dimension of the slices.
        index: int64 or int32, at most 1 dimension.
        source: the shape of input, but index's size in dim; dtype of input.
        alpha: factor of source.
    Returns: shape and dtype of input.
    Raises: TypeError: dtypes. ShapeError: source's shape, index's rank. IndexError: out of range.
    Grad: input, source. Saves index.
    Example: >>> F.index_add(genesis.zeros(3), 0, genesis.tensor([2, 2]), genesis.ones(2)).tolist()
    [0.0, 0.0, 2.0]
    """
    dim = shapes.normalize_dim("index_add", dim, input.array.ndim)
    _require_index("index_add", index, 1)
    _require_same_dtype("index_add", "source", input, source)
    x, s = input.array.shape or (1,), source.array.shape or (1,)
    expected = (*x[:dim], index.array.numel, *x[dim + 1 :])
    if s != expected:
        raise ShapeError(describe("index_add", "source", f"shape {expected}", source.array.shape))
    return IndexAdd.apply(input, source, dim=dim, index=_int64(index), alpha=alpha)


class IndexAdd(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, source: NDArray, *, dim: int, index: NDArray, alpha: Number) -> NDArray:
        ctx.dim, ctx.alpha, ctx.source_shape, index = dim, alpha, source.shape, index.reshape((-1,))
        ctx.save(index)
        return ops.index_add(x, dim, index, source if alpha == 1 else source.mul(alpha))

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        (index,) = ctx.saved
        selected = ops.index_select(grad, ctx.dim, index).reshape(ctx.source_shape)
        return grad, selected if ctx.alpha == 1 else selected.mul(ctx.alpha)


@also(axis="dim")
def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    """Select elements along dim: y[i][j][k] = input[i][index[i][j][k]][k] for dim=1.

    Args:
        input: any shape and dtype.
        dim: the dimension that index selects in; counts from the end if negative.
        index: int64 or int32, as many dimensions as input, no larger than it but in dim.
        sparse_grad: must be False; gradients are dense.
    Returns: the shape of index, dtype of input.
    Raises: TypeError: index's dtype. ShapeError: its shape. NotImplementedError: sparse_grad.
    Grad: input. Saves index.
    Example: >>> F.gather(genesis.tensor([[1.0, 2.0], [3.0, 4.0]]), 1, genesis.tensor([[1], [0]])).tolist()
    [[2.0], [3.0]]
    """
    if sparse_grad:
        raise NotImplementedError("gather: sparse_grad=True is not supported; gradients are dense")
    dim = shapes.normalize_dim("gather", dim, input.array.ndim)
    _require_index("gather", index)
    _require_fitting_index("gather", index.array.shape, "input", input.array.shape, dim)
    return Gather.apply(input, dim=dim, index=_int64(index))


class Gather(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int, index: NDArray) -> NDArray:
        index = index.lt(0).where(index.add(x.shape[dim] if x.ndim else 1), index)  # negative ones count from the end
        ctx.shape, ctx.dim = x.shape, dim
        ctx.save(index)
        return ops.gather(x, dim, index)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (index,) = ctx.saved
        return ops.scatter_add(grad.full_like(0, ctx.shape), ctx.dim, index, grad)


@also(axis="dim")
def take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """gather, with input and indices broadcast; without dim, from the flattened input.

    Args:
        input: any shape and dtype.
        indices: int64 or int32, as many dimensions as input.
        dim: the dimension that indices select in; None for the flattened input.
    Returns: the common shape, dtype of input.
    Raises: TypeError: the dtype of indices. ShapeError: shapes that don't fit.
    Grad: input. Saves indices.
    Example: >>> x = genesis.tensor([[3.0, 1.0, 2.0]])
    >>> F.take_along_dim(x, x.argsort(), dim=1).tolist()
    [[1.0, 2.0, 3.0]]
    """
    if dim is None:
        return gather(reshape(input, (-1,)), 0, reshape(indices, (-1,)))
    _require_index("take_along_dim", indices)
    x, i = input.array.shape, indices.array.shape
    if len(x) != len(i):
        raise ShapeError(describe("take_along_dim", "indices", f"{len(x)} dimensions, as input", len(i)))
    dim = shapes.normalize_dim("take_along_dim", dim, len(x))
    common = shapes.broadcast(
        "take_along_dim", (*x[:dim], 1, *x[dim + 1 :]), (*i[:dim], 1, *i[dim + 1 :]), names=("input", "indices")
    )
    whole = expand(input, (*common[:dim], x[dim], *common[dim + 1 :]))
    return gather(whole, dim, expand(indices, (*common[:dim], i[dim], *common[dim + 1 :])))


class Scatter(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, source: NDArray | Number, *, dim: int, index: NDArray) -> NDArray:
        ctx.dim = dim
        ctx.save(index)
        ctx.source_shape = source.shape if isinstance(source, NDArray) else None
        return ops.scatter(x, dim, index, source)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        needs_x, needs_source = ctx.needs_input_grad
        (index,) = ctx.saved
        return (
            ops.scatter(grad, ctx.dim, index, 0.0) if needs_x else None,
            _gathered(ctx, grad) if needs_source else None,
        )


@also(axis="dim")
def scatter_add(input: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """A copy of input with y[i][index[i][j][k]][k] += src[i][j][k] for dim=1; repeats add up.

    Args:
        input: any shape and dtype.
        dim: the dimension that index selects in.
        index: int64 or int32, as many dimensions as input, no larger than it but in dim, nor than src.
        src: dtype of input, any shape that holds index.
    Returns: shape and dtype of input.
    Raises: TypeError: dtypes; src is no tensor. ShapeError: shapes that don't fit.
    Grad: input, src. Saves index.
    Example: >>> F.scatter_add(genesis.zeros(2), 0, genesis.tensor([1, 1]), genesis.tensor([5.0, 6.0])).tolist()
    [0.0, 11.0]
    """
    if not isinstance(src, Tensor):
        raise DTypeError(describe("scatter_add", "src", "a tensor", type(src).__name__))
    dim, index, _ = require_scattering("scatter_add", input, dim, index, src)
    return ScatterAdd.apply(input, src, dim=dim, index=index.array)


class ScatterAdd(ArrayFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, source: NDArray, *, dim: int, index: NDArray) -> NDArray:
        ctx.dim, ctx.source_shape = dim, source.shape
        ctx.save(index)
        return ops.scatter_add(x, dim, index, source)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        return grad, _gathered(ctx, grad) if ctx.needs_input_grad[1] else None


def require_scattering(
    op: str, input: Tensor, dim: int, index: Tensor, source: Tensor | Number
) -> tuple[int, Tensor, Tensor | Number]:
    """Check the arguments of a scattering op.

    Args:
        op: its name.
        input, dim, index, source: its arguments.
    Returns: dim from 0 on, index as int64, source in input's dtype.
    Raises: TypeError: dtypes. ShapeError: shapes. IndexError: no such dimension.
    """
    dim = shapes.normalize_dim(op, dim, input.array.ndim)
    _require_index(op, index)
    _require_fitting_index(op, index.array.shape, "input", input.array.shape, dim)
    if isinstance(source, Tensor):
        _require_same_dtype(op, "src", input, source)
        _require_fitting_index(op, index.array.shape, "src", source.array.shape, None)
    elif not isinstance(source, bool | int | float):
        raise DTypeError(describe(op, "src", "a tensor or a number", type(source).__name__))
    else:
        source = dtypes.number(op, "value", source, input.array.dtype)
    return dim, index if index.array.dtype is dtypes.int64 else index._like(_int64(index)), source


def _gathered(ctx: Context, grad: NDArray) -> NDArray:
    """The gradient of the source: read where it was written, zero where it is larger than the index."""
    (index,) = ctx.saved
    found = ops.gather(grad, ctx.dim, index)
    if found.shape == ctx.source_shape:
        return found
    whole = corner = grad.full_like(0, ctx.source_shape)
    for dim, length in enumerate(found.shape):
        corner = corner.narrow(dim, 0, length)
    corner.copy_into(found)
    return whole


# --- by mask ----------------------------------------------------------------------------------------------------------


def masked_fill(input: Tensor, mask: Tensor, value: Tensor | Number) -> Tensor:
    """input, but value where mask is true.

    Args:
        input: any shape and dtype.
        mask: bool, broadcasts with input.
        value: a number that the dtype holds, or a 0-d tensor.
    Returns: the common shape, dtype of input.
    Raises: TypeError: mask is not bool. ShapeError: value has dimensions. OverflowError: the dtype does not hold it.
    Grad: input, and value if it is a tensor. Saves mask.
    Example: >>> F.masked_fill(genesis.tensor([1.0, 2.0]), genesis.tensor([True, False]), 0).tolist()
    [0.0, 2.0]
    """
    _require_mask("masked_fill", mask)
    if not isinstance(value, Tensor):
        if not isinstance(value, bool | int | float | complex):
            raise DTypeError(describe("masked_fill", "value", "a number or a 0-d tensor", type(value).__name__))
        value = dtypes.number("masked_fill", "value", value, input.array.dtype)
        return MaskedFill.apply(input, mask, value=value)
    if value.array.ndim:
        raise ShapeError(describe("masked_fill", "value", "a number or a 0-d tensor", f"shape {value.array.shape}"))
    return where(mask, cast(value, input.array.dtype), input)


class MaskedFill(ElementwiseFunction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, mask: NDArray, *, value: Number) -> NDArray:
        ctx.save(mask)
        shape = shapes.broadcast("masked_fill", x.shape, mask.shape, names=("input", "mask"))
        return ops.masked_fill(x.expand(shape), mask, value)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> Gradients:
        (mask,) = ctx.saved
        return ops.masked_fill(grad, mask, 0.0), None


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements of input where mask is true.

    Args:
        input: any shape and dtype.
        mask: bool; both broadcast.
    Returns: 1 dimension, dtype of input.
    Raises: TypeError: mask is not bool. ValueError: the shapes don't broadcast.
    Grad: input. Saves the positions.
    Example: >>> F.masked_select(genesis.tensor([1.0, 2.0, 3.0]), genesis.tensor([True, False, True])).tolist()
    [1.0, 3.0]
    """
    _require_mask("masked_select", mask)
    shape = shapes.broadcast("masked_select", input.array.shape, mask.array.shape, names=("input", "mask"))
    selected = getitem(expand(input, shape), expand(mask, shape))
    return reshape(selected, (-1,))


@overload
def nonzero(input: Tensor, *, as_tuple: Literal[False] = False) -> Tensor: ...
@overload
def nonzero(input: Tensor, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]: ...
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Tensor | tuple[Tensor, ...]:
    """The positions of the nonzero elements.

    Args:
        input: any shape and dtype.
        as_tuple: a vector for each dimension instead of one matrix.
    Returns: (n, ndim), int64; with as_tuple a tuple of (n,).
    Grad: none.
    Example: >>> F.nonzero(genesis.tensor([0, 3, 0, 5])).tolist()
    [[1], [3]]
    """
    if not as_tuple:
        return NonZero.apply(input)
    found = NonZero.apply(reshape(input, (1,)) if not input.array.ndim else input)
    return tuple([found._like(found.array.select(1, dim).clone()) for dim in range(found.array.shape[1])])


class NonZero(ArrayFunction):
    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray) -> NDArray:
        return ops.nonzero(x)


# --- arguments --------------------------------------------------------------------------------------------------------


def _require_index(op: str, index: Tensor, max_ndim: int | None = None) -> None:
    if not isinstance(index, Tensor):
        raise DTypeError(describe(op, "index", "a tensor of integers", type(index).__name__))
    if index.array.dtype not in (dtypes.int64, dtypes.int32) and index.array.numel:
        raise DTypeError(describe(op, "index", "int64 or int32", index.array.dtype))
    if max_ndim is not None and index.array.ndim > max_ndim:
        raise ShapeError(describe(op, "index", f"at most {max_ndim} dimension", f"shape {index.array.shape}"))


def _require_fitting_index(op: str, index: Shape, name: str, other: Shape, free: int | None) -> None:
    """index is nowhere larger than the other shape, except in the free dimension."""
    if 0 in index:
        return
    index, other = index or (1,), other or (1,)
    if len(index) != len(other):
        raise ShapeError(describe(op, "index", f"{len(other)} dimensions, as {name}", len(index)))
    for dim, (length, size) in enumerate(zip(index, other, strict=True)):
        if dim != free and length > size:
            raise ShapeError(describe(op, "index", f"at most {size} in dimension {dim}, the size of {name}", length))


def _require_same_dtype(op: str, name: str, input: Tensor, source: Tensor) -> None:
    if source.array.dtype is not input.array.dtype:
        raise DTypeError(describe(op, name, f"{input.array.dtype}, as input", source.array.dtype))


def _require_mask(op: str, mask: Tensor) -> None:
    if not isinstance(mask, Tensor) or mask.array.dtype is not dtypes.bool_:
        raise DTypeError(describe(op, "mask", "a tensor of bool", getattr(mask, "dtype", type(mask).__name__)))


def _int64(index: Tensor) -> NDArray:
    return index.array.to(dtypes.int64)
