"""Which of OpInfo's ops belong to the public surface, which dtypes they are tried in, and where we deviate on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ELEMENTWISE = ["add", "sub", "mul", "div", "pow", "neg", "abs", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "square", "reciprocal", "sign", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "clamp", "maximum", "minimum", "where", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not"]

ACTIVATIONS = [
    "nn.functional." + name
    for name in ["relu", "leaky_relu", "relu6", "elu", "gelu", "silu", "softplus", "hardswish", "hardsigmoid"]
] + ["softmax", "log_softmax"]

ALL_DTYPES = {*ELEMENTWISE}  # also float64, bfloat16 and float16
NAMES = [*ELEMENTWISE, *ACTIVATIONS]

# name → (what we refuse on purpose, whether a sample asks for it). The table in docs/deviations.md lists the same names.
DEVIATIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {}
