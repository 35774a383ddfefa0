"""Activations and their gradients: torch's kernels, called without its autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

aten = torch.ops.aten


def relu(x: Tensor) -> Tensor:
    return torch.relu(x)


def relu_backward(grad: Tensor, y: Tensor) -> Tensor:
    return aten.threshold_backward(grad, y, 0)


def leaky_relu(x: Tensor, negative_slope: float) -> Tensor:
    return F.leaky_relu(x, negative_slope)


def leaky_relu_backward(grad: Tensor, x: Tensor, negative_slope: float) -> Tensor:
    return aten.leaky_relu_backward(grad, x, negative_slope, False)


def elu(x: Tensor, alpha: float) -> Tensor:
    return F.elu(x, alpha)


def elu_backward(grad: Tensor, x: Tensor, alpha: float) -> Tensor:
    return aten.elu_backward(grad, alpha, 1, 1, False, x)


def gelu(x: Tensor, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


def gelu_backward(grad: Tensor, x: Tensor, approximate: str) -> Tensor:
    return aten.gelu_backward(grad, x, approximate=approximate)


def silu(x: Tensor) -> Tensor:
    return F.silu(x)


def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    return aten.silu_backward(grad, x)


def softplus(x: Tensor, beta: float, threshold: float) -> Tensor:
    return F.softplus(x, beta, threshold)


def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    return aten.softplus_backward(grad, x, beta, threshold)


def hardswish(x: Tensor) -> Tensor:
    return F.hardswish(x)


def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return aten.hardswish_backward(grad, x)


def hardsigmoid(x: Tensor) -> Tensor:
    return F.hardsigmoid(x)


def hardsigmoid_backward(grad: Tensor, x: Tensor) -> Tensor:
    return aten.hardsigmoid_backward(grad, x)


def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    return aten.sigmoid_backward(grad, y)


def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    return aten.tanh_backward(grad, y)


def softmax(x: Tensor, dim: int) -> Tensor:
    return torch.softmax(x, dim)


def softmax_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return aten._softmax_backward_data(grad, y, dim, y.dtype)


def log_softmax(x: Tensor, dim: int) -> Tensor:
    return torch.log_softmax(x, dim)


def log_softmax_backward(grad: Tensor, y: Tensor, dim: int) -> Tensor:
    return aten._log_softmax_backward_data(grad, y, dim, y.dtype)
