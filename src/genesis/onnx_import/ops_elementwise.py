"""Ops of each element: arithmetic, comparisons, activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import genesis
from genesis import dtypes
from genesis import functional as F
from genesis.dtypes import DType
from genesis.onnx_import.registry import Array, Node, computes, on_host
from genesis.tensor import Tensor

# --- of two and of several --------------------------------------------------------------------------------------------


def _div(x: Tensor, y: Tensor) -> Tensor:
    return F.div(x, y) if x.dtype.is_floating_point else F.div(x, y, rounding_mode="trunc")


def _host_div(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.divide(x, y))
    quotient = np.floor_divide(np.abs(x), np.abs(y))  # ONNX rounds to zero
    return np.asarray(np.sign(x) * np.sign(y) * quotient).astype(x.dtype)


_BINARY: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Array, Array], object]]] = {
    "Add": (F.add, np.add), "Sub": (F.sub, np.subtract), "Mul": (F.mul, np.multiply), "Div": (_div, _host_div),
    "Equal": (F.eq, np.equal), "Greater": (F.gt, np.greater), "Less": (F.lt, np.less),
    "GreaterOrEqual": (F.ge, np.greater_equal), "LessOrEqual": (F.le, np.less_equal),
    "And": (F.logical_and, np.logical_and), "Or": (F.logical_or, np.logical_or), "Xor": (F.ne, np.not_equal),
    "BitwiseAnd": (F.bitwise_and, np.bitwise_and), "BitwiseOr": (F.bitwise_or, np.bitwise_or),
    "BitwiseXor": (F.bitwise_xor, np.bitwise_xor),
}  # fmt: skip
_SEVERAL: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Array, Array], object]]] = {
    "Max": (F.maximum, np.maximum), "Min": (F.minimum, np.minimum), "Sum": (F.add, np.add),
}  # fmt: skip


@computes(*_BINARY)
def binary(node: Node, x: Tensor, y: Tensor) -> Tensor:
    return _BINARY[node.op][0](x, y)


@on_host(*_BINARY)
def binary_on_host(node: Node, x: Array, y: Array) -> Array:
    return np.asarray(_BINARY[node.op][1](x, y))


@computes(*_SEVERAL)
def several(node: Node, x: Tensor, *others: Tensor) -> Tensor:
    for other in others:
        x = _SEVERAL[node.op][0](x, other)
    return x


@on_host(*_SEVERAL)
def several_on_host(node: Node, x: Array, *others: Array) -> Array:
    for other in others:
        x = np.asarray(_SEVERAL[node.op][1](x, other))
    return x


@computes("Pow")
def power(node: Node, x: Tensor, y: Tensor) -> Tensor:
    return F.pow(x, y).to(x.dtype)


@on_host("Pow")
def power_on_host(node: Node, x: Array, y: Array) -> Array:
    return np.asarray(np.power(x, y)).astype(x.dtype)


@computes("Mod")
def modulo(node: Node, x: Tensor, y: Tensor) -> Tensor:
    if node.integer("fmod", 0):
        return F.sub(x, F.mul(F.div(x, y, rounding_mode="trunc"), y))
    return F.remainder(x, y)


@on_host("Mod")
def modulo_on_host(node: Node, x: Array, y: Array) -> Array:
    return np.asarray((np.fmod if node.integer("fmod", 0) else np.mod)(x, y))


@computes("Where")
def where(node: Node, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return genesis.where(condition, x, y)


@on_host("Where")
def where_on_host(node: Node, condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


# --- of one -----------------------------------------------------------------------------------------------------------

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Relu": F.relu, "Sigmoid": F.sigmoid, "Tanh": F.tanh, "Softplus": F.softplus, "Mish": F.mish, "Erf": F.erf,
    "HardSwish": F.hardswish, "Abs": F.abs, "Neg": F.neg, "Exp": F.exp, "Log": F.log, "Sqrt": F.sqrt,
    "Reciprocal": F.reciprocal, "Floor": F.floor, "Ceil": F.ceil, "Round": F.round, "Sign": F.sign, "Sin": F.sin,
    "Cos": F.cos, "Not": F.logical_not, "IsNaN": F.isnan, "Identity": lambda x: x, "Swish": F.silu,
    "Tan": F.tan, "Asin": F.asin, "Acos": F.acos, "Atan": F.atan, "Sinh": F.sinh, "Cosh": F.cosh, "Asinh": F.asinh,
    "Acosh": F.acosh, "Atanh": F.atanh, "BitwiseNot": F.bitwise_not, "Softsign": lambda x: x / (1 + x.abs()),
}  # fmt: skip
_UNARY_ON_HOST: dict[str, Callable[[Array], object]] = {
    "Abs": np.abs, "Neg": np.negative, "Sqrt": np.sqrt, "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint,
    "Not": np.logical_not, "Identity": np.asarray, "Reciprocal": np.reciprocal, "Exp": np.exp, "Log": np.log,
    "Sign": np.sign,
}  # fmt: skip


@computes(*_UNARY)
def unary(node: Node, x: Tensor) -> Tensor:
    if node.op == "Swish" and node.floating("alpha", 1.0) != 1:
        raise node.refuse(f"alpha={node.floating('alpha', 1.0)}")
    return _UNARY[node.op](x)


@on_host(*_UNARY_ON_HOST)
def unary_on_host(node: Node, x: Array) -> Array:
    return np.asarray(_UNARY_ON_HOST[node.op](x))


@computes("Dropout")
def dropout(node: Node, x: Tensor, *options: object) -> tuple[Tensor, Tensor]:
    return x, F.eq(x, x)


@computes("IsInf")
def is_inf(node: Node, x: Tensor) -> Tensor:
    found = F.isinf(x)
    if not node.integer("detect_negative", 1):
        found = F.logical_and(found, F.gt(x, 0))
    return found if node.integer("detect_positive", 1) else F.logical_and(found, F.lt(x, 0))


@computes("LeakyRelu")
def leaky_relu(node: Node, x: Tensor) -> Tensor:
    return F.leaky_relu(x, node.floating("alpha", 0.01))


@computes("PRelu")
def prelu(node: Node, x: Tensor, slope: Tensor) -> Tensor:
    return F.add(F.relu(x), F.mul(slope, F.minimum(x, F.mul(x, 0))))


@computes("Elu")
def elu(node: Node, x: Tensor) -> Tensor:
    return F.elu(x, node.floating("alpha", 1.0))


@computes("Selu")
def selu(node: Node, x: Tensor) -> Tensor:
    return F.elu(x, node.floating("alpha", 1.6732632)) * node.floating("gamma", 1.0507010)


@computes("HardSigmoid")
def hard_sigmoid(node: Node, x: Tensor) -> Tensor:
    alpha, beta = node.floating("alpha", 0.2), node.floating("beta", 0.5)
    return F.hardsigmoid(x) if abs(alpha - 1 / 6) < 1e-7 and beta == 0.5 else (x * alpha + beta).clamp(0, 1)


@computes("Gelu")
def gelu(node: Node, x: Tensor) -> Tensor:
    return F.gelu(x, node.text("approximate", "none"))


@computes("Clip", host=(1, 2))
def clip(node: Node, x: Tensor, low: Array | None = None, high: Array | None = None) -> Tensor:
    lowest, highest = (None if limit is None else limit.item() for limit in (low, high))
    if lowest == 0 and highest == 6:
        return F.relu6(x)
    return x if lowest is None and highest is None else F.clamp(x, lowest, highest)


@on_host("Clip")
def clip_on_host(node: Node, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    return x if low is None and high is None else np.clip(x, low, high)


@computes("Softmax", "LogSoftmax")
def softmax(node: Node, x: Tensor) -> Tensor:
    function = F.softmax if node.op == "Softmax" else F.log_softmax
    if node.opset >= 13:
        return function(x, node.integer("axis", -1))
    axis = node.integer("axis", 1) % max(x.ndim, 1)  # over that dimension and all behind it
    return function(x.flatten(axis), -1).reshape(x.shape) if x.ndim else function(x, -1)


# --- dtypes -----------------------------------------------------------------------------------------------------------

_DTYPES: dict[int, DType] = {
    1: dtypes.float32, 2: dtypes.uint8, 3: dtypes.int8, 5: dtypes.int16, 6: dtypes.int32, 7: dtypes.int64,
    9: dtypes.bool_, 10: dtypes.float16, 11: dtypes.float64, 16: dtypes.bfloat16,
}  # fmt: skip


def dtype_of(node: Node, name: str) -> DType:
    number = node.integer(name, 0)
    if number not in _DTYPES:
        raise node.refuse(f"{name}={number}")
    return _DTYPES[number]


@computes("Cast")
def cast(node: Node, x: Tensor) -> Tensor:
    return x.to(dtype_of(node, "to"))


@on_host("Cast")
def cast_on_host(node: Node, x: Array) -> Array:
    dtype = dtype_of(node, "to")
    return x.astype("float32" if dtype is dtypes.bfloat16 else dtype.name)


@computes("CastLike")
def cast_like(node: Node, x: Tensor, other: Tensor) -> Tensor:
    return x.to(other.dtype)
