"""Reductions: sums, products, extremes, statistics. Without dim they reduce everything.

A gradient spreads back over the reduced dimensions; each rule stands in its backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from genesis import shapes
from genesis.autograd import ArrayFunction, Context, Tensor
from genesis.dtypes import DType, float32
from genesis.errors import DTypeError, ShapeError, describe
from genesis.functional.arguments import require_tensors
from genesis.functional.keywords import also, one_of
from genesis.functional.unary import abs as abs_of
from genesis.ndarray import NDArray, ops
from genesis.shapes import Shape

__all__ = ["cumsum", "logsumexp", "mean", "norm", "prod", "std", "sum", "var"]

Dims = int | Sequence[int] | None


class Reduction(ArrayFunction):
    """Keeps what spread() needs: the shape before and the dimensions that went away."""

    @staticmethod
    def note(ctx: Context, x: NDArray, dims: Shape, keepdim: bool) -> None:
        ctx.shape, ctx.dims, ctx.keepdim = x.shape, dims, keepdim

    @staticmethod
    def kept(ctx: Context, reduced: NDArray) -> NDArray:
        """A reduced array with its dimensions back as size 1, so that it broadcasts against the input."""
        return reduced if ctx.keepdim else reduced.reshape(shapes.reduced(ctx.shape, ctx.dims, True))

    @staticmethod
    def spread(ctx: Context, grad: NDArray) -> NDArray:
        """grad in the shape of the input."""
        return Reduction.kept(ctx, grad).expand(ctx.shape)


def sum(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Σ input over dim.

    Args:
        input: any shape and dtype; bool and integers are summed in int64.
        dim: one or several dimensions; all by default.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
        dtype: compute in and return this dtype.
    Returns: the shape of input without dim.
    Raises: IndexError: input has no such dimension.
    Grad: input. Saves nothing.
    Example: >>> F.sum(genesis.ones(2, 3), dim=1).tolist()
    [3.0, 3.0]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    return Sum.apply(input, dims=dims_of("sum", dim, input), keepdim=keepdim, dtype=dtype)


class Sum(Reduction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, keepdim: bool, dtype: DType | None) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        return ops.sum(x, dims, keepdim) if dtype is None else ops.sum(x.to(dtype), dims, keepdim).to(dtype)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return Reduction.spread(ctx, grad)


def mean(
    input: Tensor,
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The average over dim.

    Args:
        input: any shape, a floating or complex dtype, or any with dtype.
        dim: one or several dimensions; all by default.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
        dtype: compute in and return this dtype.
    Returns: the shape of input without dim.
    Raises: DTypeError: input is not floating, and no floating dtype is given.
    Grad: input. Saves nothing.
    Example: >>> F.mean(genesis.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=0).tolist()
    [4.0, 4.0]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    dims = dims_of("mean", dim, input)
    _require_floating("mean", "input", dtype or input.array.dtype)
    return Mean.apply(input, dims=dims, keepdim=keepdim, dtype=dtype)


class Mean(Reduction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, keepdim: bool, dtype: DType | None) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        return ops.mean(x if dtype is None else x.to(dtype), dims, keepdim)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return Reduction.spread(ctx, grad.div(_count(ctx) or 1))


def prod(
    input: Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
    axis: int | None = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Π input over dim.

    Args:
        input: any shape and dtype; bool and integers are multiplied in int64.
        dim: one dimension; all by default.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
        dtype: compute in and return this dtype.
    Returns: the shape of input without dim.
    Raises: IndexError: input has no such dimension.
    Grad: input, exact where elements are zero. Saves input.
    Example: >>> F.prod(genesis.tensor([[1.0, 5.0], [7.0, 3.0]]), dim=0).tolist()
    [7.0, 15.0]
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    dims = dims_of("prod", dim, input)
    return Prod.apply(input, dims=dims, keepdim=keepdim, dtype=dtype)


class Prod(Reduction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, keepdim: bool, dtype: DType | None) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        x = x if dtype is None else x.to(dtype)
        ctx.save(x)
        y = ops.prod(x, dims, keepdim)
        return y if dtype is None else y.to(dtype)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        # dy/dxᵢ = Π of the others: y / xᵢ, but the product of the nonzero ones where xᵢ is the only zero.
        zero = x.eq(0)
        zeros = ops.sum(zero, ctx.dims, True)
        others = ops.prod(zero.where(1.0, x), ctx.dims, True)
        at_zero = zeros.eq(1).where(others, 0.0)
        elsewhere = zeros.eq(0).where(others, 0.0).div(x)
        return Reduction.kept(ctx, grad).mul(zero.where(at_zero, elsewhere))


def shared(ctx: Context, chosen: NDArray, grad: NDArray) -> NDArray:
    """grad in equal parts to the chosen; NaN to all where none is, as NaN equals nothing."""
    return chosen.to(grad.dtype).mul(grad).div(ops.sum(chosen, ctx.dims, True))


def var(
    input: Tensor, dim: Dims = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: float | None = None, axis: Dims = None, keepdims: bool | None = None,
) -> Tensor:  # fmt: skip
    """The variance over dim: Σ (x − mean)² / (n − correction).

    Args:
        input: any shape, a floating dtype.
        dim: one or several dimensions; all by default.
        unbiased: False is the older way to say correction=0.
        keepdim: keep dim, with size 1.
        axis, keepdims: NumPy's names of dim and keepdim.
        correction: 1 by default, which makes the estimate unbiased.
    Returns: the shape of input without dim, dtype of input.
    Raises: DTypeError: input is not floating. ValueError: both correction and unbiased.
    Grad: input. Saves input.
    Example: >>> F.var(genesis.tensor([1.0, 3.0])).item()
    2.0
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    dims, correction = _statistics_arguments("var", input, dim, unbiased, correction)
    return Var.apply(input, dims=dims, correction=correction, keepdim=keepdim)


