"""Convolution on oneDNN: channels-last in memory, so that consecutive layers need no reordering."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from genesis import activations
from genesis.backends.contract import Pair, Shape
from genesis.backends.cpu import batchnorm, fused_activation, packing, sums, weight_gradient, winograd
from genesis.backends.cpu.winograd import WinogradWeight
from genesis.backends.cpu.x86 import changing, micro
from genesis.backends.cpu.x86.packed import PackedConv, is_supported, readable
from genesis.precision import get_float32_precision
from genesis.records import BegunConvNorm, ConvGeometry, NormOptions, NormState, SavedConvNorm

aten = torch.ops.aten
mkldnn = torch.ops.mkldnn


def conv_forward(input: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry) -> Tensor:
    input = _channels_last(input)
    y = changing.forward(input, weight, bias, geometry, _by_onednn)
    if y is None and sums.are_long(weight.dtype, weight.shape[1], weight.shape[2:], geometry.stride):
        y = sums.forward(input, weight, bias, geometry)
    return torch.conv2d(input, weight, bias, *geometry) if y is None else y


def _by_onednn(input: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry) -> Tensor:
    """The rest of conv_forward(), for the tuner."""
    if sums.are_long(weight.dtype, weight.shape[1], weight.shape[2:], geometry.stride):
        return sums.forward(input, weight, bias, geometry)
    return torch.conv2d(input, weight, bias, *geometry)


def conv_input_grad(
    grad: Tensor, weight: Tensor, input_shape: Shape, geometry: ConvGeometry, bias: Tensor | None = None
) -> Tensor:
    if bias is None and grad.dtype is torch.float32 and grad.numel() and weight.numel():
        grad = _channels_last(grad)
        found = changing.input_grad(grad, weight, tuple(input_shape), geometry, input_grad_by_onednn)
        if found is not None:
            return found
    return input_grad_by_onednn(grad, weight, input_shape, geometry, bias)


def input_grad_by_onednn(
    grad: Tensor, weight: Tensor, input_shape: Shape, geometry: ConvGeometry, bias: Tensor | None = None
) -> Tensor:
    stride, padding, dilation, groups = geometry
    wide = _accumulator(grad.dtype, dilation)
    if grad.dtype.itemsize == 2 and _adds_windows_in(grad.dtype):
        wide = torch.float32
    if wide is not grad.dtype:
        wide_bias = None if bias is None else bias.to(wide)
        return conv_input_grad(grad.to(wide), weight.to(wide), input_shape, geometry, wide_bias).to(grad.dtype)
    if _has_long_input_grad(weight, stride, groups):
        grad_input = sums.input_grad(grad, weight, input_shape, geometry)
        return grad_input if bias is None else grad_input.add_(bias.view(-1, 1, 1))
    grad = _channels_last(grad)
    if bias is not None:
        extra = open_sizes(grad.shape, weight.shape, input_shape, stride, padding, dilation)
        return torch.conv_transpose2d(grad, weight, bias, stride, padding, extra, groups, dilation)
    # Its values don't count, but its order in memory becomes that of the result.
    input = torch.empty(input_shape, dtype=wide, memory_format=torch.channels_last)
    options = (None, stride, padding, dilation, False, (0, 0), groups, (True, False, False))
    return aten.convolution_backward(grad, input, weight, *options)[0]


@functools.cache
def _adds_windows_in(dtype: torch.dtype) -> bool:
    """Whether the processor's kernels accumulate overlapping windows in 16 bits; found by trial."""
    large = 2 / torch.finfo(dtype).eps  # plus 1, that is large again
    grad = torch.ones(1, 1, 3, 3, dtype=dtype)
    grad[0, 0, 1, 1] = large
    sums = torch.conv_transpose2d(_channels_last(grad), torch.ones(1, 1, 3, 3, dtype=dtype))
    return bool(sums[0, 0, 2, 2] != large + 8)


