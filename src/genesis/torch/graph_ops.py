"""Forms of conv_bn_relu that only compiled graphs have: eager code reaches the same kernels without them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from genesis.records import ConvGeometry, NormState, SavedConvNorm
from genesis.torch.bridge import call
from genesis.torch.opaque import define, laid_out
from genesis.torch.ops import _shapes_backward, conv_bn_relu_inference

_GEOMETRY = "int[2] stride, int[2] padding, int[2] dilation, int groups, str? activation"


# --- inference, the norm folded into the weight ---
def _inference(*args: Any) -> Tensor:
    input, weight, bias, gamma, beta, mean, var, residual, eps, stride, padding, dilation, groups, activation = args
    norm = NormState(gamma, beta, mean, var)
    geometry = ConvGeometry(tuple(stride), tuple(padding), tuple(dilation), groups)
    y = conv_bn_relu_inference(input, weight, bias, norm, residual, eps, geometry, activation)
    return laid_out(y, _shapes_inference(*args))


def _shapes_inference(input: Tensor, weight: Tensor, *args: Any) -> Tensor:
    """Promise the result of _inference, without values."""
    stride, padding, dilation = args[-5:-2]
    sizes = [
        (input.shape[2 + i] + 2 * padding[i] - dilation[i] * (weight.shape[2 + i] - 1) - 1) // stride[i] + 1
        for i in (0, 1)
    ]
    shape = (input.shape[0], weight.shape[0], *sizes)
    return torch.empty(shape, dtype=input.dtype, device=input.device, memory_format=torch.channels_last)


define(
    "conv_bn_relu_inference(Tensor input, Tensor weight, Tensor? bias, Tensor? gamma, Tensor? beta, "
    f"Tensor running_mean, Tensor running_var, Tensor? residual, float eps, {_GEOMETRY}) -> Tensor",
    _inference,
    _shapes_inference,
)


# --- backward, adding another gradient of the input ---
def _backward_add(addend: Tensor, grad: Tensor, *args: Any) -> list[Tensor]:
    """Gradients of input, weight, bias, gamma, beta, residual, that of the input with addend; empty: not wanted."""
    *saved, passed, training, stride, padding, dilation, groups, activation, needs = args
    geometry = ConvGeometry(tuple(stride), tuple(padding), tuple(dilation), groups)
    tensors: SavedConvNorm[Tensor] = SavedConvNorm(*(*saved, passed if passed.numel() else None))
    options = (training, geometry, activation, tuple(needs), False, addend)
    grads = call("conv_bn_relu_backward", grad, tensors, *options)
    promised = _shapes_backward(grad, *args)
    return [like if x is None else laid_out(x, like) for x, like in zip(grads, promised, strict=True)]


def _shapes_backward_add(_: Tensor, grad: Tensor, *args: Any) -> list[Tensor]:
    return _shapes_backward(grad, *args)


define(
    "conv_bn_relu_backward_add(Tensor addend, Tensor grad, Tensor input, Tensor weight, Tensor? bias, Tensor? gamma, "
    "Tensor? beta, Tensor mean, Tensor inverse_std, Tensor kept, Tensor passed, bool training, "
    f"{_GEOMETRY}, bool[] needs) -> Tensor[]",
    _backward_add,
    _shapes_backward_add,
)
