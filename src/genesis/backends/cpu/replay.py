"""Prepare replays: convolutions whose weights no longer change get them packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from genesis.backends import contract
from genesis.backends.contract import Shape
from genesis.backends.cpu import fused_activation, packing
from genesis.backends.cpu.conv import DirectWeight, PackedWeight, conv_prepack, conv_prepacked, open_sizes
from genesis.backends.cpu.x86 import micro
from genesis.backends.cpu.x86.packed import PackedConv, Plan, is_supported, joined, readable, transposed
from genesis.backends.dispatch import Op
from genesis.records import ConvGeometry

mkldnn = torch.ops.mkldnn
_pointwise = mkldnn._convolution_pointwise.default
_transpose_pointwise = mkldnn._convolution_transpose_pointwise.default

_FEW_ROWS = 64  # for which the weights of a product are packed,
_MANY_WEIGHTS = 1 << 15  # if there are so many

Prepared = Callable[[Tensor], Tensor]
AnyMaker: TypeAlias = Callable[..., Prepared | None]  # of an op's arguments
Maker = TypeVar("Maker", bound=AnyMaker)


def prepare(op: str, args: Sequence[object]) -> Prepared | None:
    make, x = _makers.get(op), args[0]
    return make(*args) if make is not None and isinstance(x, Tensor) and x.dtype is torch.float32 else None


def join(first: Prepared, second: Prepared) -> Prepared | None:
    plans = getattr(first, "__self__", None), getattr(second, "__self__", None)
    if not isinstance(plans[0], Plan) or not isinstance(plans[1], Plan):
        return None
    plan = joined(plans[0], plans[1])
    return None if plan is None else plan.run


_makers: dict[str, AnyMaker] = {}  # by op, see prepares()


def prepares(op: Op) -> Callable[[Maker], Maker]:
    """The function below makes what prepare() gives for this op."""

    def note(make: Maker) -> Maker:
        _makers[op.__name__] = make
        return make

    return note


@prepares(contract.conv_forward)
def _conv_forward(input: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry) -> Prepared:
    packed = conv_prepack(weight, bias, tuple(input.shape), geometry)
    return _conv_prepacked(input, packed, None, None) or (lambda x: conv_prepacked(x, packed, None, None))


@prepares(contract.conv_prepacked)
def _conv_prepacked(
    input: Tensor, packed: PackedWeight | DirectWeight, residual: Tensor | None, activation: str | None
) -> Prepared | None:
    """Compute conv_prepacked on such an input, without its checks."""
    if isinstance(packed, DirectWeight):
        return _direct(input, packed, residual, activation)
    if residual is not None or packed.winograd is not None or not packed.weight.is_mkldnn:
        return None
    unary, left = fused_activation.pointwise(activation)
    weight, bias = packed.weight, packed.bias
    stride, padding, dilation, groups = packed.geometry
    options: tuple[object, ...] = (padding, stride, dilation, groups, *unary)
    if left is None:
        return _ordered(input, lambda x: _pointwise(x, weight, bias, *options))
    return _ordered(input, lambda x: fused_activation.apply_in_place(_pointwise(x, weight, bias, *options), left))


def _direct(input: Tensor, packed: DirectWeight, residual: Tensor | None, activation: str | None) -> Prepared | None:
    if residual is not None or activation not in micro.ACTIVATIONS or readable(input) is not input:
        return None
    return packed.conv.plan(input, False, activation).run


@prepares(contract.linear)
def _linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Prepared | None:
    """Multiply as a 1×1 convolution of images of one pixel: packed weights are read faster than by torch's products."""
    rows = input.numel() // max(1, input.shape[-1])
    if (
        not 0 < rows <= _FEW_ROWS
        or weight.numel() < _MANY_WEIGHTS
        or not is_supported(weight.dtype, (*weight.shape, 1, 1), 1)
    ):
        return None
    packed = PackedConv(weight[:, :, None, None], bias, ConvGeometry((1, 1), (0, 0), (1, 1), 1))
    plan = packed.plan(_as_pixels(input), False, None)
    shape = (*input.shape[:-1], weight.shape[0])
    return lambda x: plan.run(_as_pixels(x)).view(shape)


def _as_pixels(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1], 1, 1)


@prepares(contract.conv_input_grad)
def _conv_input_grad(
    grad: Tensor, weight: Tensor, input_shape: Shape, geometry: ConvGeometry, bias: Tensor | None = None
) -> Prepared | None:
    stride, padding, dilation, groups = geometry
    if groups != 1:
        return None
    if (
        is_supported(weight.dtype, (weight.shape[1], weight.shape[0], 1, 1), groups)
        and stride == tuple(weight.shape[2:])
        and (padding, dilation) == ((0, 0), (1, 1))
        and tuple(input_shape[2:]) == (grad.shape[2] * stride[0], grad.shape[3] * stride[1])
        and grad.numel() > 0
        and readable(grad) is grad
    ):
        return transposed(grad, weight, bias).run
    extra = open_sizes(grad.shape, weight.shape, input_shape, stride, padding, dilation)
    packed = packing.pack_transposed(weight, padding, extra, stride, dilation, groups, grad.shape)
    options: tuple[object, ...] = (padding, extra, stride, dilation, groups, "none", [], "")
    return _ordered(grad, lambda x: _transpose_pointwise(x, packed, bias, *options))


def _ordered(operand: Tensor, run: Prepared) -> Prepared:
    """run on operands in channels-last order: those of a replay lie in memory as the recorded one did."""
    if operand.is_contiguous(memory_format=torch.channels_last):
        return run
    return lambda x: run(x.contiguous(memory_format=torch.channels_last))
