"""Floating-point operations of an op, from its arguments: two for each product of a sum."""

from __future__ import annotations

import math
from typing import Any


def matmul(x: Any, y: Any) -> int:
    batch = max(math.prod(x.shape[:-2]), math.prod(y.shape[:-2]))
    return 2 * batch * math.prod(x.shape[-2:]) * y.shape[-1]


def linear(x: Any, weight: Any, *_: Any) -> int:
    return 2 * math.prod(x.shape) * weight.shape[0]


def conv_forward(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, *_: Any) -> int:
    sizes = zip(input.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    plane = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in sizes]
    return 2 * input.shape[0] * math.prod(plane) * math.prod(weight.shape)


def conv_input_grad(grad: Any, weight: Any, *_: Any) -> int:
    return _per_output(grad) * math.prod(weight.shape)


def conv_weight_grad(grad: Any, input: Any, weight_shape: Any, *_: Any) -> int:
    return _per_output(grad) * math.prod(weight_shape)


def conv_bn_relu(input: Any, weight: Any, *args: Any) -> int:
    stride, padding, dilation = args[9:12]
    return conv_forward(input, weight, None, stride, padding, dilation)


def conv_bn_relu_backward(grad: Any, input: Any, weight: Any, *args: Any) -> int:
    needs_input, needs_weight, *_ = args[13]
    return (needs_input + needs_weight) * _per_output(grad) * math.prod(weight.shape)


def _per_output(grad: Any) -> int:
    return 2 * grad.shape[0] * math.prod(grad.shape[2:])  # the channels are counted with the weight
