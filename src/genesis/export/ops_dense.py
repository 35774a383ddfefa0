"""Translations: matrix products, attention, norms, embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genesis import dtypes
from genesis.export.graph import Emitter, Operand
from genesis.export.ops_activation import activated
from genesis.export.ops_elementwise import computed_in
from genesis.export.registry import translates
from genesis.export.sizes import Dim

if TYPE_CHECKING:
    import onnx_ir as ir

_EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@translates("Matmul", "matmul")
def matmul(e: Emitter, x: Operand, y: Operand) -> ir.Value:
    dtype = computed_in(x.dtype)
    z = e.op("MatMul", e.cast(x, dtype), e.cast(y, dtype))
    return z if dtype is e.dtype else e.convert(z, e.dtype)


@translates("Linear", "linear")
def linear(e: Emitter, x: Operand, weight: Operand, bias: Operand | None) -> ir.Value:
    if x.ndim == 2 and weight.ndim == 2:
        return e.op("Gemm", x, weight, bias, transB=1)
    matrix = e.op("Transpose", weight, perm=[1, 0]) if weight.ndim == 2 else weight.value
    y = e.op("MatMul", x, matrix)
    return y if bias is None else e.op("Add", y, bias)


@translates("Embedding")
def embedding(e: Emitter, index: Operand, weight: Operand, **options: object) -> ir.Value:
    return e.op("Gather", weight, e.cast(index, dtypes.int64), axis=0)


@translates("OneHot")
def one_hot(e: Emitter, index: Operand, num_classes: Dim) -> ir.Value:
    values = e.array(np.array([0, 1], np.int64))
    classes = e.cast(index, dtypes.int64)
    if index.ndim:
        return e.op("OneHot", classes, e.size(num_classes), values, axis=-1)
    row = e.op("OneHot", e.op("Unsqueeze", classes, e.ints([0])), e.size(num_classes), values, axis=-1)
    return e.op("Squeeze", row, e.ints([0]))


# --- attention --------------------------------------------------------------------------------------------------------


@translates("Attention")
def attention(
    e: Emitter, query: Operand, key: Operand, value: Operand, mask: Operand | None, is_causal: bool, scale: float
) -> ir.Value:
    dtype, n = query.dtype, query.ndim
    scaled = e.op("Mul", query, e.number(scale, dtype))
    scores = e.op("MatMul", scaled, e.op("Transpose", key, perm=[*range(n - 2), n - 1, n - 2]))
    seen = None
    if is_causal:
        rows, columns = (_counted(e, x.shape[-2]) for x in (query, key))
        seen = e.op("GreaterOrEqual", e.op("Unsqueeze", rows, e.ints([1])), columns)
    elif mask is not None and mask.dtype is dtypes.bool_:
        seen = mask.value
    elif mask is not None:
        added = e.cast(mask, dtype)
        scores = e.op("Add", scores, added)
        seen = e.op("Not", e.op("IsInf", added, detect_positive=0))
    if seen is None:
        weights = e.op("Softmax", scores, axis=-1)
    else:  # the lowest finite number, not −∞: a query that sees no key must give 0, not NaN
        lowest = e.number(-3e38 if dtype.itemsize >= 4 else -6e4, dtype)
        weights = e.op("Softmax", e.op("Where", seen, scores, lowest), axis=-1)
        weights = e.op("Where", seen, weights, e.number(0, dtype))
    return e.op("MatMul", weights, value)


def _counted(e: Emitter, length: Dim) -> ir.Value:
    """0, 1, … length − 1."""
    if isinstance(length, int):
        return e.array(np.arange(length, dtype=np.int64))
    zero, one = e.number(0, dtypes.int64), e.number(1, dtypes.int64)
    return e.op("Range", zero, e.op("Squeeze", e.size(length), e.ints([0])), one)


# --- norms ------------------------------------------------------------------------------------------------------------


def _per_channel(e: Emitter, given: Operand | None, fill: float, x: Operand) -> Operand | ir.Value:
    if given is not None:
        return given if given.dtype is x.dtype else e.convert(given.value, x.dtype)
    return e.number(fill, x.dtype, (e.fixed(x.shape[1], "the number of channels"),))


def normalize(
    e: Emitter, x: Operand, weight: Operand | None, bias: Operand | None, mean: Operand, var: Operand, eps: float
) -> ir.Value:
    """Batch norm by given statistics."""
    scale, shift = _per_channel(e, weight, 1, x), _per_channel(e, bias, 0, x)
    statistics = _per_channel(e, mean, 0, x), _per_channel(e, var, 1, x)
    return e.op("BatchNormalization", x, scale, shift, *statistics, epsilon=float(eps))


@translates("BatchNorm")
def batch_norm(
    e: Emitter, x: Operand, weight: Operand | None, bias: Operand | None,
    running: tuple[Operand | None, Operand | None], training: bool, momentum: float, eps: float,
) -> ir.Value:  # fmt: skip
    mean, var = running
    if not training:
        assert mean is not None
        assert var is not None
        return normalize(e, x, weight, bias, mean, var, eps)
    dims = e.ints([dim for dim in range(x.ndim) if dim != 1])  # a norm without running statistics
    y = _standardized(e, x.value, dims, eps, x.dtype)
    return _scaled(e, y, weight, bias, x.ndim)


def _standardized(e: Emitter, x: ir.Value, dims: ir.Value, eps: float, dtype: dtypes.DType) -> ir.Value:
    centred = e.op("Sub", x, e.op("ReduceMean", x, dims, keepdims=1))
    var = e.op("ReduceMean", e.op("Mul", centred, centred), dims, keepdims=1)
    return e.op("Div", centred, e.op("Sqrt", e.op("Add", var, e.number(eps, dtype))))


def _scaled(e: Emitter, y: ir.Value, weight: Operand | None, bias: Operand | None, ndim: int) -> ir.Value:
    """y · weight + bias, which have one value for each channel."""
    for kind, given in (("Mul", weight), ("Add", bias)):
        if given is not None:
            spread = e.op("Reshape", e.cast(given, e.dtype), e.ints([-1, *[1] * (ndim - 2)]))
            y = e.op(kind, y, spread)
    return y


@translates("NormOfNothing")
def norm_of_nothing(e: Emitter, x: Operand, weight: Operand | None, bias: Operand | None) -> ir.Value:
    return e.op("Identity", x)


@translates("LayerNorm")
def layer_norm(
    e: Emitter, x: Operand, weight: Operand | None, bias: Operand | None, normalized_ndim: int, eps: float
) -> ir.Value:
    if weight is None:
        sizes = [e.fixed(dim, "a size to normalize over") for dim in x.shape[-normalized_ndim:]]
        scale: Operand | ir.Value = e.number(1, x.dtype, tuple(sizes))
    else:
        scale = e.cast(weight, x.dtype)
    shift = None if bias is None else e.cast(bias, x.dtype)
    return e.op("LayerNormalization", x, scale, shift, axis=-normalized_ndim, epsilon=float(eps))


@translates("GroupNorm")
def group_norm(
    e: Emitter, x: Operand, weight: Operand | None, bias: Operand | None, num_groups: int, eps: float,
    running: object = None, momentum: float = 0.0,
) -> ir.Value:  # fmt: skip
    grouped = e.op("Reshape", x, e.ints([0, num_groups, -1]))
    y = _standardized(e, grouped, e.ints([2]), eps, x.dtype)
    whole = e.op("Reshape", y, e.sizes(x.shape))
    return _scaled(e, whole, weight, bias, x.ndim)


@translates("GroupNormAct")
def group_norm_act(
    e: Emitter, x: Operand, weight: Operand | None, bias: Operand | None, num_groups: int, eps: float, activation: str
) -> ir.Value:
    return activated(e, group_norm(e, x, weight, bias, num_groups, eps), activation)


@translates("RMSNorm")
def rms_norm(e: Emitter, x: Operand, weight: Operand | None, normalized_ndim: int, eps: float | None) -> ir.Value:
    eps = _EPSILON[x.dtype.name] if eps is None else eps
    squares = e.op("ReduceMean", e.op("Mul", x, x), e.ints(range(-normalized_ndim, 0)), keepdims=1)
    y = e.op("Div", x, e.op("Sqrt", e.op("Add", squares, e.number(eps, x.dtype))))
    return y if weight is None else e.op("Mul", y, e.cast(weight, e.dtype))


# --- losses -----------------------------------------------------------------------------------------------------------


@translates("nll_loss")
def nll_loss(
    e: Emitter, log_probs: Operand, target: Operand, weight: Operand | None, ignore_index: int
) -> tuple[ir.Value, ir.Value]:
    zero = e.number(0, log_probs.dtype)
    kept = e.op("Not", e.op("Equal", target, e.number(ignore_index, dtypes.int64)))
    chosen = e.op("Where", kept, target, e.number(0, dtypes.int64))
    one = e.number(1, log_probs.dtype)
    weights = e.op("Where", kept, one if weight is None else e.op("Gather", weight, chosen, axis=0), zero)
    picked = e.op("GatherElements", log_probs, e.op("Unsqueeze", chosen, e.ints([1])), axis=1)
    each = e.op("Neg", e.op("Mul", e.op("Squeeze", picked, e.ints([1])), weights))
    return e.op("Where", kept, each, zero), weights
