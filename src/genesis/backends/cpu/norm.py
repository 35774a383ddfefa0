"""Normalisation layers, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from genesis.backends.contract import Shape
from genesis.backends.cpu import batchnorm, fused_activation, groupnorm
from genesis.records import SavedGroupNorm

aten = torch.ops.aten


def batch_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return batchnorm.normalize(x, weight, bias, running_mean, running_var, training, momentum, eps)


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse_std: Tensor,
    training: bool, needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    return batchnorm.backward(grad, x, weight, mean, inverse_std, training, needs)


def layer_norm(
    x: Tensor, normalized_ndim: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return aten.native_layer_norm(x, x.shape[x.ndim - normalized_ndim :], weight, bias, eps)


def layer_norm_backward(
    grad: Tensor, x: Tensor, normalized_ndim: int, weight: Tensor | None, mean: Tensor, inverse_std: Tensor,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    shape = x.shape[x.ndim - normalized_ndim :]
    if weight is None and needs[2]:  # torch has no gradient of a bias alone
        weight = x.new_ones(shape)
    bias = weight  # only asked whether there is one
    return aten.native_layer_norm_backward(grad, x, shape, mean, inverse_std, weight, bias, needs)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, activation: str | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if groupnorm.takes(x, weight, bias):
        y, *statistics = groupnorm.forward(x, num_groups, weight, bias, eps)
    else:
        n, c, plane = _planes(x.shape)
        x = _dense(x, _order(x))
        y, *statistics = aten.native_group_norm(x, weight, bias, n, c, plane, num_groups, eps)
    return y if activation is None else fused_activation.apply(y, activation)[0], *statistics


def group_norm_backward(
    grad: Tensor, saved: SavedGroupNorm[Tensor], num_groups: int, needs: tuple[bool, bool, bool],
    activation: str | None = None,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    x, weight, bias, mean, inverse_std = saved
    if activation is not None:
        value = groupnorm.apply(x, num_groups, weight, bias, mean, inverse_std)
        passed = fused_activation.apply(value, activation)[1]
        grad = fused_activation.apply_backward(grad, passed, activation)
    if groupnorm.takes(x, grad, weight):
        return groupnorm.backward(grad, x, num_groups, weight, mean, inverse_std, needs)
    n, c, plane = _planes(x.shape)
    if weight is None and needs[2]:  # torch has no gradient of a bias alone
        weight = x.new_ones(c)
    order = _order(x)
    # torch 2.13 crashes on channels-last operands when grad_x is not asked for: ask, and drop it.
    asked = (needs[0] or order is torch.channels_last, *needs[1:])
    grad_x, grad_weight, grad_bias = aten.native_group_norm_backward(
        _dense(grad, order), _dense(x, order), mean, inverse_std, weight, n, c, plane, num_groups, asked
    )
    return grad_x if needs[0] else None, grad_weight, grad_bias


def _order(x: Tensor) -> torch.memory_format:
    """The order of x in memory, which torch's group norm keeps if its operands agree on it."""
    is_channels_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if is_channels_last else torch.contiguous_format


def _dense(x: Tensor, order: torch.memory_format) -> Tensor:
    return x.contiguous(memory_format=order)


def _planes(shape: Shape) -> tuple[int, int, int]:
    n, c, *rest = shape
    return n, c, torch.Size(rest).numel()


def rms_norm(x: Tensor, normalized_ndim: int, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    wide = x if x.dtype is torch.float64 else x.float()
    dims = tuple(range(x.ndim - normalized_ndim, x.ndim))
    inverse_rms = torch.rsqrt(wide.square().mean(dims, keepdim=True) + eps)
    y = wide * inverse_rms
    return (y if weight is None else y * weight).to(x.dtype), inverse_rms


def rms_norm_backward(
    grad: Tensor, x: Tensor, normalized_ndim: int, weight: Tensor | None, inverse_rms: Tensor, needs: tuple[bool, bool]
) -> tuple[Tensor | None, ...]:
    # y = x·r·w with r = (mean x² + eps)^(−1/2); with g = grad·w: grad_x = r·(g − x·r²·mean(g·x))
    wide_grad, wide_x = (t if t.dtype is torch.float64 else t.float() for t in (grad, x))
    dims = tuple(range(x.ndim - normalized_ndim, x.ndim))
    grad_x = grad_weight = None
    if needs[0]:
        g = wide_grad if weight is None else wide_grad * weight
        grad_x = inverse_rms * (g - wide_x * inverse_rms.square() * (g * wide_x).mean(dims, keepdim=True))
        grad_x = grad_x.to(x.dtype)
    if needs[1] and weight is not None:
        rows = tuple(range(x.ndim - normalized_ndim))
        product = wide_grad * wide_x * inverse_rms
        grad_weight = (product.sum(rows) if rows else product).to(weight.dtype)
    return grad_x, grad_weight
