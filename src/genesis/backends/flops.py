"""Floating-point operations of an op, from its arguments: two for each product of a sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from genesis.records import ConvGeometry, RecurrentLayer, SavedConvNorm
from genesis.shapes import Shape


class Shaped(Protocol):
    @property
    def shape(self) -> Shape: ...


def matmul(x: Shaped, y: Shaped) -> int:
    batch = max(math.prod(x.shape[:-2]), math.prod(y.shape[:-2]))
    return 2 * batch * math.prod(x.shape[-2:]) * y.shape[-1]


def linear(x: Shaped, weight: Shaped, *_: object) -> int:
    return 2 * math.prod(x.shape) * weight.shape[0]


def conv_forward(input: Shaped, weight: Shaped, bias: object, geometry: ConvGeometry) -> int:
    sizes = zip(input.shape[2:], weight.shape[2:], *geometry[:3], strict=True)
    plane = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes]
    return 2 * input.shape[0] * math.prod(plane) * math.prod(weight.shape)


def conv_input_grad(grad: Shaped, weight: Shaped, *_: object) -> int:
    return _per_output(grad) * math.prod(weight.shape)


def conv_weight_grad(grad: Shaped, input: Shaped, weight_shape: Shape, *_: object) -> int:
    return _per_output(grad) * math.prod(weight_shape)


def conv_bn_relu(
    input: Shaped, weight: Shaped, bias: object, norm: object, residual: object, options: object,
    geometry: ConvGeometry, activation: object,
) -> int:  # fmt: skip
    return conv_forward(input, weight, bias, geometry)


def conv_bn_relu_backward(
    grad: Shaped, saved: SavedConvNorm[Shaped], training: bool, geometry: object, activation: object,
    needs: tuple[bool, ...], *_: object,
) -> int:  # fmt: skip
    if saved.weight is None:
        return 0
    return (needs[0] + needs[1]) * _per_output(grad) * math.prod(saved.weight.shape)


def conv_act(input: Shaped, weight: Shaped, bias: object, geometry: ConvGeometry, *_: object) -> int:
    return conv_forward(input, weight, bias, geometry)


def conv_act_backward(
    grad: Shaped, input: object, weight: Shaped, kept: object, geometry: object, activation: object,
    needs: tuple[bool, ...], *_: object,
) -> int:  # fmt: skip
    return (needs[0] + needs[1]) * _per_output(grad) * math.prod(weight.shape)


def recurrent(
    input: Shaped, hidden: object, cell: object, weights: Sequence[Shaped], layer: RecurrentLayer, needs: object
) -> int:
    rows = math.prod(input.shape[:-1])
    return 2 * rows * sum([math.prod(weight.shape) for weight in weights if len(weight.shape) == 2])


def _per_output(grad: Shaped) -> int:
    return 2 * grad.shape[0] * math.prod(grad.shape[2:])  # the channels are counted with the weight
