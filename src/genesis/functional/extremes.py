"""Extremes: the largest and the smallest element, and where they are; all and any, those of truth values."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, overload

from genesis import shapes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.dtypes import uint8
from genesis.functional.arguments import require_tensors
from genesis.functional.elementwise import maximum, minimum
from genesis.functional.reduction import Dims, Reduction, dims_of, require_elements, shared
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

OverDims: TypeAlias = "Callable[[NDArray, Shape, bool], NDArray]"  # op(x, dims, keepdim)
OverDim: TypeAlias = "Callable[[NDArray, int, bool], NDArray]"  # op(x, dim, keepdim)

__all__ = ["all", "amax", "amin", "any", "argmax", "argmin", "max", "min"]


class ValuesAndIndices(NamedTuple):
    """The result of max, min, sort and topk."""

    values: Tensor
    indices: Tensor


def amax(
    input: Tensor, dim: Dims = (), keepdim: bool = False, *, axis: Dims = None, keepdims: bool | None = None
) -> Tensor:
    """The largest value over dim; NaN wins.

    Args:
        input: any shape and dtype, with elements along dim.
        dim: one or several dimensions; all by default.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
    Returns: the shape of input without dim, dtype of input.
    Raises: ShapeError: there is no element to choose.
    Grad: input: equal values share it; it is NaN where the result is. Saves input and the output.
    Example: >>> F.amax(genesis.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=0).tolist()
    [7.0, 5.0]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return Extreme.apply(input, op=ops.amax, dims=dims_of("amax", dim, input, filled=True), keepdim=keepdim)


def amin(
    input: Tensor, dim: Dims = (), keepdim: bool = False, *, axis: Dims = None, keepdims: bool | None = None
) -> Tensor:
    """The smallest value over dim; NaN wins.

    Args:
        input: any shape and dtype, with elements along dim.
        dim: one or several dimensions; all by default.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
    Returns: the shape of input without dim, dtype of input.
    Raises: ShapeError: there is no element to choose.
    Grad: input: equal values share it; it is NaN where the result is. Saves input and the output.
    Example: >>> F.amin(genesis.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=0).tolist()
    [1.0, 3.0]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return Extreme.apply(input, op=ops.amin, dims=dims_of("amin", dim, input, filled=True), keepdim=keepdim)


class Extreme(Reduction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, op: OverDims, dims: Shape, keepdim: bool) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        y = op(x, dims, keepdim)
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        x, y = ctx.saved
        return shared(ctx, x.eq(Reduction.kept(ctx, y)), Reduction.kept(ctx, grad))


class ExtremeOfAll(Extreme):
    """Extreme, but NaN is found among the elements, as PyTorch's max() and min() do."""

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        x, y = ctx.saved
        y = Reduction.kept(ctx, y)
        chosen = x.isnan().logical_and(y.isnan()).logical_or(x.eq(y))
        return chosen.where(Reduction.kept(ctx, grad).div(ops.sum(chosen, ctx.dims, True)), 0.0)


@overload
def max(input: Tensor) -> Tensor: ...
@overload
def max(input: Tensor, dim: int, keepdim: bool = False) -> ValuesAndIndices: ...
@overload
def max(input: Tensor, other: Tensor, /) -> Tensor: ...
@overload
def max(input: Tensor, *, other: Tensor) -> Tensor: ...
def max(
    input: Tensor,
    dim: int | Tensor | None = None,
    keepdim: bool = False,
    *,
    other: Tensor | None = None,
    axis: int | None = None,
    keepdims: bool | None = None,
) -> Tensor | ValuesAndIndices:
    """The largest value: of all; along dim, as (values, indices); or of two tensors, as maximum(input, other).

    Args:
        input: any shape and dtype, with elements along dim.
        dim: one dimension, or None; a tensor is taken as other.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
        other: a tensor that broadcasts with input.
    Returns: dtype of input; the indices are int64.
    Raises: ShapeError: there is no element to choose.
    Grad: input: equal values share it; along dim, the first gets it. Saves input and the output, or the indices.
    Example: >>> F.max(genesis.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=1).indices.tolist()
    [1, 0]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return _extreme("max", maximum, input, dim, keepdim, other)


@overload
def min(input: Tensor) -> Tensor: ...
@overload
def min(input: Tensor, dim: int, keepdim: bool = False) -> ValuesAndIndices: ...
@overload
def min(input: Tensor, other: Tensor, /) -> Tensor: ...
@overload
def min(input: Tensor, *, other: Tensor) -> Tensor: ...
def min(
    input: Tensor,
    dim: int | Tensor | None = None,
    keepdim: bool = False,
    *,
    other: Tensor | None = None,
    axis: int | None = None,
    keepdims: bool | None = None,
) -> Tensor | ValuesAndIndices:
    """The smallest value: of all; along dim, as (values, indices); or of two tensors, as minimum(input, other).

    Args:
        input: any shape and dtype, with elements along dim.
        dim: one dimension, or None; a tensor is taken as other.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
        other: a tensor that broadcasts with input.
    Returns: dtype of input; the indices are int64.
    Raises: ShapeError: there is no element to choose.
    Grad: input: equal values share it; along dim, the first gets it. Saves input and the output, or the indices.
    Example: >>> F.min(genesis.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=1).indices.tolist()
    [0, 1]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return _extreme("min", minimum, input, dim, keepdim, other)


