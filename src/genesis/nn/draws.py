"""Initialisers that draw each number for itself: uniform, normal, truncated normal. nn.init has them all."""

from __future__ import annotations

import math
import warnings

from genesis import dtypes
from genesis.autograd import no_grad
from genesis.errors import DTypeError, describe
from genesis.generator import Generator, drawing
from genesis.random import rand, randn
from genesis.tensor import Tensor

_PIECE = 1 << 18  # numbers: 2 MiB in float64


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with draws from the uniform distribution over [a, b).

    Args:
        tensor: any shape, a floating dtype; this holds for all initialisers, unless they say otherwise.
        a, b: bounds.
        generator: draw from this stream, not the device's.
    Returns: tensor.

    Example:
        >>> nn.init.uniform_(genesis.empty(3), 2.0, 2.0).tolist()
        [2.0, 2.0, 2.0]
    """
    if not tensor.is_floating_point():
        raise DTypeError(describe("uniform_", "tensor", "a floating dtype", tensor.dtype))
    draws = rand(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)
    low, high = _rounded(a, tensor), _rounded(b, tensor)
    return tensor.copy_(_scaled(draws, _rounded(high - low, tensor), low))


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with draws from the normal distribution of this mean and standard deviation.

    Args:
        tensor: any shape, a floating or complex dtype.
        mean, std: of the distribution.
        generator: as in `nn.init.uniform_`.
    Returns: tensor.

    Example:
        >>> nn.init.normal_(genesis.empty(2), mean=3.0, std=0.0).tolist()
        [3.0, 3.0]
    """
    if tensor.is_complex():
        draws = randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)
        return tensor.copy_(draws * std + complex(mean, mean))  # as PyTorch, to both parts
    if tensor.numel() < 16:  # so few, PyTorch draws and scales one by one in float64
        few = randn(tensor.shape, dtype=dtypes.float64, device=tensor.device, generator=generator)
        return tensor.copy_(few * std + mean)
    draws = randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)
    return tensor.copy_(_scaled(draws, _rounded(std, tensor), _rounded(mean, tensor)))


def _scaled(draws: Tensor, scale: float, shift: float) -> Tensor:
    """draws · scale + shift, in place.

    PyTorch scales with a fused multiply-add: one rounding, which float64 gives to float32. It is done in pieces, as
    float64 copies of a large weight would take several times its memory.
    """
    for piece in draws.reshape(-1).split(_PIECE):
        piece.copy_(piece.to(dtypes.float64) * scale + shift)
    return draws


def trunc_normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Fill with draws from the normal distribution truncated to [a, b]: draws outside are repeated.

    Args:
        tensor: any shape, a floating dtype.
        mean, std: of the normal distribution, before truncation.
        a, b: bounds of the values.
        generator: as in `nn.init.uniform_`.
    Returns: tensor.

    Example:
        >>> values = nn.init.trunc_normal_(genesis.empty(100), a=-1.0, b=1.0)
        >>> bool(values.abs().max() <= 1)
        True
    """
    if (mean < a - 2 * std) or (mean > b + 2 * std):
        warnings.warn(
            f"trunc_normal_: the mean {mean} is more than two deviations from [{a}, {b}]; few draws fall inside",
            stacklevel=2,
        )
    share_inside = _normal_cdf((b - mean) / std) - _normal_cdf((a - mean) / std)
    fill = _redrawn_normal if share_inside > 0.3 else _rejected_uniform
    with no_grad(), drawing("trunc_normal_", generator, tensor.device):
        return tensor.copy_(fill(tensor, mean, std, a, b))


def _redrawn_normal(tensor: Tensor, mean: float, std: float, a: float, b: float) -> Tensor:
    values = normal_(tensor, mean, std)
    while True:
        outside = (values < _rounded(a, tensor)).logical_or(values > _rounded(b, tensor))
        if not outside.any():
            return values
        values = normal_(tensor.clone(), mean, std).where(outside, values)


def _rejected_uniform(tensor: Tensor, mean: float, std: float, a: float, b: float) -> Tensor:
    """Uniform candidates, accepted with the normal's density relative to its peak in [a, b]."""
    log_peak = -0.5 * ((max(a, min(mean, b)) - mean) / std) ** 2
    values = candidates = uniform_(tensor, a, b)
    pending = None
    while pending is None or pending.any():
        if pending is not None:
            candidates = uniform_(tensor.clone(), a, b)
            values = candidates.where(pending, values)
        log_density = ((candidates - mean) / std).square() * -0.5 - log_peak
        rejected = rand(tensor.shape, dtype=tensor.dtype, device=tensor.device).log() > log_density
        pending = rejected if pending is None else pending.logical_and(rejected)
    return values


def _normal_cdf(x: float) -> float:
    return (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0


def _rounded(value: float, tensor: Tensor) -> float:
    """value as tensor's dtype holds it: bounds are rounded before numbers are scaled to them."""
    return tensor.array.full_like(value, ()).item()
