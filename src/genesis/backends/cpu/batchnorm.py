"""Batch norm of channels-last float32: sums that are as near float64 as those of torch's kernels for NCHW.

torch adds up channels-last pixels one by one in float32, NCHW ones in float64. Here f pixels that follow each other
count as one of f·C channels, which is but a view: a sum has few summands, and the vector units have full rows, of few
channels too. The f·C sums are put together in float64 (statistics: Chan, Golub & LeVeque 1983):

    mean = mean_j(mean_j)        var = mean_j(var_j) + mean_j((mean_j − mean)²)

What is left is y = scale·x + (β − scale·mean) with scale = γ / √(var + eps), and in the backward pass

    grad_x = scale·grad − scale/n · (Σ grad + x̂·Σ grad·x̂)        x̂ = (x − mean) / √(var + eps)

Where there are kernels of our own, they do all this. Elsewhere torch's element-wise kernels are the fastest, and the
few numbers of the channels are numpy's business: its calls on them cost a third of torch's; small arrays are brought
into NCHW, which costs less than all this.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from genesis.backends.cpu import fused_activation
from genesis.backends.cpu.x86 import channels as channel_kernels
from genesis.backends.cpu.x86 import micro, statistics

Floats: TypeAlias = "npt.NDArray[np.float64]"

aten = torch.ops.aten

_LEAST_NUMBERS = 1 << 15  # of fewer, torch's kernels for NCHW are the faster ones, with the copies
_SUMMANDS = statistics.SUMMANDS


Tensors: TypeAlias = "tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]"
"""Weight, bias, running mean and variance."""


def normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    training: bool, momentum: float, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, mean and inverse deviation; in training the running statistics change in place."""
    return normalize_and(x, (weight, bias, running_mean, running_var), (training, momentum, eps), None, None)


