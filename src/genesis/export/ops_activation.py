"""Translations: activations, softmax, dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from genesis import activations
from genesis.dtypes import DType
from genesis.export.graph import Emitter, Operand
from genesis.export.ops_elementwise import computed_in
from genesis.export.registry import translates

if TYPE_CHECKING:
    import onnx_ir as ir


@translates("ReLU", "relu")
def relu(e: Emitter, x: Operand) -> ir.Value:
    dtype = computed_in(x.dtype)
    y = e.op("Relu", e.cast(x, dtype))
    return y if dtype is x.dtype else e.convert(y, x.dtype)


@translates("LeakyReLU", "leaky_relu")
def leaky_relu(e: Emitter, x: Operand, negative_slope: float, keeps_result: bool = False) -> ir.Value:
    """Translate it; in place, it keeps its result, which is for the gradient."""
    return e.op("LeakyRelu", x, alpha=float(negative_slope))


@translates("ELU", "elu")
def elu(e: Emitter, x: Operand, alpha: float, keeps_result: bool = False) -> ir.Value:
    """Translate it; in place, it keeps its result, which is for the gradient."""
    return e.op("Elu", x, alpha=float(alpha))


@translates("GELU", "gelu")
def gelu(e: Emitter, x: Operand, approximate: str) -> ir.Value:
    if e.opset >= 20:
        return e.op("Gelu", x, approximate=approximate)
    half = e.op("Mul", x, e.number(0.5, x.dtype))
    if approximate == "tanh":  # ½x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
        cube = e.op("Mul", e.op("Mul", x, x), x)
        inner = e.op("Add", x, e.op("Mul", cube, e.number(0.044715, x.dtype)))
        bent = e.op("Tanh", e.op("Mul", inner, e.number(math.sqrt(2 / math.pi), x.dtype)))
    else:  # ½x·(1 + erf(x/√2))
        bent = e.op("Erf", e.op("Div", x, e.number(math.sqrt(2), x.dtype)))
    return e.op("Mul", half, e.op("Add", bent, e.number(1, x.dtype)))


@translates("SiLU", "silu")
def silu(e: Emitter, x: Operand) -> ir.Value:
    return e.op("Mul", x, e.op("Sigmoid", x))


@translates("Softplus", "softplus")
def softplus(e: Emitter, x: Operand, beta: float, threshold: float) -> ir.Value:
    if beta == 1 and threshold >= 20:  # beyond, float32 and float64 round to x within 3e-9
        return e.op("Softplus", x)
    scaled = e.op("Mul", x, e.number(beta, x.dtype))
    soft = e.op("Div", e.op("Softplus", scaled), e.number(beta, x.dtype))
    return e.op("Where", e.op("Greater", scaled, e.number(threshold, x.dtype)), x, soft)


@translates("Hardswish", "hardswish")
def hardswish(e: Emitter, x: Operand) -> ir.Value:
    return e.op("HardSwish", x)


@translates("Hardsigmoid", "hardsigmoid")
def hardsigmoid(e: Emitter, x: Operand) -> ir.Value:
    return e.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)


def activated(e: Emitter, y: ir.Value, activation: str) -> ir.Value:
    """The activation at the end of a fused op, of its result's shape and dtype."""
    name, number = activations.parse(activation)
    x = Operand(y, e.shape, e.dtype)
    if name in _ACTIVATIONS:
        return _ACTIVATIONS[name](e, x)
    assert number is not None
    return leaky_relu(e, x, number) if name == "leaky_relu" else elu(e, x, number)


_ACTIVATIONS: dict[str, Callable[[Emitter, Operand], ir.Value]] = {
    "relu": lambda e, x: e.op("Relu", x),
    "relu6": lambda e, x: e.op("Clip", x, e.number(0, x.dtype), e.number(6, x.dtype)),
    "silu": silu,
    "mish": lambda e, x: e.op("Mul", x, e.op("Tanh", e.op("Softplus", x))),
    "gelu": lambda e, x: gelu(e, x, "none"),
    "gelu_tanh": lambda e, x: gelu(e, x, "tanh"),
    "hardswish": hardswish,
    "hardsigmoid": hardsigmoid,
    "sigmoid": lambda e, x: e.op("Sigmoid", x),
    "tanh": lambda e, x: e.op("Tanh", x),
}


def _along(e: Emitter, kind: str, x: Operand, dim: int, dtype: DType | None) -> ir.Value:
    value = e.cast(x, e.dtype if dtype is None else dtype)
    if x.ndim:
        return e.op(kind, value, axis=dim)
    flat = e.op(kind, e.op("Reshape", value, e.ints([1])), axis=0)  # a single number
    return e.op("Squeeze", flat, e.ints([0]))


@translates("Softmax", "softmax")
def softmax(e: Emitter, x: Operand, dim: int, dtype: DType | None = None) -> ir.Value:
    return _along(e, "Softmax", x, dim, dtype)


@translates("LogSoftmax", "log_softmax")
def log_softmax(e: Emitter, x: Operand, dim: int, dtype: DType | None = None) -> ir.Value:
    return _along(e, "LogSoftmax", x, dim, dtype)


@translates("Dropout", "dropout", "rand", "randn", "randint", "randperm")
def random(e: Emitter, *args: object, **kwargs: object) -> ir.Value:
    raise e.refuse("draws random numbers, which a file for inference cannot; call .eval() or leave it out")
