"""Convolution on oneDNN: channels-last in memory, so that consecutive layers need no reordering."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genesis.backends.contract import Pair, Shape
from genesis.backends.cpu import batchnorm, columns, winograd
from genesis.backends.cpu.winograd import WinogradWeight

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn


def conv_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    return torch.conv2d(_channels_last(input), weight, bias, stride, padding, dilation, groups)


def conv_input_grad(
    grad: Tensor, weight: Tensor, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int,
    bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    geometry = (stride, padding, dilation, groups)
    wide = _accumulator(grad.dtype, dilation)
    if wide is not grad.dtype:
        wide_bias = None if bias is None else bias.to(wide)
        return conv_input_grad(grad.to(wide), weight.to(wide), input_shape, *geometry, wide_bias).to(grad.dtype)
    grad = _channels_last(grad)
    if bias is not None:
        extra = open_sizes(grad.shape, weight.shape, input_shape, stride, padding, dilation)
        return torch.conv_transpose2d(grad, weight, bias, stride, padding, extra, groups, dilation)
    # Its values don't count, but its order in memory becomes that of the result.
    input = torch.empty(input_shape, dtype=wide, memory_format=torch.channels_last)
    options = (None, stride, padding, dilation, False, (0, 0), groups, (True, False, False))
    return aten.convolution_backward(grad, input, weight, *options)[0]


def open_sizes(
    grad_shape: Shape, weight_shape: Shape, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair
) -> list[int]:
    """What the stride leaves open of the size of a transposed convolution's result."""
    return [
        size - ((n - 1) * s - 2 * p + d * (k - 1) + 1)
        for size, n, k, s, p, d in zip(
            input_shape[2:], grad_shape[2:], weight_shape[2:], stride, padding, dilation, strict=True
        )
    ]


