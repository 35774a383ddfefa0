"""Activations and their backwards; softmax and log_softmax are in softmax.py."""

# ruff: noqa: E501, E704  (one line per op reads best)
# fmt: off
from __future__ import annotations

from genesis.backends.cuda.ops.activation.kernels import activation as kernels
from genesis.backends.cuda.ops.pointwise.launch import apply
from genesis.backends.cuda.runtime.array import DeviceArray, require_float, require_numbers


def relu(x: DeviceArray) -> DeviceArray: return apply(kernels._relu_kernel, require_numbers("relu", x))
def relu_backward(grad: DeviceArray, y: DeviceArray) -> DeviceArray: return apply(kernels._relu_backward_kernel, grad, y)
def leaky_relu(x: DeviceArray, negative_slope: float) -> DeviceArray: return apply(kernels._leaky_relu_kernel, _floats("leaky_relu", x), negative_slope)
def leaky_relu_backward(grad: DeviceArray, x: DeviceArray, negative_slope: float) -> DeviceArray: return apply(kernels._leaky_relu_backward_kernel, grad, x, negative_slope)
def elu(x: DeviceArray, alpha: float) -> DeviceArray: return apply(kernels._elu_kernel, _floats("elu", x), alpha)
def elu_backward(grad: DeviceArray, x: DeviceArray, alpha: float) -> DeviceArray: return apply(kernels._elu_backward_kernel, grad, x, alpha)
def silu(x: DeviceArray) -> DeviceArray: return apply(kernels._silu_kernel, x, floats_only=True)
def silu_backward(grad: DeviceArray, x: DeviceArray) -> DeviceArray: return apply(kernels._silu_backward_kernel, grad, x)
def softplus(x: DeviceArray, beta: float, threshold: float) -> DeviceArray: return apply(kernels._softplus_kernel, _floats("softplus", x), beta, threshold)
def softplus_backward(grad: DeviceArray, x: DeviceArray, beta: float, threshold: float) -> DeviceArray: return apply(kernels._softplus_backward_kernel, grad, x, beta, threshold)
def hardswish(x: DeviceArray) -> DeviceArray: return apply(kernels._hardswish_kernel, x, floats_only=True)
def hardswish_backward(grad: DeviceArray, x: DeviceArray) -> DeviceArray: return apply(kernels._hardswish_backward_kernel, grad, x)
def hardsigmoid(x: DeviceArray) -> DeviceArray: return apply(kernels._hardsigmoid_kernel, x, floats_only=True)
def hardsigmoid_backward(grad: DeviceArray, x: DeviceArray) -> DeviceArray: return apply(kernels._hardsigmoid_backward_kernel, grad, x)
def sigmoid_backward(grad: DeviceArray, y: DeviceArray) -> DeviceArray: return apply(kernels._sigmoid_backward_kernel, grad, y)
def tanh_backward(grad: DeviceArray, y: DeviceArray) -> DeviceArray: return apply(kernels._tanh_backward_kernel, grad, y)


def gelu(x: DeviceArray, approximate: str) -> DeviceArray:
    if approximate == "tanh":
        return apply(kernels._gelu_tanh_kernel, x, floats_only=True)
    return apply(kernels._gelu_16_bit_kernel if x.dtype.itemsize == 2 else kernels._gelu_kernel, x, floats_only=True)


def gelu_backward(grad: DeviceArray, x: DeviceArray, approximate: str) -> DeviceArray:
    if approximate == "tanh":
        return apply(kernels._gelu_tanh_backward_kernel, grad, x)
    return apply(kernels._gelu_16_bit_backward_kernel if x.dtype.itemsize == 2 else kernels._gelu_backward_kernel, grad, x)


def _floats(op: str, x: DeviceArray) -> DeviceArray:
    """x, where apply() cannot tell by the operands' common dtype: its other operands are floats."""
    require_float(op, x.dtype)
    return x
