"""Which of OpInfo's ops belong to the public surface, which dtypes they are tried in, and where we deviate on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

ELEMENTWISE = ["add", "sub", "mul", "div", "pow", "neg", "abs", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "square", "reciprocal", "sign", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil", "round", "clamp", "maximum", "minimum", "where", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and", "logical_or", "logical_not"]

ACTIVATIONS = [
    "nn.functional." + name
    for name in ["relu", "leaky_relu", "relu6", "elu", "gelu", "silu", "softplus", "hardswish", "hardsigmoid"]
] + ["softmax", "log_softmax"]

CONVOLUTION = ["nn.functional." + name for name in ["conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"]]

NORM = ["nn.functional." + name for name in ["batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"]]

POOLING = [
    "nn.functional." + name
    for name in ["max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d"]
]

IMAGE = ["nn.functional." + name for name in ["interpolate", "pad", "pixel_shuffle", "pixel_unshuffle"]]

NEURAL = [*CONVOLUTION, *NORM, *POOLING, *IMAGE]

ALL_DTYPES = {*ELEMENTWISE, *CONVOLUTION, *NORM}  # also float64, bfloat16 and float16
NAMES = [*ELEMENTWISE, *ACTIVATIONS, *NEURAL]

# name → (what we refuse on purpose, whether a sample asks for it). The table in docs/deviations.md lists the same names.
DEVIATIONS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    # --- neural networks ---
    "nn.functional.conv1d": ("complex dtypes", lambda sample: _has_complex(sample)),
    "nn.functional.conv2d": ("complex dtypes", lambda sample: _has_complex(sample)),
    "nn.functional.batch_norm": ("a 1-d input, which has no channels", lambda sample: sample.input.ndim < 2),
}


def _has_complex(sample: Any) -> bool:
    return any(isinstance(arg, torch.Tensor) and arg.is_complex() for arg in (sample.input, *sample.args))