def conv_weight_grad(
    grad: Tensor, input: Tensor, weight_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    if columns.pays(grad, weight_shape, groups):
        return columns.weight_grad(_channels_last(grad), _channels_last(input), weight_shape, stride, padding, dilation)
    wide = _accumulator(grad.dtype, dilation)
    if wide is not grad.dtype:
        geometry = (stride, padding, dilation, groups)
        return conv_weight_grad(grad.to(wide), input.to(wide), weight_shape, *geometry).to(grad.dtype)
    # Its values don't count, but its order in memory becomes that of the result, as the layers' own weights have it.
    weight = torch.empty(weight_shape, dtype=wide, memory_format=torch.channels_last)
    options = (None, stride, padding, dilation, False, (0, 0), groups, (False, True, False))
    return aten.convolution_backward(_channels_last(grad), _channels_last(input), weight, *options)[1]


def _accumulator(dtype: torch.dtype, dilation: Pair) -> torch.dtype:
    """The dtype to compute in: torch's own kernels, which take what oneDNN doesn't, add up 16-bit floats in 16 bits."""
    beyond_onednn = dtype is torch.float16 or (dtype is torch.bfloat16 and dilation != (1, 1))
    return torch.float32 if beyond_onednn else dtype


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def conv_bn_relu(
    input: Tensor, weight: Tensor, bias: Tensor | None, gamma: Tensor | None, beta: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None, residual: Tensor | None, training: bool, momentum: float,
    eps: float, stride: Pair, padding: Pair, dilation: Pair, groups: int, activation: str | None,
    count: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    if training and count is not None:
        count.add_(1)
    conv_output = conv_forward(input, weight, bias, stride, padding, dilation, groups)
    y, mean, inverse_std = batchnorm.normalize(
        conv_output, gamma, beta, running_mean, running_var, training, momentum, eps
    )
    if residual is not None:
        y.add_(residual)
    if activation is None:
        return y, mean, inverse_std, conv_output, None
    return (
        y.relu_(),
        mean,
        inverse_std,
        conv_output,
        y,
    )  # which the layer that takes y in keeps too: no memory of its own


def conv_bn_begin(
    input: Tensor, weight: Tensor, bias: Tensor | None, gamma: Tensor | None, beta: Tensor | None,
    running_mean: Tensor | None, running_var: Tensor | None, training: bool, momentum: float, eps: float,
    stride: Pair, padding: Pair, dilation: Pair, groups: int, count: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    if training and count is not None:
        count.add_(1)
    conv_output = conv_forward(input, weight, bias, stride, padding, dilation, groups)
    y, mean, inverse_std = batchnorm.normalize(
        conv_output, gamma, beta, running_mean, running_var, training, momentum, eps
    )
    return mean, inverse_std, conv_output, y


def conv_bn_finish(
    input: Tensor, weight: Tensor | None, gamma: Tensor | None, beta: Tensor | None, running_mean: Tensor | None,
    running_var: Tensor | None, mean: Tensor | None, inverse_std: Tensor | None, kept: Tensor,
    normalized: Tensor | None, residual: Tensor | None, eps: float, activation: str | None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None]:  # fmt: skip
    if normalized is None:
        assert inverse_std is not None
        var = inverse_std.reciprocal().square()  # of which, with eps 0, the same inverse deviation comes
        normalized, _, _ = batchnorm.normalize(kept, gamma, beta, mean, var, False, 0.0, 0.0)
    y = normalized.clone() if residual is None else normalized.add(residual)
    return (y, mean, inverse_std, kept, None) if activation is None else (y.relu_(), mean, inverse_std, kept, y)


def conv_bn_relu_backward(
    grad: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None, gamma: Tensor | None, beta: Tensor | None,
    mean: Tensor, inverse_std: Tensor, conv_output: Tensor, passed: Tensor | None, training: bool, stride: Pair,
    padding: Pair, dilation: Pair, groups: int, activation: str | None, needs: tuple[bool, ...],
    may_overwrite: bool = False, addend: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    needs_input, needs_weight, needs_bias, needs_gamma, needs_beta, needs_residual = needs
    if passed is not None and may_overwrite and grad.stride() == passed.stride():
        aten.threshold_backward.grad_input(grad, passed, 0, grad_input=grad)  # no further memory to go through
    elif passed is not None:
        grad, may_overwrite = aten.threshold_backward(grad, passed, 0), True
    grad_residual = grad if needs_residual else None
    # In eval mode torch wants running statistics; with eps 0 these give the same mean and inverse deviation.
    running = (None, None) if training else (mean, inverse_std.reciprocal().square())
    needs_conv = needs_input or needs_weight or needs_bias
    grad_conv, grad_gamma, grad_beta = aten.native_batch_norm_backward(
        grad, conv_output, gamma, *running, mean, inverse_std, training, 0.0, (needs_conv, needs_gamma, needs_beta)
    )
    if may_overwrite and not needs_residual:
        grad.set_()  # gives its memory back, which is still in the cache, for grad_input to take
    grad_input = grad_weight = grad_bias = None
    if needs_weight and columns.pays(grad_conv, weight.shape, groups):
        geometry = (stride, padding, dilation)
        grad_weight = columns.weight_grad(_channels_last(grad_conv), _channels_last(input), weight.shape, *geometry)
        needs_weight = False
    if needs_input or needs_weight or needs_bias:
        bias_sizes = (weight.shape[0],) if needs_bias else None
        grad_input, direct, grad_bias = aten.convolution_backward(
            grad_conv, _channels_last(input), weight, bias_sizes, stride, padding, dilation, False, (0, 0), groups,
            (needs_input, needs_weight, needs_bias),
        )  # fmt: skip
        grad_weight = direct if needs_weight else grad_weight
    if needs_input and addend is not None:
        grad_input.add_(addend)  # type: ignore[union-attr]
    return grad_input, grad_weight, grad_bias, grad_gamma, grad_beta, grad_residual


@dataclass(frozen=True)
class PackedWeight:
    """A weight in oneDNN's own blocked layout, or in Winograd's where that is faster, and what a convolution with it
    needs to know."""

    weight: Tensor
    winograd: WinogradWeight | None
    bias: Tensor | None
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int


def conv_prepack(
    weight: Tensor, bias: Tensor | None, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> PackedWeight:
    tiles = None
    if winograd.pays(weight, input_shape, stride, padding, dilation, groups):
        tiles = winograd.pack(weight, bias, input_shape, padding, dilation)  # weight stays as it is for other shapes
    elif weight.dtype is torch.float32:
        weight = mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups, input_shape)
    return PackedWeight(weight, tiles, bias, stride, padding, dilation, groups)


def conv_prepacked(input: Tensor, packed: PackedWeight, residual: Tensor | None, activation: str | None) -> Tensor:
    p = packed
    input = _channels_last(input)
    if not p.weight.is_mkldnn:
        if p.winograd is not None and input.shape == p.winograd.input_shape:
            y = winograd.convolve(input, p.winograd)
        else:
            y = torch.conv2d(input, p.weight, p.bias, p.stride, p.padding, p.dilation, p.groups)
        y = y if residual is None else y.add_(residual)
        return y.relu_() if activation == "relu" else y
    geometry = (p.padding, p.stride, p.dilation, p.groups)
    if residual is None:
        attribute = "relu" if activation == "relu" else "none"
        return mkldnn._convolution_pointwise(input, p.weight, p.bias, *geometry, attribute, [], "")
    unary = "relu" if activation == "relu" else None
    return mkldnn._convolution_pointwise.binary(
        input, _channels_last(residual), p.weight, p.bias, *geometry, "add", 1.0, unary, [], ""
    )