def _has_long_input_grad(weight: Tensor, stride: Pair, groups: int) -> bool:
    """With a stride, oneDNN takes the same kernel in any order of memory."""
    out_channels, _, *kernel = weight.shape
    return stride == (1, 1) and sums.are_long(weight.dtype, out_channels // groups, tuple(kernel), stride)


def open_sizes(
    grad_shape: Shape, weight_shape: Shape, input_shape: Shape, stride: Pair, padding: Pair, dilation: Pair
) -> list[int]:
    """The part of a transposed convolution's result size that the stride does not determine."""
    return [
        size - ((n - 1) * s - 2 * p + d * (k - 1) + 1)
        for size, n, k, s, p, d in zip(
            input_shape[2:], grad_shape[2:], weight_shape[2:], stride, padding, dilation, strict=True
        )
    ]


def conv_weight_grad(grad: Tensor, input: Tensor, weight_shape: Shape, geometry: ConvGeometry) -> Tensor:
    grad, input = _channels_last(grad), _channels_last(input)
    found = weight_gradient.compute(grad, input, weight_shape, geometry, _weight_grad_plain)
    return _weight_grad_plain(grad, input, weight_shape, geometry) if found is None else found


def _weight_grad_plain(grad: Tensor, input: Tensor, weight_shape: Shape, geometry: ConvGeometry) -> Tensor:
    """By oneDNN."""
    stride, padding, dilation, groups = geometry
    wide = _accumulator(grad.dtype, dilation)
    if wide is not grad.dtype:
        return _weight_grad_plain(grad.to(wide), input.to(wide), weight_shape, geometry).to(grad.dtype)
    input = _channels_last(input)
    if skips_pixels(weight_shape, stride, padding):
        input, stride = _channels_last(input[:, :, :: stride[0], :: stride[1]]), (1, 1)
    # Its values don't count, but its order in memory becomes that of the result, as the layers' own weights have it.
    weight = torch.empty(weight_shape, dtype=wide, memory_format=torch.channels_last)
    options = (None, stride, padding, dilation, False, (0, 0), groups, (False, True, False))
    return aten.convolution_backward(_channels_last(grad), input, weight, *options)[1]


def skips_pixels(weight_shape: Shape, stride: Pair, padding: Pair) -> bool:
    """Whether the kernel is 1×1 with a stride, and its channels don't fill oneDNN's blocks.

    For the weight's gradient, oneDNN gathers the pixels that such a kernel sees in whole blocks, and writes past its
    memory where an image's channels are fewer (github.com/uxlfoundation/oneDNN/issues/6035): they have to be gathered
    before.
    """
    _, in_channels, *kernel = weight_shape
    return math.prod(kernel) == 1 and max(stride) > 1 and not any(padding) and in_channels % 16 != 0


def _accumulator(dtype: torch.dtype, dilation: Pair) -> torch.dtype:
    """The dtype to compute in: torch's own kernels, which take what oneDNN doesn't, add up 16-bit floats in 16 bits."""
    beyond_onednn = dtype is torch.float16 or (dtype is torch.bfloat16 and dilation != (1, 1))
    return torch.float32 if beyond_onednn else dtype


def _channels_last(x: Tensor) -> Tensor:
    """x in NHWC. The stride of a dimension of size 1 may be any number, which a view changes: torch's weight gradient
    in groups is wrong for others than NHWC's (2.13, float64)."""
    x = x.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    strides = channels * height * width, 1, width * channels, channels
    return x if x.stride() == strides or not x.numel() else x.as_strided(x.shape, strides)


def conv_bn_relu(
    input: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], residual: Tensor | None,
    options: NormOptions, geometry: ConvGeometry, activation: str | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    if activation is None or activations.result_suffices(activation, residual is not None):
        known = (residual, activation)
        mean, inverse_std, conv_output, y = _normalized(input, weight, bias, norm, options, geometry, *known)
        return y, mean, inverse_std, conv_output, None if activation is None else y
    mean, inverse_std, conv_output, x = _normalized(input, weight, bias, norm, options, geometry, residual, None)
    return fused_activation.apply_to_kept(x, activation), mean, inverse_std, conv_output, x


def conv_bn_relu_inference(
    input: Tensor, weight: Tensor, bias: Tensor | None, norm: NormState[Tensor], residual: Tensor | None, eps: float,
    geometry: ConvGeometry, activation: str | None,
) -> Tensor:  # fmt: skip
    weight, bias = weight.to(input.dtype), None if bias is None else bias.to(input.dtype)
    options = NormOptions(training=False, momentum=0.0, eps=eps)
    return conv_bn_relu(input, weight, bias, norm, residual, options, geometry, activation)[0]


def conv_bn_begin(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, norm: NormState[Tensor], options: NormOptions,
    geometry: ConvGeometry,
) -> BegunConvNorm[Tensor]:  # fmt: skip
    return BegunConvNorm(*_normalized(input, weight, bias, norm, options, geometry, None, None))


def _normalized(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, norm: NormState[Tensor], options: NormOptions,
    geometry: ConvGeometry, residual: Tensor | None, activation: str | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Mean, inverse deviation, the convolution's output, and the norm's, with residual and activation."""
    if options.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    conv_output = input if weight is None else conv_forward(input, weight, bias, geometry)
    y, mean, inverse_std = batchnorm.normalize_and(conv_output, norm[:4], options[:], residual, activation)
    return mean, inverse_std, conv_output, y


def conv_bn_finish(
    input: Tensor, weight: Tensor | None, norm: NormState[Tensor], begun: BegunConvNorm[Tensor],
    residual: Tensor | None, eps: float, activation: str | None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor | None]:  # fmt: skip
    mean, inverse_std, kept, normalized = begun
    if normalized is None and inverse_std is None:
        options = (False, 0.0, eps)
        normalized, mean, inverse_std = batchnorm.normalize(kept, *norm[:4], *options)
    elif normalized is None:
        assert mean is not None
        assert inverse_std is not None
        normalized = _normalized_again(kept, norm.gamma, norm.beta, mean, inverse_std)
    x = normalized if residual is None else normalized.add(residual)
    if activation is None:
        return x if x is not normalized else x.clone(), mean, inverse_std, kept, None
    if not activations.result_suffices(activation, residual is not None):
        return fused_activation.apply_to_kept(x, activation), mean, inverse_std, kept, x
    y, passed = fused_activation.apply(x if x is not normalized else x.clone(), activation)
    return y, mean, inverse_std, kept, passed


def _normalized_again(
    conv_output: Tensor, gamma: Tensor | None, beta: Tensor | None, mean: Tensor, inverse_std: Tensor
) -> Tensor:
    """The norm's result, by statistics that are known."""
    var = inverse_std.reciprocal().square()  # of which, with eps 0, the same inverse deviation comes
    return batchnorm.normalize(conv_output, gamma, beta, mean, var, False, 0.0, 0.0)[0]


def conv_bn_relu_backward(
    grad: Tensor, saved: SavedConvNorm[Tensor], training: bool, geometry: ConvGeometry, activation: str | None,
    needs: tuple[bool, ...], may_overwrite: bool = False, addend: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    input, weight, _, gamma, beta, mean, inverse_std, conv_output, passed = saved
    needs_input, needs_weight, needs_bias, needs_gamma, needs_beta, needs_residual = needs
    if activation is not None and passed is None:  # it was y, which has been changed; no residual was added
        passed = _normalized_again(conv_output, gamma, beta, mean, inverse_std)
    is_alike = passed is not None and may_overwrite and grad.stride() == passed.stride()
    if activation in ("relu", "relu6") and is_alike:  # no further memory to go through
        if activation == "relu":
            aten.threshold_backward.grad_input(grad, passed, 0, grad_input=grad)
        else:
            aten.hardtanh_backward.grad_input(grad, passed, 0.0, 6.0, grad_input=grad)
    elif activation is not None and passed is not None:
        grad, may_overwrite = fused_activation.apply_backward(grad, passed, activation), True
    grad_residual = grad if needs_residual else None
    grad_conv, grad_gamma, grad_beta = batchnorm.backward(
        grad, conv_output, gamma, mean, inverse_std, training,
        (needs_input or needs_weight or needs_bias, needs_gamma, needs_beta),
    )  # fmt: skip
    if weight is None:
        grad_input = grad_conv if grad_conv is None or addend is None else grad_conv.add_(addend)
        return grad_input, None, None, grad_gamma, grad_beta, grad_residual
    if may_overwrite and not needs_residual:
        grad.set_()  # gives its memory back, which is still in the cache, for grad_input to take
    of_conv = conv_gradients(grad_conv, input, weight, geometry, (needs_input, needs_weight, needs_bias), addend)
    return *of_conv, grad_gamma, grad_beta, grad_residual


def conv_gradients(
    grad_conv: Tensor | None, input: Tensor, weight: Tensor, geometry: ConvGeometry, needs: tuple[bool, ...],
    addend: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of input (with addend), weight and bias from that of the convolution's output."""
    needs_input, needs_weight, needs_bias = needs
    if grad_conv is None or not any(needs):
        return None, None, None
    grad_input = grad_weight = grad_bias = None
    if needs_weight:
        operands = _channels_last(grad_conv), _channels_last(input), weight.shape, geometry
        if skips_pixels(weight.shape, *geometry[:2]):
            grad_weight = conv_weight_grad(*operands)
        else:
            grad_weight = weight_gradient.compute(*operands, _weight_grad_plain)
        needs_weight = grad_weight is None
    if needs_input and weight.dtype is torch.float32 and grad_conv.numel():
        grad_input = changing.input_grad(
            _channels_last(grad_conv), weight, tuple(input.shape), geometry, input_grad_by_onednn
        )
        needs_input = grad_input is None
    if needs_input and _has_long_input_grad(weight, geometry.stride, geometry.groups):
        grad_input = sums.input_grad(grad_conv, weight, input.shape, geometry)
        needs_input = False
    if needs_bias and not needs_weight:  # oneDNN would compute the weight's gradient again
        grad_bias = grad_conv.sum((0, 2, 3))
    if needs_input or needs_weight:
        stride, padding, dilation, groups = geometry
        of_bias = needs_bias and needs_weight
        found = aten.convolution_backward(
            grad_conv, _channels_last(input), weight, (weight.shape[0],) if of_bias else None, stride, padding,
            dilation, False, (0, 0), groups, (needs_input, needs_weight, of_bias),
        )  # fmt: skip
        grad_input = found[0] if needs_input else grad_input
        grad_weight = found[1] if needs_weight else grad_weight
        grad_bias = found[2] if of_bias else grad_bias
    if grad_input is not None and addend is not None:
        grad_input.add_(addend)
    return grad_input, grad_weight, grad_bias


@dataclass(frozen=True)
class PackedWeight:
    """A weight in oneDNN's own blocked layout, or in Winograd's where that is faster, and what a convolution with it
    needs to know. Where its sums are long, it is in parts."""

    fits_all_shapes: ClassVar[bool] = False

    weight: Tensor
    parts: tuple[Tensor, ...]
    winograd: WinogradWeight | None
    bias: Tensor | None
    geometry: ConvGeometry


class DirectWeight(NamedTuple):
    """A weight for our own kernels."""

    conv: PackedConv
    fits_all_shapes: bool = True


def conv_prepack(
    weight: Tensor, bias: Tensor | None, input_shape: Shape, geometry: ConvGeometry
) -> PackedWeight | DirectWeight:
    if is_supported(weight.dtype, weight.shape, geometry.groups):
        return DirectWeight(PackedConv(weight, bias, geometry))
    if max(weight.shape[2:]) == 1:  # dilation means nothing, but ends oneDNN's 1×1 kernels in a segmentation fault
        geometry = geometry._replace(dilation=(1, 1))
    stride, padding, dilation, groups = geometry
    parts: tuple[Tensor, ...] = ()
    tiles = None
    if sums.are_long(weight.dtype, weight.shape[1], weight.shape[2:], stride, is_packed=True):
        batch, _, *size = input_shape
        parts = tuple(
            packing.pack(part, padding, stride, dilation, groups, (batch, part.shape[1] * groups, *size))
            for part in sums.split(weight)
        )
    else:
        may_round = get_float32_precision() != "highest"
        if may_round and winograd.pays(weight, input_shape, stride, padding, dilation, groups):
            tiles = winograd.pack(weight, bias, input_shape, padding, dilation)  # the weight is for other shapes
        if weight.dtype is torch.float32:
            weight = packing.pack(weight, padding, stride, dilation, groups, input_shape)
    return PackedWeight(weight, parts, tiles, bias, geometry)


def conv_prepacked(
    input: Tensor, packed: PackedWeight | DirectWeight, residual: Tensor | None, activation: str | None
) -> Tensor:
    if isinstance(packed, DirectWeight):
        return _direct(input, packed.conv, residual, activation)
    p = packed
    input = _channels_last(input)
    stride, padding, dilation, groups = p.geometry
    geometry = (padding, stride, dilation, groups)  # in oneDNN's order
    if p.parts:
        y = sums.packed(input, p.parts, p.bias, geometry)
        y = y if residual is None else y.add_(residual)
        return y if activation is None else fused_activation.apply_in_place(y, activation)
    tiles = p.winograd if p.winograd is not None and input.shape == p.winograd.input_shape else None
    if tiles is not None or not p.weight.is_mkldnn:
        y = torch.conv2d(input, p.weight, p.bias, *p.geometry) if tiles is None else winograd.convolve(input, tiles)
        y = y if residual is None else y.add_(residual)
        return y if activation is None else fused_activation.apply_in_place(y, activation)
    if residual is None:
        unary, left = fused_activation.pointwise(activation)
        y = mkldnn._convolution_pointwise(input, p.weight, p.bias, *geometry, *unary)
        return y if left is None else fused_activation.apply_in_place(y, left)
    y = mkldnn._convolution_pointwise.binary(
        input, _channels_last(residual), p.weight, p.bias, *geometry, "add", 1.0, None, [], ""
    )
    return y if activation is None else fused_activation.apply_in_place(y, activation)


def _direct(input: Tensor, conv: PackedConv, residual: Tensor | None, activation: str | None) -> Tensor:
    residual = None if residual is None else _channels_last(residual)
    if activation in micro.ACTIVATIONS:
        return conv(readable(input), residual, activation)
    return fused_activation.apply_in_place(conv(readable(input), residual, None), activation)
