"""Group norm of channels-last float32: with torch's sums that are added up in a tree, put together in float64.

torch's own kernels for this order add up an image's pixels one by one in float32. With M and R, mean and inverse
deviation of a group of D numbers, and x̂ = (x − M)·R:

    grad_x = R·(w·grad − Σ w·grad / D − x̂·Σ w·grad·x̂ / D)
"""

from __future__ import annotations

import torch
from torch import Tensor


def takes(x: Tensor, *others: Tensor | None) -> bool:
    is_single = all(array is None or array.dtype is torch.float32 for array in (x, *others))
    is_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return is_single and is_last and x.numel() > 0


def forward(
    x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and mean and inverse deviation (N, groups)."""
    of_channels = x.mean((2, 3), keepdim=True)
    var = _groups((x - of_channels).square_().mean((2, 3)), num_groups)
    means = _groups(of_channels, num_groups)
    mean = means.mean(2, keepdim=True)
    var = var.mean(2, keepdim=True) + (means - mean).square().mean(2, keepdim=True)
    inverse_std = (var + eps).rsqrt()
    scale = inverse_std * _weight(weight, means)
    shift = -mean * scale if bias is None else _weight(bias, means) - mean * scale
    return (
        torch.addcmul(_single(shift, x), x, _single(scale, x)),
        mean.squeeze(2).float(),
        inverse_std.squeeze(2).float(),
    )


def backward(
    grad: Tensor, x: Tensor, num_groups: int, weight: Tensor | None, mean: Tensor, inverse_std: Tensor,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    grad = grad.contiguous(memory_format=torch.channels_last)
    middle, inverse = (each.double().unsqueeze(2) for each in (mean, inverse_std))
    sums = _groups(grad.sum((2, 3)), num_groups)
    centred = x - _single(middle.expand_as(sums), x)
    products = _groups(centred.mul_(grad).sum((2, 3)), num_groups) * inverse
    factor = _weight(weight, sums)
    grad_x = None
    if needs[0]:
        count = x[0].numel() // num_groups
        slope = -inverse.square() * (factor * products).sum(2, keepdim=True) / count
        shift = -slope * middle - inverse * (factor * sums).sum(2, keepdim=True) / count
        grad_x = torch.addcmul(_single(shift.expand_as(sums), x), x, _single(slope.expand_as(sums), x))
        grad_x.addcmul_(grad, _single((inverse * factor).expand_as(sums), x))
    grad_weight, grad_bias = (
        each.sum(0).flatten().float() if needed else None for each, needed in ((products, needs[1]), (sums, needs[2]))
    )
    return grad_x, grad_weight, grad_bias


def apply(
    x: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse_std: Tensor
) -> Tensor:
    """The norm by statistics that are known, for an activation's backward; any order of memory and dtype."""
    wide = x.double() if x.dtype is torch.float64 else x.float()
    shape = (1, x.shape[1], *[1] * (x.ndim - 2))
    of_channels = (each.repeat_interleave(x.shape[1] // num_groups, 1) for each in (mean, inverse_std))
    middle, scale = (each.to(wide.dtype).view(len(x), *shape[1:]) for each in of_channels)
    y = (wide - middle) * (scale if weight is None else scale * weight.view(shape))
    return (y if bias is None else y + bias.view(shape)).to(x.dtype)


def _groups(of_channels: Tensor, num_groups: int) -> Tensor:
    """(N, C) as (N, groups, C / groups), in float64."""
    return of_channels.double().reshape(len(of_channels), num_groups, -1)


def _weight(weight: Tensor | None, like: Tensor) -> Tensor:
    """(C,) as (groups, C / groups), in float64."""
    return like.new_ones(like.shape[1:]) if weight is None else weight.double().view(like.shape[1:])


def _single(of_channels: Tensor, x: Tensor) -> Tensor:
    """(N, groups, C / groups) as (N, C, 1, 1), in float32."""
    return of_channels.float().reshape(*x.shape[:2], 1, 1)
