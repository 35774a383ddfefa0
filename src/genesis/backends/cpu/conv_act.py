"""Convolution and activation as one op, by torch's kernels; the activation in place where that loses nothing."""

from __future__ import annotations

from torch import Tensor

from genesis.backends.cpu import fused_activation
from genesis.backends.cpu.conv import conv_forward, conv_gradients
from genesis.records import ConvGeometry


def conv_act(
    input: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry, activation: str, keeps: str | None
) -> tuple[Tensor, Tensor | None]:
    x = conv_forward(input, weight, bias, geometry)
    if keeps == "input":
        return fused_activation.apply_to_kept(x, activation), x
    y, _ = fused_activation.apply(x, activation)
    return y, y if keeps else None


def conv_act_backward(
    grad: Tensor, input: Tensor, weight: Tensor, kept: Tensor, geometry: ConvGeometry, activation: str,
    needs: tuple[bool, ...], addend: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    grad_conv = fused_activation.apply_backward(grad, kept, activation) if any(needs) else None
    return conv_gradients(grad_conv, input, weight, geometry, needs, addend)