def _extreme(
    op: str, of_two: Callable[[Tensor, Tensor], Tensor], input: Tensor, dim: int | Tensor | None, keepdim: bool,
    other: Tensor | None,
) -> Tensor | ValuesAndIndices:  # fmt: skip
    require_tensors(op, input=input)
    if other is not None:
        return of_two(input, other)
    if isinstance(dim, Tensor):
        return of_two(input, dim)
    if dim is None:
        dims, of_all = dims_of(op, None, input, filled=True), ops.amax if op == "max" else ops.amin
        return ExtremeOfAll.apply(input, op=of_all, dims=dims, keepdim=False)
    dim = shapes.normalize_dim(op, dim, input.array.ndim)
    dims_of(op, dim, input, filled=True)
    place = ops.argmax if op == "max" else ops.argmin
    return ValuesAndIndices(*ExtremeOfDim.apply(input, op=place, dim=dim, keepdim=keepdim))


class ExtremeOfDim(Reduction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, op: OverDim, dim: int, keepdim: bool) -> tuple[NDArray, NDArray]:
        Reduction.note(ctx, x, (dim,) if x.ndim else (), keepdim)
        ctx.dim = dim
        indices = _arg_extreme(op, x, dim, True)
        ctx.save(indices)
        values = ops.gather(x, dim, indices)
        if keepdim or not x.ndim:
            return values, indices.clone()
        return values.squeeze((dim,)), indices.clone().squeeze((dim,))

    @staticmethod
    def backward(ctx: Context, grad: NDArray, _: None) -> NDArray:
        (indices,) = ctx.saved
        return ops.scatter(grad.full_like(0, ctx.shape), ctx.dim, indices, Reduction.kept(ctx, grad))


def argmax(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The index of the largest value along dim, or in the flattened input without dim; the first of equals.

    Args:
        input: any shape and dtype, with elements along dim.
        dim: one dimension, or None.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
    Returns: the shape of input without dim, int64.
    Raises: ShapeError: there is no element to choose.
    Grad: none.
    Example: >>> F.argmax(genesis.tensor([[1.0, 5.0], [7.0, 3.0]])).item()
    2
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return ArgExtreme.apply(input, op=ops.argmax, dim=dim, keepdim=keepdim)


def argmin(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    axis: int | None = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The index of the smallest value along dim, or in the flattened input without dim; the first of equals.

    Args:
        input: any shape and dtype, with elements along dim.
        dim: one dimension, or None.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
    Returns: the shape of input without dim, int64.
    Raises: ShapeError: there is no element to choose.
    Grad: none.
    Example: >>> F.argmin(genesis.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=1).tolist()
    [0, 1]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return ArgExtreme.apply(input, op=ops.argmin, dim=dim, keepdim=keepdim)


class ArgExtreme(ArrayFunction):
    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, op: OverDim, dim: int | None, keepdim: bool) -> NDArray:
        if dim is None:
            require_elements(op.__name__, x.shape, tuple(range(x.ndim)))
            flat = _arg_extreme(op, x.reshape((-1,)), 0, False)
            return flat.reshape((1,) * x.ndim) if keepdim else flat
        dim = shapes.normalize_dim(op.__name__, dim, x.ndim)
        require_elements(op.__name__, x.shape, (dim,) if x.ndim else ())
        return _arg_extreme(op, x, dim, keepdim)


def _arg_extreme(op: OverDim, x: NDArray, dim: int, keepdim: bool) -> NDArray:
    if x.dtype.name == "bool":
        x = x.to(uint8)
    return op(x, dim, keepdim)


def all(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None, keepdims: bool | None = None
) -> Tensor:
    """Whether every element over dim is nonzero.

    Args:
        input: any shape and dtype.
        dim: one or several dimensions; all by default.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
    Returns: the shape of input without dim, bool; uint8 for uint8.
    Raises: IndexError: input has no such dimension.
    Grad: none.
    Example: >>> F.all(genesis.tensor([[True, False], [True, True]]), dim=1).tolist()
    [False, True]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return Truth.apply(input, op=ops.all, dims=dims_of("all", dim, input), keepdim=keepdim)


def any(
    input: Tensor, dim: Dims = None, keepdim: bool = False, *, axis: Dims = None, keepdims: bool | None = None
) -> Tensor:
    """Whether some element over dim is nonzero.

    Args:
        input: any shape and dtype.
        dim: one or several dimensions; all by default.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
    Returns: the shape of input without dim, bool; uint8 for uint8.
    Raises: IndexError: input has no such dimension.
    Grad: none.
    Example: >>> F.any(genesis.tensor([[False, False], [True, False]]), dim=1).tolist()
    [False, True]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return Truth.apply(input, op=ops.any, dims=dims_of("any", dim, input), keepdim=keepdim)


class Truth(ArrayFunction):
    differentiable = False

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, op: OverDims, dims: Shape, keepdim: bool) -> NDArray:
        y = op(x, dims, keepdim)
        return y.to(uint8) if x.dtype is uint8 else y  # PyTorch's rule: uint8 stays uint8
