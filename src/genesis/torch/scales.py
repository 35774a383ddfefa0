"""Scales of a convolution's result by a number, or by a tensor of one number for all channels or for each.

Constants are folded into weight and bias: α · conv(x, w, b) = conv(x, α·w, α·b), and no pass over the result is left.
A layer scale that is trained needs the convolution's result for its gradient (Σ w·∂w is the same, but cancels): it is
batch norm's with statistics that are constants, 0 and 1.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

EPS = 1e-30  # 1 + EPS is 1
_MOST_IN_HALF = 64.0  # float16 has few exponents: other factors may take a weight out of its range


def scales(y: Tensor, factor: object) -> bool:
    """Return whether a tensor scales a convolution's result y by channels, to one of the dtype and shape of y."""
    if not isinstance(factor, Tensor) or not factor.dtype.is_floating_point or factor.device != y.device:
        return False
    fits = factor.numel() == 1 and factor.dim() <= 4
    fits = fits or tuple(factor.shape) in ((y.shape[1], 1, 1), (1, y.shape[1], 1, 1))
    return fits and torch.result_type(y, factor) is y.dtype


def folds(y: Tensor, weight: Tensor, factor: object) -> bool:
    """Return whether a factor without gradient may be multiplied to the weight instead of y.

    Not if the weight is larger than y: its own pass would be the longer one. y may be a tensor without values.
    """
    if not all(isinstance(size, int) for size in y.shape) or weight.numel() > y.numel():
        return False
    if isinstance(factor, Tensor):
        same = torch.result_type(weight, factor) is weight.dtype and y.dtype is not torch.float16
        return same and scales(y, factor)
    if (type(factor) is not float and type(factor) is not int) or not math.isfinite(factor):
        return False
    return y.dtype is not torch.float16 or 1 / _MOST_IN_HALF <= abs(factor) <= _MOST_IN_HALF


def shapes(factor: object) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes in which a tensor that folds is multiplied to weight and bias; None for a number."""
    if not isinstance(factor, Tensor):
        return None
    return ((), ()) if factor.numel() == 1 else ((-1, 1, 1, 1), (-1,))


def folded(weight: Tensor, bias: Tensor | None, factor: Tensor | float) -> tuple[Tensor, Tensor | None]:
    """The scaled weight and bias."""
    given = shapes(factor)
    if given is None or not isinstance(factor, Tensor):
        return weight * factor, None if bias is None else bias * factor
    return weight * factor.reshape(given[0]), None if bias is None else bias * factor.reshape(given[1])


@functools.lru_cache(256)
def statistics(channels: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and variance of a batch norm that is a layer scale."""
    with torch.inference_mode(False):
        return torch.zeros(channels, dtype=dtype, device=device), torch.ones(channels, dtype=dtype, device=device)
