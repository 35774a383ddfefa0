"""Translations: sums, means, extremes, running sums."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from genesis import dtypes
from genesis.dtypes import DType
from genesis.export.graph import Emitter, Input, Operand
from genesis.export.ops_elementwise import computed_in
from genesis.export.registry import NamedOp, translates

if TYPE_CHECKING:
    import onnx_ir as ir

Dims = tuple[int, ...]


def reduce(e: Emitter, kind: str, x: Input, dims: Dims, keepdim: bool) -> ir.Value:
    if not dims:
        return e.op("Identity", x)
    return e.op(kind, x, e.ints(dims), keepdims=int(keepdim))


@translates("Sum", "sum")
def sum(e: Emitter, x: Operand, dims: Dims, keepdim: bool = False, dtype: DType | None = None) -> ir.Value:
    return reduce(e, "ReduceSum", e.cast(x, e.dtype), dims, keepdim)


@translates("Mean", "mean")
def mean(e: Emitter, x: Operand, dims: Dims, keepdim: bool = False, dtype: DType | None = None) -> ir.Value:
    return reduce(e, "ReduceMean", e.cast(x, e.dtype), dims, keepdim)


@translates("Prod", "prod")
def prod(e: Emitter, x: Operand, dims: Dims, keepdim: bool = False, dtype: DType | None = None) -> ir.Value:
    return reduce(e, "ReduceProd", e.cast(x, e.dtype), dims, keepdim)


@translates("Var", "var")
def var(e: Emitter, x: Operand, dims: Dims, correction: float, keepdim: bool = False) -> ir.Value:
    centred = e.op("Sub", x, reduce(e, "ReduceMean", x, dims, True))
    total = reduce(e, "ReduceSum", e.op("Mul", centred, centred), dims, keepdim)
    freedom = e.op("Sub", e.count(tuple(x.shape[dim] for dim in dims), x.dtype), e.number(correction, x.dtype))
    return e.op("Div", total, e.op("Max", freedom, e.number(0, x.dtype)))


@translates("Std")
def std(e: Emitter, x: Operand, dims: Dims, correction: float, keepdim: bool) -> ir.Value:
    return e.op("Sqrt", var(e, x, dims, correction, keepdim))


@translates("LogSumExp", "logsumexp")
def logsumexp(e: Emitter, x: Operand, dims: Dims, keepdim: bool = False) -> ir.Value:
    value = e.cast(x, e.dtype)
    most = reduce(e, "ReduceMax", value, dims, True)
    finite = e.op("Where", e.op("IsInf", most), e.number(0, e.dtype), most)
    logs = e.op("Log", reduce(e, "ReduceSum", e.op("Exp", e.op("Sub", value, finite)), dims, keepdim))
    kept = finite if keepdim or not dims else e.op("Squeeze", finite, e.ints(dims))
    return e.op("Add", logs, kept)


@translates("Norm")
def norm(e: Emitter, x: Operand, order: float, dims: Dims, keepdim: bool, dtype: DType | None) -> ir.Value:
    wide = e.dtype if e.dtype.itemsize >= 4 else dtypes.float32
    value = e.cast(x, wide)
    if math.isinf(order):
        y = reduce(e, "ReduceMax" if order > 0 else "ReduceMin", e.op("Abs", value), dims, keepdim)
    elif order == 0:
        other = e.op("Not", e.op("Equal", value, e.number(0, wide)))
        y = reduce(e, "ReduceSum", e.convert(other, wide), dims, keepdim)
    elif order == 1:
        y = reduce(e, "ReduceSum", e.op("Abs", value), dims, keepdim)
    elif order == 2:
        y = e.op("Sqrt", reduce(e, "ReduceSum", e.op("Mul", value, value), dims, keepdim))
    else:
        powers = e.op("Pow", e.op("Abs", value), e.number(order, wide))
        y = e.op("Pow", reduce(e, "ReduceSum", powers, dims, keepdim), e.number(1 / order, wide))
    return y if wide is e.dtype else e.convert(y, e.dtype)


@translates("CumSum", "cumsum")
def cumsum(e: Emitter, x: Operand, dim: int, dtype: DType | None = None) -> ir.Value | Operand:
    value = e.cast(x, e.dtype)
    if not x.ndim:
        return e.op("Identity", value)
    return e.op("CumSum", value, e.number(dim, dtypes.int64))


@translates("CumMax", "cummax")
def cummax(e: Emitter, x: Operand, dim: int) -> tuple[ir.Value, ir.Value]:
    """By doubling: after step k, each element has the greatest of the 2ᵏ up to it."""
    if not x.ndim:
        return e.op("Identity", x), e.number(0, dtypes.int64)
    size, dtype = e.fixed(x.shape[dim], "the length of a running maximum"), computed_in(x.dtype)
    values = e.cast(x, dtype)
    counted = e.array(np.arange(size).reshape(-1, *[1] * (x.ndim - 1 - dim)))
    indices = e.op("Expand", counted, e.sizes(x.shape))
    step = 1
    while step < size:
        first, last, axis = e.ints([0]), e.ints([size]), e.ints([dim])
        split, up_to = e.ints([step]), e.ints([size - step])
        early, late = e.op("Slice", values, first, up_to, axis), e.op("Slice", values, split, last, axis)
        kept = e.op("GreaterOrEqual", late, early)
        if dtype.is_floating_point:  # NaN is the largest
            kept = e.op("Or", e.op("And", kept, e.op("Not", e.op("IsNaN", early))), e.op("IsNaN", late))
        values = _behind(e, values, split, e.op("Where", kept, late, early), dim)
        early, late = e.op("Slice", indices, first, up_to, axis), e.op("Slice", indices, split, last, axis)
        indices = _behind(e, indices, split, e.op("Where", kept, late, early), dim)
        step *= 2
    return values if dtype is x.dtype else e.convert(values, x.dtype), indices


def _behind(e: Emitter, whole: ir.Value, split: ir.Value, rest: ir.Value, dim: int) -> ir.Value:
    """The first `split` elements of whole, and behind them the rest."""
    return e.op("Concat", e.op("Slice", whole, e.ints([0]), split, e.ints([dim])), rest, axis=dim)


# --- extremes ---------------------------------------------------------------------------------------------------------

_EXTREMES = {"amax": "ReduceMax", "amin": "ReduceMin"}
_PLACES = {"argmax": "ArgMax", "argmin": "ArgMin"}


def _extreme(e: Emitter, op: str, x: Operand, dims: Dims, keepdim: bool) -> ir.Value:
    dtype = computed_in(x.dtype)
    y = reduce(e, _EXTREMES[op], e.cast(x, dtype), dims, keepdim)
    return y if dtype is x.dtype else e.convert(y, x.dtype)


@translates("Extreme")
def extreme(e: Emitter, x: Operand, op: NamedOp, dims: Dims, keepdim: bool) -> ir.Value:
    return _extreme(e, op.__name__, x, dims, keepdim)


translates("amax")(lambda e, x, dims, keepdim=False: _extreme(e, "amax", x, dims, keepdim))
translates("amin")(lambda e, x, dims, keepdim=False: _extreme(e, "amin", x, dims, keepdim))


@translates("ExtremeOfDim")
def extreme_of_dim(e: Emitter, x: Operand, op: NamedOp, dim: int, keepdim: bool) -> tuple[ir.Value, ir.Value]:
    kind = "amax" if op.__name__ == "argmax" else "amin"
    dims = (dim,) if x.ndim else ()
    return _extreme(e, kind, x, dims, keepdim), _place(e, op.__name__, x, dim, keepdim)


@translates("ArgExtreme")
def arg_extreme(e: Emitter, x: Operand, op: NamedOp, dim: int | None, keepdim: bool) -> ir.Value:
    if dim is not None:
        return _place(e, op.__name__, x, dim % max(x.ndim, 1), keepdim)
    flat = x._replace(value=e.op("Reshape", x, e.ints([-1])), shape=(1,))
    found = _place(e, op.__name__, flat, 0, False)
    return e.op("Reshape", found, e.ints([1] * x.ndim)) if keepdim and x.ndim else found


translates("argmax")(lambda e, x, dim, keepdim=False: _place(e, "argmax", x, dim, keepdim))
translates("argmin")(lambda e, x, dim, keepdim=False: _place(e, "argmin", x, dim, keepdim))


def _place(e: Emitter, op: str, x: Operand, dim: int, keepdim: bool) -> ir.Value:
    value = e.cast(x, computed_in(x.dtype))
    if not x.ndim:
        return e.number(0, dtypes.int64)
    return e.op(_PLACES[op], value, axis=dim, keepdims=int(keepdim), select_last_index=0)


@translates("Truth")
def truth(e: Emitter, x: Operand, op: NamedOp, dims: Dims, keepdim: bool) -> ir.Value:
    return _truth(e, op.__name__, x, dims, keepdim)


translates("all")(lambda e, x, dims, keepdim=False: _truth(e, "all", x, dims, keepdim))
translates("any")(lambda e, x, dims, keepdim=False: _truth(e, "any", x, dims, keepdim))


def _truth(e: Emitter, op: str, x: Operand, dims: Dims, keepdim: bool) -> ir.Value:
    numbers = e.convert(e.cast(x, dtypes.bool_), dtypes.int32)
    found = reduce(e, "ReduceMin" if op == "all" else "ReduceMax", numbers, dims, keepdim)
    return e.convert(e.convert(found, dtypes.bool_), e.dtype)
