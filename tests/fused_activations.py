"""The activations of the fused ops, each by PyTorch's own function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "leaky_relu(0.2)": partial(F.leaky_relu, negative_slope=0.2),
    "leaky_relu(-0.5)": partial(F.leaky_relu, negative_slope=-0.5),  # the sign of the result says nothing
    "elu(0.7)": partial(F.elu, alpha=0.7),
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "hardswish": F.hardswish,
    "hardsigmoid": lambda x: F.relu6(x + 3) / 6,  # F.hardsigmoid's gradient is 1/6 of float32, in float64 too
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def activated(x: Tensor, activation: str | None) -> Tensor:
    return x if activation is None else FUNCTIONS[activation](x)
