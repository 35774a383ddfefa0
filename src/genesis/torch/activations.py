"""PyTorch's activations by the names that the fused op knows: functions, methods and layers, read and applied."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genesis import activations

# A reader takes a call's arguments after the input, and returns the activation, or None if the op does not know it.
Reader = Callable[..., str | None]


def _named(name: str) -> Reader:
    """Of functions that take nothing, or whether to work in place."""
    return lambda inplace=False: name


def _numbered(name: str, usual: float) -> Reader:
    def read(number: Any = usual, inplace: bool = False, **named: Any) -> str | None:
        number = named.get("negative_slope", named.get("alpha", number))
        if type(number) not in (int, float) or not math.isfinite(number):
            return None
        return f"{name}({float(number)!r})"

    return read


def _hardtanh(min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False) -> str | None:
    limits = (min_val, max_val)
    return "relu6" if {type(each) for each in limits} <= {int, float} and limits == (0, 6) else None


def _gelu(approximate: str = "none") -> str | None:
    return {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate)


IN_PLACE: dict[object, Reader] = {
    **dict.fromkeys((torch.relu_, F.relu_, Tensor.relu_), _named("relu")),
    **dict.fromkeys((torch.sigmoid_, Tensor.sigmoid_), _named("sigmoid")),
    **dict.fromkeys((torch.tanh_, Tensor.tanh_), _named("tanh")),
    F.leaky_relu_: _numbered("leaky_relu", 0.01),
    F.elu_: _numbered("elu", 1.0),
    F.hardtanh_: _hardtanh,
}
READERS: dict[object, Reader] = {
    **IN_PLACE,
    **dict.fromkeys((torch.relu, F.relu, Tensor.relu), _named("relu")),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, Tensor.sigmoid, torch.special.expit), _named("sigmoid")),
    **dict.fromkeys((torch.tanh, F.tanh, Tensor.tanh), _named("tanh")),
    F.relu6: _named("relu6"),
    F.hardtanh: _hardtanh,
    F.leaky_relu: _numbered("leaky_relu", 0.01),
    F.elu: _numbered("elu", 1.0),
    F.silu: _named("silu"),
    F.mish: _named("mish"),
    F.gelu: _gelu,
    F.hardswish: _named("hardswish"),
    F.hardsigmoid: _named("hardsigmoid"),
}
"""Of functions and methods that activate their first argument."""

METHODS: dict[str, Reader] = {
    name: _named(name.rstrip("_")) for name in ("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_")
}


def read(reader: Reader, args: tuple[object, ...], kwargs: dict[str, object]) -> str | None:
    """The activation of a call with these arguments after the input; None if it is none that the op knows."""
    try:
        return reader(*args, **kwargs)
    except TypeError:  # PyTorch's to say
        return None


def of_layer(layer: nn.Module) -> str | None:
    """The activation of a layer of PyTorch's own."""
    reader = LAYERS.get(type(layer))
    return None if reader is None else reader(layer)


LAYERS: dict[type[nn.Module], Callable[[Any], str | None]] = {
    nn.ReLU: lambda layer: "relu",
    nn.ReLU6: lambda layer: _hardtanh(layer.min_val, layer.max_val),
    nn.Hardtanh: lambda layer: _hardtanh(layer.min_val, layer.max_val),
    nn.LeakyReLU: lambda layer: _numbered("leaky_relu", 0.01)(layer.negative_slope),
    nn.ELU: lambda layer: _numbered("elu", 1.0)(layer.alpha),
    nn.SiLU: lambda layer: "silu",
    nn.Mish: lambda layer: "mish",
    nn.GELU: lambda layer: _gelu(layer.approximate),
    nn.Hardswish: lambda layer: "hardswish",
    nn.Hardsigmoid: lambda layer: "hardsigmoid",
    nn.Sigmoid: lambda layer: "sigmoid",
    nn.Tanh: lambda layer: "tanh",
}

_MODULES: dict[str, Callable[[float], nn.Module]] = {
    "relu": lambda _: nn.ReLU(), "relu6": lambda _: nn.ReLU6(), "leaky_relu": nn.LeakyReLU, "elu": nn.ELU,
    "silu": lambda _: nn.SiLU(), "mish": lambda _: nn.Mish(), "gelu": lambda _: nn.GELU(),
    "gelu_tanh": lambda _: nn.GELU("tanh"), "hardswish": lambda _: nn.Hardswish(),
    "hardsigmoid": lambda _: nn.Hardsigmoid(), "sigmoid": lambda _: nn.Sigmoid(), "tanh": lambda _: nn.Tanh(),
}  # fmt: skip


@functools.lru_cache(256)
def layer(activation: str) -> nn.Module:
    """A layer that applies an activation."""
    return new_layer(activation)


def new_layer(activation: str) -> nn.Module:
    name, number = activations.parse(activation)
    return _MODULES[name](0.0 if number is None else number)


def apply(y: Tensor, activation: str | None) -> Tensor:
    """activation(y), by PyTorch."""
    if activation is None:
        return y
    return y.relu() if activation == "relu" else layer(activation)(y)