def normalize_and(
    x: Tensor, tensors: Tensors, options: tuple[bool, float, float], residual: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same; y with the residual and an activation that is known by its result."""
    weight, bias, running_mean, running_var = tensors
    training, momentum, eps = options
    is_ours = training and _is_ours(x, weight, bias, running_mean, running_var)
    if is_ours and channel_kernels.is_supported(x) and _lie_dense(*tensors):
        return _by_kernels(x, tensors, momentum, eps, residual, activation)
    if is_ours and _fills_rows(x):
        with _silently():
            y, mean, inverse_std = _in_rows(x, tensors, momentum, eps)
        return _finished(y, residual, activation), mean, inverse_std
    planes = x.contiguous() if is_ours else x
    y, mean, inverse_std = torch.native_batch_norm(
        planes, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if not training:
        assert running_mean is not None
        assert running_var is not None
        mean, inverse_std = running_mean, torch.rsqrt(running_var + eps)
    y = y.contiguous(memory_format=torch.channels_last) if is_ours else y
    return _finished(y, residual, activation), mean, inverse_std


def _finished(y: Tensor, residual: Tensor | None, activation: str | None) -> Tensor:
    if residual is not None:
        y.add_(residual)
    return y if activation is None else fused_activation.apply(y, activation)[0]


def backward(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse_std: Tensor, training: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """The gradients of x, weight and bias, as far as they are needed."""
    if weight is not None:
        weight = weight.contiguous()  # torch's kernel for channels-last reads an expanded one past its end
    is_ours = _is_ours(x, grad, weight, mean, inverse_std)
    if is_ours and training and channel_kernels.is_supported(x):
        return _backward_by_kernels(grad, x, weight, mean, inverse_std, needs)
    if is_ours and _fills_rows(x):
        grad = grad.contiguous(memory_format=torch.channels_last)
        with _silently():
            return _backward_in_rows(grad, x, weight, mean, inverse_std, training, needs)
    if is_ours:
        grad, x = grad.contiguous(), x.contiguous()
    # In eval mode torch wants running statistics; with eps 0 these give the same mean and inverse deviation.
    running = (None, None) if training else (mean, inverse_std.reciprocal().square())
    grad_x, grad_weight, grad_bias = aten.native_batch_norm_backward(
        grad, x, weight, *running, mean, inverse_std, training, 0.0, needs
    )
    if is_ours and needs[0]:
        grad_x = grad_x.contiguous(memory_format=torch.channels_last)
    return grad_x, grad_weight, grad_bias


def _is_ours(x: Tensor, *others: Tensor | None) -> bool:
    if x.ndim != 4 or x.dtype is not torch.float32 or x.numel() == 0 or x.is_contiguous():
        return False
    is_single = all(array is None or array.dtype is torch.float32 for array in others)
    return is_single and x.is_contiguous(memory_format=torch.channels_last)


def _silently() -> np.errstate:
    """numpy warns of what is infinite or becomes so; torch doesn't."""
    return np.errstate(invalid="ignore", over="ignore", divide="ignore")


def _fills_rows(x: Tensor) -> bool:
    return x.numel() >= max(_LEAST_NUMBERS, _SUMMANDS * x.shape[1])


def _lie_dense(*vectors: Tensor | None) -> bool:
    return all(each is None or each.is_contiguous() for each in vectors)


def _by_kernels(
    x: Tensor, tensors: Tensors, momentum: float, eps: float, residual: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    groups = channel_kernels.moments(x)
    factors, mean, inverse_std = statistics.forward(x, groups, *tensors[:2], tensors[2:], momentum, eps)
    is_like = residual is None or (residual.dtype is x.dtype and residual.stride() == x.stride())
    fuses = is_like and activation in micro.ACTIVATIONS
    y = channel_kernels.normalized(x, factors, *((residual, activation) if fuses else (None, None)))
    return y if fuses else _finished(y, residual, activation), mean, inverse_std


def _backward_by_kernels(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse_std: Tensor, needs: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    grad, mean = grad.contiguous(memory_format=torch.channels_last), mean.contiguous()
    groups = channel_kernels.grad_sums(grad, x, mean)
    factors, of_weight, of_bias = statistics.backward(x, grad, groups, weight, mean, inverse_std.contiguous())
    grad_x = channel_kernels.combine(x, grad, factors) if needs[0] else None
    return grad_x, of_weight if needs[1] else None, of_bias if needs[2] else None


def _in_rows(x: Tensor, tensors: Tensors, momentum: float, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y, mean and inverse deviation."""
    weight, bias, running_mean, running_var = tensors
    count = x.numel() // x.shape[1]
    mean, var = _statistics(x)
    for running, new in ((running_mean, mean), (running_var, var * (count / max(count - 1, 1)))):
        if running is not None:
            numbers = running.numpy()
            numbers += momentum * (new - numbers)
    inverse_std = 1 / np.sqrt(var + eps)
    scale = _rounded(inverse_std if weight is None else inverse_std * weight.numpy())
    shift = -mean * scale if bias is None else bias.numpy() - mean * scale
    return torch.addcmul(_for_planes(shift), x, _for_planes(scale)), _single(mean), _single(inverse_std)


def _statistics(x: Tensor) -> tuple[Floats, Floats]:
    """Mean and variance of each channel, in float64."""
    channels = x.shape[1]
    count = x.numel() // channels
    image, rest = _rows(x)
    means, variances = (
        each.numpy().reshape(-1, channels) for each in torch.batch_norm_update_stats(image, None, None, 0.0)
    )
    last = rest.numpy()
    mean = (_SUMMANDS * _sum(means) + _sum(last)) / count
    squares = _SUMMANDS * (_sum(variances) + _sum(np.square(means - mean)))
    return mean, (squares + _sum(np.square(last - mean))) / count


def _backward_in_rows(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, inverse_std: Tensor, training: bool,
    needs: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    count = x.numel() // x.shape[1]
    inverse = inverse_std.numpy().astype(np.float64)
    scale = inverse if weight is None else inverse * weight.numpy()
    grad_x = None
    if training or needs[1] or needs[2]:
        of_weight, of_bias = _sums(grad, x, mean, inverse_std)
    if needs[0] and training:
        slope = _rounded(
            -scale * inverse * of_weight / count
        )  # what x is multiplied by: nothing is left of its rounding
        shift = -slope * mean.numpy() - scale * of_bias / count
        grad_x = torch.addcmul(_for_planes(shift), x, _for_planes(slope)).addcmul_(grad, _for_planes(scale))
    elif needs[0]:
        grad_x = grad * _for_planes(scale)
    return grad_x, _single(of_weight) if needs[1] else None, _single(of_bias) if needs[2] else None


def _sums(grad: Tensor, x: Tensor, mean: Tensor, inverse_std: Tensor) -> tuple[Floats, Floats]:
    """Σ grad·x̂ and Σ grad of each channel, in float64."""
    channels = x.shape[1]
    (grads, last_grads), (image, rest) = _rows(grad), _rows(x)
    centred = (rest.numpy() - mean.numpy().astype(np.float64)) * inverse_std.numpy()
    last_of_weight, last_of_bias = _sum(last_grads.numpy() * centred), _sum(last_grads.numpy())
    repeats = image.shape[1] // channels
    parts = aten.native_batch_norm_backward(
        grads, image, None, None, None, mean.repeat(repeats), inverse_std.repeat(repeats), True, 0.0,
        (False, True, True),
    )[1:]  # fmt: skip
    of_weight, of_bias = (_sum(each.numpy().reshape(-1, channels)) for each in parts)
    return of_weight + last_of_weight, of_bias + last_of_bias


def _rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as an image (1, f·C, _SUMMANDS, 1), whose rows are of f pixels, and the pixels that are left (n, C)."""
    total, channels = x.numel(), x.shape[1]
    width = total // channels // _SUMMANDS * channels
    taken = width * _SUMMANDS
    image = x.as_strided((1, width, _SUMMANDS, 1), (total, 1, width, width))
    rest = x.as_strided(((total - taken) // channels, channels), (channels, 1), x.storage_offset() + taken)
    return image, rest


def _sum(rows: Floats | npt.NDArray[np.float32]) -> Floats:
    return np.add.reduce(rows, 0, dtype=np.float64)


def _for_planes(numbers: Floats) -> Tensor:
    """(C,) as (C, 1, 1)."""
    return _single(numbers).view(-1, 1, 1)


def _rounded(numbers: Floats) -> Floats:
    """To float32, in which these numbers are multiplied by values that others are to cancel."""
    return numbers.astype(np.float32).astype(np.float64)


def _single(numbers: Floats) -> Tensor:
    return torch.from_numpy(numbers.astype(np.float32))
