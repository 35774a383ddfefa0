"""Results of one pixel or one channel, whose values lie the same way in both orders of memory.

Their strides tell the orders apart, and the layers of PyTorch disagree on which it is: strides of convolutions may say
channels-last, those of most elementwise functions are contiguous, and batch norm differs between devices. So the layer
that is replaced is asked once, with a tensor of the same shape, and its answer is written into the result.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F

from genesis.torch import activations
from genesis.torch.shapes import Plan

NORM, TRAINED_NORM = "batch_norm", "batch_norm in training"  # beside the names of activations


def as_after(y: Tensor, plan: Plan, layers: tuple[str, ...]) -> Tensor:
    """A new result of a convolution and of these layers after it, with the strides that PyTorch's layers give."""
    strides = plan.strides
    for layer in layers if plan.is_ambiguous else ():
        strides = _after(layer, plan.output_shape, strides, y.dtype, y.device)
    if y.stride() == strides:
        return y
    with torch.no_grad():
        if y.is_inference():
            return y.as_strided_(y.shape, strides)
        with torch.autograd._unsafe_preserve_version_counter(y):  # its values are what they were
            return y.as_strided_(y.shape, strides)


@functools.lru_cache(1024)
def _after(
    layer: str, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[int, ...]:
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        x = torch.zeros(shape, dtype=dtype, device=device).as_strided(shape, strides)
        if layer not in (NORM, TRAINED_NORM):
            return activations.apply(x, layer).stride()
        wide = torch.float32 if dtype.itemsize == 2 else dtype
        mean, var, gamma, beta = (x.new_ones(shape[1], dtype=wide) for _ in range(4))
        return F.batch_norm(x, mean, var, gamma, beta, layer == TRAINED_NORM).stride()