class Var(Reduction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, correction: float, keepdim: bool) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        ctx.correction = correction
        ctx.save(x)
        return ops.var(x, dims, correction, keepdim)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        (x,) = ctx.saved
        return _grad_var(ctx, x, Reduction.kept(ctx, grad))


def _grad_var(ctx: Context, x: NDArray, grad: NDArray) -> NDArray:
    freedom = _count(ctx) - ctx.correction
    slope = 2 / freedom if freedom > 0 else (math.inf if freedom == 0 else math.nan)
    return grad.mul(x.sub(ops.mean(x, ctx.dims, True)).mul(slope))  # d var / dxᵢ = 2 (xᵢ − mean) / (n − correction)


def std(
    input: Tensor,
    dim: Dims = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
    axis: Dims = None,
    keepdims: bool | None = None,
) -> Tensor:
    """The standard deviation over dim, the square root of var; its gradient is zero where it is zero.

    Args:
        input: any shape, a floating dtype.
        the others are those of var.
        dim, unbiased, keepdim, correction: as in `F.var`.
        axis, keepdims: NumPy's names of dim and keepdim.
    Returns: the shape of input without dim, dtype of input.
    Raises: DTypeError: input is not floating. ValueError: both correction and unbiased.
    Grad: input. Saves input and the output.
    Example: >>> F.std(genesis.tensor([1.0, 3.0]), correction=0).item()
    1.0
    """
    dim = dim if axis is None else axis
    keepdim = keepdim if keepdims is None else keepdims
    dims, correction = _statistics_arguments("std", input, dim, unbiased, correction)
    return Std.apply(input, dims=dims, correction=correction, keepdim=keepdim)


class Std(Reduction):
    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, correction: float, keepdim: bool) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        ctx.correction = correction
        y = ops.var(x, dims, correction, keepdim).sqrt()
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        x, y = ctx.saved
        return _grad_var(ctx, x, Reduction.kept(ctx, y.eq(0).where(0.0, grad.div(y.mul(2)))))  # dσ = dσ² / 2σ


def _statistics_arguments(
    op: str, input: Tensor, dim: Dims, unbiased: bool | None, correction: float | None
) -> tuple[Shape, float]:
    if isinstance(dim, bool):  # var(x, False): the older form, unbiased without dim
        dim, unbiased = None, dim
    if unbiased is not None and correction is not None:
        raise ValueError(describe(op, "correction", "either correction or unbiased", "both"))
    _require_floating(op, "input", input.array.dtype)
    return dims_of(op, dim, input), (1 if unbiased in (None, True) else 0) if correction is None else correction


@also(axis="dim", keepdims="keepdim")
def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """ln Σ eˣ over dim, computed so that nothing overflows.

    Args:
        input: any shape, a floating dtype.
        dim, keepdim: as in `F.sum`.
    Returns: the shape of input without dim, dtype of input.
    Raises: IndexError: input has no such dimension. Grad: input. Saves input and the output.
    Example: >>> F.logsumexp(genesis.tensor([1000.0, 1000.0]), dim=0).item()
    1000.6931762695312
    """
    return LogSumExp.apply(input, dims=dims_of("logsumexp", dim, input), keepdim=keepdim)


class LogSumExp(Reduction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dims: Shape, keepdim: bool) -> NDArray:
        Reduction.note(ctx, x, dims, keepdim)
        y = ops.logsumexp(x, dims, keepdim)
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        x, y = ctx.saved
        return x.sub(Reduction.kept(ctx, y)).exp().mul(Reduction.kept(ctx, grad))  # dy/dxᵢ = exp(xᵢ − y)


