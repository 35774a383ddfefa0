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

Function = Callable[..., object]  # of PyTorch, as __torch_function__ gets it, or what handles its calls
# A reader takes a call's arguments after the input, and returns the activation and whether it works in place; None if
# the op does not know it.
Call = tuple[str, bool]
Reader = Callable[..., Call | None]


def _named(name: str) -> Reader:
    """Read the arguments of functions that take nothing, or whether to work in place."""
    return lambda inplace=False: (name, bool(inplace))


def _numbered(name: str, usual: float) -> Reader:
    def read(number: object = usual, inplace: bool = False) -> Call | None:
        if (
            (type(number) is not float and type(number) is not int)
            or not math.isfinite(number)
            or (inplace and number < 0)
        ):
            return None  # the last is refused by PyTorch's backward
        return f"{name}({float(number)!r})", bool(inplace)

    return read


def _leaky_relu(negative_slope: object = 0.01, inplace: bool = False) -> Call | None:
    return _numbered("leaky_relu", 0.01)(negative_slope, inplace)


def _elu(alpha: object = 1.0, inplace: bool = False) -> Call | None:
    return _numbered("elu", 1.0)(alpha, inplace)


def _hardtanh(min_val: object = -1.0, max_val: object = 1.0, inplace: bool = False) -> Call | None:
    limits = (min_val, max_val)
    fits = {type(each) for each in limits} <= {int, float} and limits == (0, 6)
    return ("relu6", bool(inplace)) if fits else None


def _gelu(approximate: str = "none") -> Call | None:
    name = {"none": "gelu", "tanh": "gelu_tanh"}.get(approximate)
    return None if name is None else (name, False)


READERS: dict[Function, Reader] = {
    **dict.fromkeys((torch.relu_, F.relu_, Tensor.relu_), lambda: ("relu", True)),
    **dict.fromkeys((torch.sigmoid_, Tensor.sigmoid_), lambda: ("sigmoid", True)),
    **dict.fromkeys((torch.tanh_, Tensor.tanh_), lambda: ("tanh", True)),
    F.leaky_relu_: lambda negative_slope=0.01: _leaky_relu(negative_slope, True),
    F.elu_: lambda alpha=1.0: _elu(alpha, True),
    F.hardtanh_: lambda min_val=-1.0, max_val=1.0: _hardtanh(min_val, max_val, True),
    **dict.fromkeys((torch.relu, F.relu, Tensor.relu), _named("relu")),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, Tensor.sigmoid, torch.special.expit), _named("sigmoid")),
    **dict.fromkeys((torch.tanh, F.tanh, Tensor.tanh), _named("tanh")),
    F.relu6: _named("relu6"),
    F.hardtanh: _hardtanh,
    F.leaky_relu: _leaky_relu,
    F.elu: _elu,
    F.silu: _named("silu"),
    F.mish: _named("mish"),
    F.gelu: _gelu,
    F.hardswish: _named("hardswish"),
    F.hardsigmoid: _named("hardsigmoid"),
}
"""Of functions and methods that activate their first argument."""

METHODS: dict[str, Reader] = {
    name: READERS[getattr(Tensor, name)] for name in ("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_")
}


def read(reader: Reader, args: tuple[object, ...], kwargs: dict[str, object]) -> Call | None:
    """The activation of a call with these arguments after the input, and whether it works in place."""
    try:
        return reader(*args, **kwargs)
    except TypeError:  # PyTorch's to say
        return None


def of_layer(layer: nn.Module) -> Call | None:
    """The activation of a layer of PyTorch's own, and whether it works in place."""
    reader = LAYERS.get(type(layer))
    return None if reader is None else reader(layer)


LAYERS: dict[type[nn.Module], Callable[[Any], Call | None]] = {
    nn.ReLU: lambda layer: ("relu", layer.inplace),
    nn.ReLU6: lambda layer: _hardtanh(layer.min_val, layer.max_val, layer.inplace),
    nn.Hardtanh: lambda layer: _hardtanh(layer.min_val, layer.max_val, layer.inplace),
    nn.LeakyReLU: lambda layer: _leaky_relu(layer.negative_slope, layer.inplace),
    nn.ELU: lambda layer: _elu(layer.alpha, layer.inplace),
    nn.SiLU: lambda layer: ("silu", layer.inplace),
    nn.Mish: lambda layer: ("mish", layer.inplace),
    nn.GELU: lambda layer: _gelu(layer.approximate),
    nn.Hardswish: lambda layer: ("hardswish", layer.inplace),
    nn.Hardsigmoid: lambda layer: ("hardsigmoid", layer.inplace),
    nn.Sigmoid: lambda layer: ("sigmoid", False),
    nn.Tanh: lambda layer: ("tanh", False),
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
