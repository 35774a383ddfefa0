"""Reductions: sums, products, extremes, statistics. Without dim they reduce everything.

A gradient spreads back over the reduced dimensions; each rule stands in its backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from genesis import shapes
from genesis.autograd import ArrayFunction
from genesis.autograd import Variable as Tensor
from genesis.dtypes import DType, float32, uint8
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.elementwise import maximum, minimum
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "cumsum", "logsumexp", "max", "mean", "min", "norm", "prod",
    "std", "sum", "var",
]  # fmt: skip

Dims = int | Sequence[int] | None


class ValuesAndIndices(NamedTuple):
    """What max, min, sort and topk return."""

    values: Any
    indices: Any


class Reduction(ArrayFunction):
    """Keeps what spread() needs: the shape before and the dimensions that went away."""

    @staticmethod
    def note(ctx: Any, x: NDArray, dims: Shape, keepdim: bool) -> None:
        ctx.shape, ctx.dims, ctx.keepdim = x.shape, dims, keepdim

    @staticmethod
    def kept(ctx: Any, reduced: NDArray) -> NDArray:
        """A reduced array with its dimensions back as size 1, so that it broadcasts against the input."""
        return reduced if ctx.keepdim else reduced.reshape(shapes.reduced(ctx.shape, ctx.dims, True))

    @staticmethod
    def spread(ctx: Any, grad: NDArray) -> NDArray:
        """grad in the shape of the input."""
        return Reduction.kept(ctx, grad).expand(ctx.shape)


def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Any:
    """Σ input over dim; bool and integers give int64, unless dtype says another.

    Example:
        >>> F.sum(genesis.ones(2, 3), dim=1).tolist()
        [3.0, 3.0]
    """
    return Sum.apply(input, dims=_dims("sum", dim, input), keepdim=keepdim, dtype=dtype)


class Sum(Reduction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: Shape, keepdim: bool, dtype: DType | None) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        return ops.sum(x, dims, keepdim) if dtype is None else ops.sum(x.to(dtype), dims, keepdim).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return Reduction.spread(ctx, grad)


def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: DType | None = None) -> Any:
    """The average over dim.

    Raises: DTypeError: input is not floating and no floating dtype is given.
    """
    dims = _dims("mean", dim, input)
    _require_floating("mean", "input", dtype or input.array.dtype)
    return Mean.apply(input, dims=dims, keepdim=keepdim, dtype=dtype)


class Mean(Reduction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: Shape, keepdim: bool, dtype: DType | None) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        return ops.mean(x if dtype is None else x.to(dtype), dims, keepdim)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        return Reduction.spread(ctx, grad.div(_count(ctx) or 1))


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: DType | None = None) -> Any:
    """Π input over dim; bool and integers give int64."""
    dims = _dims("prod", dim, input)
    return Prod.apply(input, dims=dims, keepdim=keepdim, dtype=dtype)


class Prod(Reduction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: Shape, keepdim: bool, dtype: DType | None) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        x = x if dtype is None else x.to(dtype)
        ctx.save(x)
        y = ops.prod(x, dims, keepdim)
        return y if dtype is None else y.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        # dy/dxᵢ = Π of the others: y / xᵢ, but the product of the nonzero ones where xᵢ is the only zero.
        zero = x.eq(0)
        zeros = ops.sum(zero, ctx.dims, True)
        others = ops.prod(zero.where(1.0, x), ctx.dims, True)
        at_zero = zeros.eq(1).where(others, 0.0)
        elsewhere = zeros.eq(0).where(others, 0.0).div(x)
        return Reduction.kept(ctx, grad).mul(zero.where(at_zero, elsewhere))


def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Any:
    """The largest value over dim; NaN wins. Equal values share the gradient, which is NaN where the result is."""
    return Extreme.apply(input, op=ops.amax, dims=_dims("amax", dim, input, filled=True), keepdim=keepdim)


def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Any:
    """The smallest value over dim; NaN wins. Equal values share the gradient, which is NaN where the result is."""
    return Extreme.apply(input, op=ops.amin, dims=_dims("amin", dim, input, filled=True), keepdim=keepdim)


class Extreme(Reduction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, op: Callable[..., NDArray], dims: Shape, keepdim: bool) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        y = op(x, dims, keepdim)
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        x, y = ctx.saved
        return _shared(ctx, x.eq(Reduction.kept(ctx, y)), Reduction.kept(ctx, grad))


def _shared(ctx: Any, chosen: NDArray, grad: NDArray) -> NDArray:
    """grad in equal parts to the chosen; NaN to all where none is, as NaN equals nothing."""
    return chosen.to(grad.dtype).mul(grad).div(ops.sum(chosen, ctx.dims, True))


class ExtremeOfAll(Extreme):
    """As Extreme, but that NaN is found among the elements, as PyTorch's max() and min() do."""

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        x, y = ctx.saved
        y = Reduction.kept(ctx, y)
        chosen = x.isnan().logical_and(y.isnan()).logical_or(x.eq(y))
        return chosen.where(Reduction.kept(ctx, grad).div(ops.sum(chosen, ctx.dims, True)), 0.0)