def cumsum(input: Tensor, dim: int | None = None, *, dtype: DType | None = None, axis: int | None = None) -> Tensor:
    """The running sum along dim.

    Args:
        input: any shape and dtype; bool and integers are summed in int64.
        dim, axis: one dimension.
        dtype: compute in and return this dtype.
    Returns: the shape of input.
    Raises: DTypeError: dtype is bool. IndexError: input has no such dimension.
    Grad: input. Saves nothing.
    Example: >>> F.cumsum(genesis.tensor([1, 2, 3]), dim=0).tolist()
    [1, 3, 6]
    """
    if dtype is not None and dtype.name == "bool":
        raise DTypeError(describe("cumsum", "dtype", "a dtype of numbers", dtype))
    dim = one_of("cumsum", dim, axis) if dim is None or axis is not None else dim
    return CumSum.apply(input, dim=shapes.normalize_dim("cumsum", dim, input.array.ndim), dtype=dtype)


class CumSum(ArrayFunction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, dim: int, dtype: DType | None) -> NDArray:
        ctx.dim = dim
        return ops.cumsum(x, dim) if dtype is None else ops.cumsum(x.to(dtype), dim).to(dtype)

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        if not grad.ndim:
            return grad
        dims = (ctx.dim,)
        return ops.flip(ops.cumsum(ops.flip(grad, dims), ctx.dim), dims)  # xᵢ is in all sums from i on


def norm(
    input: Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False, dtype: DType | None = None
) -> Tensor:
    """The vector norm over dim: (Σ |x|ᵖ)^(1/p).

    Args:
        input: any shape, a floating or complex dtype, or any with dtype.
        p: a number, also inf, -inf, or 0 (the count of nonzeros); "fro" is 2.
        dim: one or several dimensions; all by default.
        keepdim: keep dim, with size 1.
        dtype: compute in and return this dtype.
    Returns: the shape of input without dim.
    Raises: DTypeError: input is not floating. ValueError: another p. NotImplementedError: p="nuc".
    Grad: input; zero where the norm is. Saves input and the output.
    Example: >>> F.norm(genesis.tensor([3.0, 4.0])).item()
    5.0
    """
    if p == "nuc":
        raise NotImplementedError(describe("norm", "p", "a number or 'fro'", "'nuc' (use genesis.linalg.matrix_norm)"))
    if not (p is None or p == "fro" or isinstance(p, int | float)):
        raise ValueError(describe("norm", "p", "a number or 'fro'", repr(p)))
    if input.array.dtype.is_complex and not (dtype and not dtype.is_complex):
        return norm(abs_of(input), p, dim, keepdim, dtype and dtype.to_real())
    _require_floating("norm", "input", dtype or input.array.dtype)
    order = 2.0 if p is None or isinstance(p, str) else float(p)
    dims = dims_of("norm", dim, input, filled=order < 0 or math.isinf(order))
    return Norm.apply(input, order=order, dims=dims, keepdim=keepdim, dtype=dtype)


class Norm(Reduction):
    autocast = "float32"

    @staticmethod
    def forward(ctx: Context, x: NDArray, *, order: float, dims: Shape, keepdim: bool, dtype: DType | None) -> NDArray:
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
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        x, y = ctx.saved
        grad, y, order = Reduction.kept(ctx, grad), Reduction.kept(ctx, y), ctx.order
        if order == 0:
            return x.full_like(0)
        if order == 1:
            return x.sign().mul(grad)
        if math.isinf(order):  # equal extremes share the gradient
            return x.sign().mul(shared(ctx, x.abs().eq(y), grad))
        if order == 2:
            return y.eq(0).where(0.0, x.mul(grad.div(y)))
        slope = x.sign().mul(x.abs().div(y).pow(order - 1))  # sign(x) · (|x| / y)^(p − 1), and 0 at y = 0
        slope = x.eq(0).where(0.0, slope) if order < 2 else slope
        return y.eq(0).where(0.0, slope.mul(grad))


# --- arguments --------------------------------------------------------------------------------------------------------


def dims_of(op: str, dim: Dims, input: Tensor, filled: bool = False) -> Shape:
    """The dimensions to reduce, sorted; filled: at least one element must be there to choose."""
    require_tensors(op, input=input)
    shape = input.array.shape
    dims = shapes.normalize_dims(op, dim, len(shape))
    if filled:
        require_elements(op, shape, dims)
    return dims


def require_elements(op: str, shape: Shape, dims: Shape) -> None:
    for dim in dims:
        if shape[dim] == 0:
            raise ShapeError(
                describe(op, "input", f"at least one element in dimension {dim}, which is reduced", f"shape {shape}")
            )


def _require_floating(op: str, argument: str, dtype: DType) -> None:
    if not (dtype.is_floating_point or (op == "mean" and dtype.is_complex)):
        raise DTypeError(describe(op, argument, "a floating dtype; convert with .float() or pass dtype=", dtype))


def _count(ctx: Context) -> int:
    """How many elements went into one of the result's."""
    return math.prod(ctx.shape[dim] for dim in ctx.dims)
