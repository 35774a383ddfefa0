"""Convolution, sum and activation as one op, by torch's kernels; the activation in place where that loses nothing."""

from __future__ import annotations

from torch import Tensor

from genesis.backends.cpu import fused_activation
from genesis.backends.cpu.conv import conv_forward, conv_gradients
from genesis.records import ConvGeometry


def conv_act(
    input: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry, activation: str | None,
    keeps: str | None, residual: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    x = conv_forward(input, weight, bias, geometry)
    if residual is not None:
        x = x.add_(residual)
    if activation is None:
        return x, None
    if keeps == "input":
        return fused_activation.apply_to_kept(x, activation), x
    y, _ = fused_activation.apply(x, activation)
    return y, y if keeps else None


def conv_act_backward(
    grad: Tensor, input: Tensor, weight: Tensor, kept: Tensor | None, geometry: ConvGeometry,
    activation: str | None, needs: tuple[bool, ...], addend: Tensor | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    if not any(needs):
        return (None,) * 4
    if activation is not None:
        assert kept is not None
        grad = fused_activation.apply_backward(grad, kept, activation)
    return *conv_gradients(grad, input, weight, geometry, needs[:3], addend), grad if needs[3] else None
