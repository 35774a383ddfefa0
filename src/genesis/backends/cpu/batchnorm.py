"""Batch norm's forward pass; in training of few channels, in rows that are wide enough for the vector units.

torch's kernels take the pixels one by one, which for 16 channels is three times slower than reading and writing them.
Here f pixels that follow each other count as one of f·C channels for the statistics, which is but a view; those of the
f·C are then put together to those of the C (Chan, Golub & LeVeque 1983):

    mean = mean_j(mean_j)        var = mean_j(var_j) + mean_j((mean_j − mean)²)

What is left is y = scale·x + (β − scale·mean) with scale = γ / √(var + eps), at which torch's element-wise kernels are
the fastest. The few numbers of the channels are numpy's business: its calls on them cost a third of torch's.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_LEAST_NUMBERS = 1 << 19  # of fewer, the work on the statistics costs more than the kernels save
_MOST_CHANNELS = 24
_ROW = 256  # numbers in a row at most


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, mean and inverse deviation; in training the running statistics change in place."""
    if training and _pays(x, weight, bias, running_mean, running_var):
        return _in_rows(x, weight, bias, running_mean, running_var, momentum, eps)
    y, mean, inverse_std = torch.native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    if not training:
        assert running_mean is not None
        assert running_var is not None
        mean, inverse_std = running_mean, torch.rsqrt(running_var + eps)
    return y, mean, inverse_std


def _pays(x: Tensor, *of_channels: Tensor | None) -> bool:
    if x.ndim != 4 or x.numel() < _LEAST_NUMBERS or x.shape[1] > _MOST_CHANNELS:
        return False
    is_single = all(array is None or array.dtype is torch.float32 for array in (x, *of_channels))
    return is_single and x.is_contiguous(memory_format=torch.channels_last)


def _in_rows(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    channels, total = x.shape[1], x.numel()
    count = total // channels
    width = channels * math.gcd(count, _ROW // channels)
    image = x.as_strided((1, width, total // width, 1), (total, 1, width, width))
    means, variances = (
        each.numpy().reshape(-1, channels) for each in torch.batch_norm_update_stats(image, None, None, 0.0)
    )
    mean = _mean(means)
    var = _mean(variances + np.square(means - mean))
    for running, new in ((running_mean, mean), (running_var, var * (count / (count - 1)))):
        if running is not None:
            numbers = running.numpy()
            numbers += momentum * (new - numbers)
    inverse_std = 1 / np.sqrt(var + eps)
    scale = inverse_std if weight is None else inverse_std * weight.numpy()
    shift = -mean * scale if bias is None else bias.numpy() - mean * scale
    y = torch.addcmul(_for_planes(shift), x, _for_planes(scale))
    return y, torch.from_numpy(mean), torch.from_numpy(inverse_std)


def _mean(rows: np.ndarray) -> np.ndarray:
    """What rows.mean(0) gives, by one call of numpy instead of five."""
    return np.add.reduce(rows, 0) / len(rows)


def _for_planes(numbers: np.ndarray) -> Tensor:
    """(C,) as (C, 1, 1)."""
    return torch.from_numpy(numbers.reshape(-1, 1, 1))
