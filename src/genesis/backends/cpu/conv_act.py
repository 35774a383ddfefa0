"""Convolution and activation as one op: torch's kernels, the activation in place where its result is all that counts."""

from __future__ import annotations

from torch import Tensor

from genesis.backends.cpu import fused_activation
from genesis.backends.cpu.conv import conv_forward, conv_gradients
from genesis.records import ConvGeometry


def conv_act(
    input: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry, activation: str, saves: bool
) -> tuple[Tensor, Tensor | None]:
    y, passed = fused_activation.apply(conv_forward(input, weight, bias, geometry), activation)
    return y, passed if saves else None


def conv_act_backward(
    grad: Tensor, input: Tensor, weight: Tensor, kept: Tensor, geometry: ConvGeometry, activation: str,
    needs: tuple[bool, ...], addend: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    grad_conv = fused_activation.apply_backward(grad, kept, activation) if any(needs) else None
    return conv_gradients(grad_conv, input, weight, geometry, needs, addend)