def max(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The largest value: of all; per slice of dim, as (values, indices); of two tensors, as maximum(input, other).

    Example:
        >>> F.max(genesis.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=1).indices.tolist()
        [1, 0]
    """
    return _extreme("max", maximum, input, dim, keepdim, other)


def min(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The smallest value: of all; per slice of dim, as (values, indices); of two tensors, as minimum(input, other)."""
    return _extreme("min", minimum, input, dim, keepdim, other)


def _extreme(op: str, of_two: Any, input: Tensor, dim: Any, keepdim: bool, other: Any) -> Any:
    require_tensors(op, input=input)
    if isinstance(dim, Tensor) or other is not None:
        return of_two(input, dim if other is None else other)
    if dim is None:
        dims, of_all = _dims(op, None, input, filled=True), ops.amax if op == "max" else ops.amin
        return ExtremeOfAll.apply(input, op=of_all, dims=dims, keepdim=False)
    dim = shapes.normalize_dim(op, dim, input.array.ndim)
    _dims(op, dim, input, filled=True)
    place = ops.argmax if op == "max" else ops.argmin
    return ValuesAndIndices(*ExtremeOfDim.apply(input, op=place, dim=dim, keepdim=keepdim))


class ExtremeOfDim(Reduction):
    @staticmethod
    def forward(
        ctx: Any, x: NDArray, *, op: Callable[..., NDArray], dim: int, keepdim: bool
    ) -> tuple[NDArray, NDArray]:
        Reduction.note(ctx, x, (dim,) if x.ndim else (), keepdim)
        ctx.dim = dim
        indices = _arg_extreme(op, x, dim, True)
        ctx.save(indices)
        values = ops.gather(x, dim, indices)
        if keepdim or not x.ndim:
            return values, indices.clone()
        return values.squeeze((dim,)), indices.clone().squeeze((dim,))

    @staticmethod
    def backward(ctx: Any, grad: NDArray, _: Any) -> Any:
        (indices,) = ctx.saved
        return ops.scatter(grad.full_like(0, ctx.shape), ctx.dim, indices, Reduction.kept(ctx, grad))


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index of the largest value (in the flattened input without dim); the first of equals."""
    return ArgExtreme.apply(input, op=ops.argmax, dim=dim, keepdim=keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """The index of the smallest value (in the flattened input without dim); the first of equals."""
    return ArgExtreme.apply(input, op=ops.argmin, dim=dim, keepdim=keepdim)


class ArgExtreme(ArrayFunction):
    differentiable = False

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, op: Callable[..., NDArray], dim: int | None, keepdim: bool) -> NDArray:
        if dim is None:
            _require_elements(op.__name__, x.shape, tuple(range(x.ndim)))
            flat = _arg_extreme(op, x.reshape((-1,)), 0, False)
            return flat.reshape((1,) * x.ndim) if keepdim else flat
        dim = shapes.normalize_dim(op.__name__, dim, x.ndim)
        _require_elements(op.__name__, x.shape, (dim,) if x.ndim else ())
        return _arg_extreme(op, x, dim, keepdim)


def _arg_extreme(op: Callable[..., NDArray], x: NDArray, dim: int, keepdim: bool) -> NDArray:
    if x.dtype.name == "bool":
        x = x.to(uint8)
    return op(x, dim, keepdim)


def var(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """The variance over dim: Σ (x − mean)² / (n − correction).

    Args:
        correction: 1 by default, which makes the estimate unbiased; unbiased=False is the older way to say 0.
    """
    dims, correction = _statistics_arguments("var", input, dim, unbiased, correction)
    return Var.apply(input, dims=dims, correction=correction, keepdim=keepdim)


class Var(Reduction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: Shape, correction: float, keepdim: bool) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        ctx.correction = correction
        ctx.save(x)
        return ops.var(x, dims, correction, keepdim)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        (x,) = ctx.saved
        return _grad_var(ctx, x, Reduction.kept(ctx, grad))


def _grad_var(ctx: Any, x: NDArray, grad: NDArray) -> NDArray:
    freedom = _count(ctx) - ctx.correction
    slope = 2 / freedom if freedom > 0 else (math.inf if freedom == 0 else math.nan)
    return grad.mul(x.sub(ops.mean(x, ctx.dims, True)).mul(slope))  # d var / dxᵢ = 2 (xᵢ − mean) / (n − correction)


def std(
    input: Tensor,
    dim: Any = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Any:
    """The standard deviation over dim, the square root of var; its gradient is zero where it is zero."""
    dims, correction = _statistics_arguments("std", input, dim, unbiased, correction)
    return Std.apply(input, dims=dims, correction=correction, keepdim=keepdim)


class Std(Reduction):
    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: Shape, correction: float, keepdim: bool) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        ctx.correction = correction
        y = ops.var(x, dims, correction, keepdim).sqrt()
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        x, y = ctx.saved
        return _grad_var(ctx, x, Reduction.kept(ctx, y.eq(0).where(0.0, grad.div(y.mul(2)))))  # dσ = dσ² / 2σ


def _statistics_arguments(op: str, input: Tensor, dim: Any, unbiased: Any, correction: Any) -> tuple[Shape, float]:
    if isinstance(dim, bool):  # var(x, False): the older form, unbiased without dim
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ValueError(describe(op, "correction", "either correction or unbiased", "both"))
    _require_floating(op, "input", input.array.dtype)
    return _dims(op, dim, input), (1 if unbiased in (None, True) else 0) if correction is None else correction


def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
    """Whether every element over dim is true (nonzero)."""
    return Truth.apply(input, op=ops.all, dims=_dims("all", dim, input), keepdim=keepdim)


def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Any:
    """Whether some element over dim is true (nonzero)."""
    return Truth.apply(input, op=ops.any, dims=_dims("any", dim, input), keepdim=keepdim)


class Truth(ArrayFunction):
    differentiable = False

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, op: Callable[..., NDArray], dims: Shape, keepdim: bool) -> NDArray:
        y = op(x, dims, keepdim)
        return y.to(uint8) if x.dtype is uint8 else y  # PyTorch's rule: uint8 stays uint8


def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Any:
    """ln Σ eˣ over dim; never overflows."""
    return LogSumExp.apply(input, dims=_dims("logsumexp", dim, input), keepdim=keepdim)


class LogSumExp(Reduction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dims: Shape, keepdim: bool) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        y = ops.logsumexp(x, dims, keepdim)
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        x, y = ctx.saved
        return x.sub(Reduction.kept(ctx, y)).exp().mul(Reduction.kept(ctx, grad))  # dy/dxᵢ = exp(xᵢ − y)


def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Any:
    """The running sum along dim; bool and integers give int64."""
    if dtype is not None and dtype.name == "bool":
        raise DTypeError(describe("cumsum", "dtype", "a dtype of numbers", dtype))
    return CumSum.apply(input, dim=shapes.normalize_dim("cumsum", dim, input.array.ndim), dtype=dtype)


class CumSum(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, dim: int, dtype: DType | None) -> NDArray:
        ctx.dim = dim
        return ops.cumsum(x, dim) if dtype is None else ops.cumsum(x.to(dtype), dim).to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        if not grad.ndim:
            return grad
        dims = (ctx.dim,)
        return ops.flip(ops.cumsum(ops.flip(grad, dims), ctx.dim), dims)  # xᵢ is in all sums from i on


def norm(
    input: Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Any:
    """The vector norm over dim: (Σ |x|ᵖ)^(1/p); p may be inf, -inf, 0 (the count of nonzeros); "fro" is 2.

    Raises: DTypeError: input is not floating. NotImplementedError: p="nuc", which needs singular values.
    """
    if p == "nuc":
        raise NotImplementedError(describe("norm", "p", "a number or 'fro'", "'nuc' (use numpy.linalg.norm)"))
    if not (p is None or p == "fro" or isinstance(p, int | float)):
        raise ValueError(describe("norm", "p", "a number or 'fro'", repr(p)))
    _require_floating("norm", "input", dtype or input.array.dtype)
    order = 2.0 if p is None or isinstance(p, str) else float(p)
    dims = _dims("norm", dim, input, filled=order < 0 or math.isinf(order))
    return Norm.apply(input, order=order, dims=dims, keepdim=keepdim, dtype=dtype)


class Norm(Reduction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Any, x: NDArray, *, order: float, dims: Shape, keepdim: bool, dtype: DType | None) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        ctx.order = order
        x = x if dtype is None else x.to(dtype)
        wide = x.to(float32) if x.dtype.itemsize < 4 else x  # squares of 16-bit values overflow
        if math.isinf(order):
            y = ops.amax(wide.abs(), dims, keepdim) if order > 0 else ops.amin(wide.abs(), dims, keepdim)
        elif order == 0:
            y = ops.sum(wide.ne(0).to(wide.dtype), dims, keepdim)
        elif order == 1:
            y = ops.sum(wide.abs(), dims, keepdim)
        elif order == 2:
            y = ops.sum(wide.mul(wide), dims, keepdim).sqrt()
        else:
            y = ops.sum(wide.abs().pow(order), dims, keepdim).pow(1 / order)
        y = y.to(x.dtype)
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: NDArray) -> Any:
        x, y = ctx.saved
        grad, y, order = Reduction.kept(ctx, grad), Reduction.kept(ctx, y), ctx.order
        if order == 0:
            return x.full_like(0)
        if order == 1:
            return x.sign().mul(grad)
        if math.isinf(order):  # equal extremes share the gradient
            return x.sign().mul(_shared(ctx, x.abs().eq(y), grad))
        if order == 2:
            return y.eq(0).where(0.0, x.mul(grad.div(y)))
        slope = x.sign().mul(x.abs().div(y).pow(order - 1))  # sign(x) · (|x| / y)^(p − 1), and 0 at y = 0
        slope = x.eq(0).where(0.0, slope) if order < 2 else slope
        return y.eq(0).where(0.0, slope.mul(grad))


# --- arguments --------------------------------------------------------------------------------------------------------


def _dims(op: str, dim: Dims, input: Tensor, filled: bool = False) -> Shape:
    """The dimensions to reduce, sorted; filled: at least one element must be there to choose."""
    require_tensors(op, input=input)
    shape = input.array.shape
    dims = shapes.normalize_dims(op, dim, len(shape))
    if filled:
        _require_elements(op, shape, dims)
    return dims


def _require_elements(op: str, shape: Shape, dims: Shape) -> None:
    for dim in dims:
        if shape[dim] == 0:
            raise ShapeError(
                describe(op, "input", f"at least one element in dimension {dim}, which is reduced", f"shape {shape}")
            )


def _require_floating(op: str, argument: str, dtype: DType) -> None:
    if not dtype.is_floating_point:
        raise DTypeError(describe(op, argument, "a floating dtype; convert with .float() or pass dtype=", dtype))


def _count(ctx: Any) -> int:
    """How many elements went into one of the result's."""
    return math.prod(ctx.shape[dim] for dim in ctx.dims)
