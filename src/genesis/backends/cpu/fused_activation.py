"""Activations at the end of a fused op: torch's kernels, in place where the result is enough for the backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from genesis import activations

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn


class _Kernels(NamedTuple):
    """An activation by torch.

    Attributes:
        forward: (x, number) → y; in place if the derivative is known by y.
        backward: (grad, y if the derivative is known by it, else x, number) → the gradient of x.
        pointwise: (number) → name, numbers and algorithm of it as oneDNN applies it after a convolution. None where it
            would compare by the processor's max and min, which make a number of a NaN: of ReLU, ReLU6 and Hardsigmoid.
    """

    forward: Callable[[Tensor, float], Tensor]
    backward: Callable[[Tensor, Tensor, float], Tensor]
    pointwise: Callable[[float], tuple[str, list[float], str]] | None = None


_KERNELS = {
    "relu": _Kernels(lambda x, _: x.relu_(), lambda grad, y, _: aten.threshold_backward(grad, y, 0)),
    "relu6": _Kernels(
        lambda x, _: F.hardtanh_(x, 0.0, 6.0), lambda grad, y, _: aten.hardtanh_backward(grad, y, 0.0, 6.0)
    ),
    "leaky_relu": _Kernels(
        lambda x, slope: F.leaky_relu_(x, slope) if slope > 0.0 else F.leaky_relu(x, slope),
        lambda grad, xy, slope: aten.leaky_relu_backward(grad, xy, slope, slope > 0.0),
        lambda slope: ("leaky_relu", [slope], ""),
    ),
    "elu": _Kernels(
        lambda x, alpha: F.elu(x, alpha), lambda grad, x, alpha: aten.elu_backward(grad, alpha, 1, 1, False, x)
    ),
    "silu": _Kernels(lambda x, _: F.silu(x), lambda grad, x, _: aten.silu_backward(grad, x)),
    "mish": _Kernels(lambda x, _: F.mish(x), lambda grad, x, _: aten.mish_backward(grad, x)),
    "gelu": _Kernels(lambda x, _: F.gelu(x), lambda grad, x, _: aten.gelu_backward(grad, x)),
    "gelu_tanh": _Kernels(
        lambda x, _: F.gelu(x, approximate="tanh"), lambda grad, x, _: aten.gelu_backward(grad, x, approximate="tanh")
    ),
    "hardswish": _Kernels(
        lambda x, _: F.hardswish(x), lambda grad, x, _: aten.hardswish_backward(grad, x),
        pointwise=lambda _: ("hardswish", [], ""),
    ),
    "hardsigmoid": _Kernels(lambda x, _: F.hardsigmoid(x), lambda grad, x, _: aten.hardsigmoid_backward(grad, x)),
    "sigmoid": _Kernels(lambda x, _: x.sigmoid_(), lambda grad, y, _: aten.sigmoid_backward(grad, y)),
    "tanh": _Kernels(lambda x, _: x.tanh_(), lambda grad, y, _: aten.tanh_backward(grad, y)),
}  # fmt: skip
_IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {  # beside those of _KERNELS that are so themselves
    "silu": lambda x: F.silu(x, inplace=True),
    "mish": lambda x: F.mish(x, inplace=True),
    "hardswish": lambda x: F.hardswish(x, inplace=True),
    "hardsigmoid": lambda x: F.hardsigmoid(x, inplace=True),
}
_NONE: tuple[str, list[float], str] = ("none", [], "")


def apply(x: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """y, and what apply_backward() wants: y, whose memory was x's, or x."""
    if activation == "relu":
        return x.relu_(), x
    kernels, number = _find(activation)
    y = kernels.forward(x, number)
    return y, y if activations.is_known_by_result(activation) else x


def apply_in_place(x: Tensor, activation: str) -> Tensor:
    """y in x's memory, where torch can: of a result that no backward asks for."""
    name, _, _ = activation.partition("(")
    in_place = _IN_PLACE.get(name)
    return apply(x, activation)[0] if in_place is None else in_place(x)


def apply_to_kept(x: Tensor, activation: str) -> Tensor:
    """y, in new memory."""
    kernels, number = _find(activation)
    return kernels.forward(x.clone() if activations.is_known_by_result(activation) else x, number)


def apply_backward(grad: Tensor, passed: Tensor, activation: str) -> Tensor:
    """The gradient of x; passed: what apply() gave, or x itself, but of sigmoid and tanh."""
    kernels, number = _find(activation)
    return kernels.backward(grad, passed, number)


def pointwise(activation: str | None) -> tuple[tuple[str, list[float], str], str | None]:
    """Return what oneDNN applies after a convolution, as it is given to its ops, and the activation that is left."""
    if activation is None:
        return _NONE, None
    kernels, number = _find(activation)
    return (_NONE, activation) if kernels.pointwise is None else (kernels.pointwise(number), None)


def _find(activation: str) -> tuple[_Kernels, float]:
    name, number = activations.parse(activation)
    return _KERNELS[name], 0.0 if number is None else number
