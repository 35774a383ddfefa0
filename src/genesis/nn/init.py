"""Initialisers: they fill a tensor in place, outside the graph, and return it.

On the CPU they draw the same numbers as PyTorch's under the same seed, so that equal layers start equal.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from genesis import dtypes
from genesis.autograd import no_grad
from genesis.creation import rand, randn
from genesis.errors import ShapeError, describe
from genesis.tensor import Tensor

_PIECE = 1 << 18  # numbers: 2 MiB in float64


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Uniform in [a, b).

    Example:
        >>> nn.init.uniform_(genesis.empty(3), 2.0, 2.0).tolist()
        [2.0, 2.0, 2.0]
    """
    draws = rand(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    low, high = _rounded(a, tensor), _rounded(b, tensor)
    return tensor.copy_(_scaled(draws, _rounded(high - low, tensor), low))


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Normal with this mean and standard deviation."""
    if tensor.numel() < 16:  # so few, PyTorch draws and scales one by one in float64
        return tensor.copy_(randn(tensor.shape, dtype=dtypes.float64, device=tensor.device) * std + mean)
    draws = randn(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.copy_(_scaled(draws, _rounded(std, tensor), _rounded(mean, tensor)))


def _scaled(draws: Tensor, scale: float, shift: float) -> Tensor:
    """draws · scale + shift, in place.

    PyTorch scales with a fused multiply-add: one rounding, which float64 gives to float32. A piece after the other, or
    the float64 copies of a large weight would take several times its memory.
    """
    for piece in draws.reshape(-1).split(_PIECE):
        piece.copy_(piece.to(dtypes.float64) * scale + shift)
    return draws


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Tensor:
    """Normal with this mean and standard deviation, drawn again where it fell outside [a, b]."""
    if (mean < a - 2 * std) or (mean > b + 2 * std):
        warnings.warn(
            f"trunc_normal_: the mean {mean} is more than two deviations from [{a}, {b}]; few draws fall inside",
            stacklevel=2,
        )
    share_inside = _normal_cdf((b - mean) / std) - _normal_cdf((a - mean) / std)
    fill = _redrawn_normal if share_inside > 0.3 else _rejected_uniform
    with no_grad():
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


@no_grad()
def constant_(tensor: Tensor, val: float) -> Tensor:
    return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    return constant_(tensor, 0.0)


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """Ones on the diagonal of a matrix, zeros elsewhere: a linear layer that changes nothing."""
    if tensor.ndim != 2:
        raise ShapeError(describe("eye_", "tensor", "2 dimensions", tensor.ndim))
    tensor.zero_()
    tensor.array.diagonal(0, 1).copy_into(1)
    return tensor


@no_grad()
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A one in the middle of each channel's own kernel: a convolution that changes nothing.

    Args:
        tensor: the weight of a convolution, (K, C / groups, …) with one or more kernel dimensions.
        groups: do so within each group of channels.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ShapeError(describe("dirac_", "tensor", "3, 4 or 5 dimensions", tensor.ndim))
    if tensor.shape[0] % groups:
        raise ShapeError(describe("dirac_", "groups", f"a divisor of {tensor.shape[0]}", groups))
    tensor.zero_()
    num_out = tensor.shape[0] // groups
    for group in range(groups):
        middle = tensor.array.narrow(0, group * num_out, num_out).diagonal(0, 1)
        for size in tensor.shape[2:]:
            middle = middle.select(0, size // 2)
        middle.copy_into(1)
    return tensor


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform in ±gain · √(6 / (fan_in + fan_out)).

    Source: Glorot & Bengio 2010, Understanding the difficulty of training deep feedforward neural networks.
    """
    bound = math.sqrt(3.0) * _xavier_std("xavier_uniform_", tensor, gain)
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with standard deviation gain · √(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, _xavier_std("xavier_normal_", tensor, gain))


def _xavier_std(op: str, tensor: Tensor, gain: float) -> float:
    fan_in, fan_out = calculate_fans(op, tensor)
    return gain * math.sqrt(2.0 / float(fan_in + fan_out))


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Uniform in ±gain · √(3 / fan), so that signals keep their size through layers with this nonlinearity.

    Args:
        tensor: at least 2 dimensions.
        a: the negative slope, for leaky_relu.
        mode: "fan_in" keeps the size forward, "fan_out" backward.
        nonlinearity: see calculate_gain.
    Source: He et al. 2015, arXiv:1502.01852.
    """
    if tensor.numel() == 0:
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Normal with standard deviation gain / √fan; arguments as of kaiming_uniform_."""
    if tensor.numel() == 0:
        return tensor
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity))


def _kaiming_std(op: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(describe(op, "mode", '"fan_in" or "fan_out"', repr(mode)))
    fan_in, fan_out = calculate_fans(op, tensor)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if mode == "fan_in" else fan_out)


def calculate_gain(nonlinearity: str, param: Any = None) -> float:
    """The factor by which this nonlinearity is made good in the standard deviation of the weights.

    Args:
        nonlinearity: "linear", the name of a convolution, "sigmoid", "tanh", "relu", "leaky_relu" or "selu".
        param: the negative slope of leaky_relu, 0.01 by default.

    Example:
        >>> nn.init.calculate_gain("tanh")
        1.6666666666666667
    """
    if nonlinearity == "leaky_relu":
        negative_slope = 0.01 if param is None else param
        if isinstance(negative_slope, bool) or not isinstance(negative_slope, int | float):
            raise ValueError(describe("calculate_gain", "param", "a number", repr(param)))
        return math.sqrt(2.0 / (1 + negative_slope**2))
    if nonlinearity not in _GAINS:
        known = ", ".join([*_GAINS, "leaky_relu"])
        raise ValueError(describe("calculate_gain", "nonlinearity", f"one of {known}", repr(nonlinearity)))
    return _GAINS[nonlinearity]


_GAINS = {
    **dict.fromkeys(("linear", "conv1d", "conv2d", "conv3d"), 1.0),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "sigmoid"), 1.0),
    "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0),
    "selu": 3.0 / 4,
}


def calculate_fans(op: str, tensor: Tensor) -> tuple[int, int]:
    """How many inputs an output is made of, and how many outputs an input goes into: fan_in, fan_out."""
    if tensor.ndim < 2:
        raise ShapeError(describe(op, "tensor", "at least 2 dimensions", tensor.ndim))
    kernel = math.prod(tensor.shape[2:])
    return tensor.shape[1] * kernel, tensor.shape[0] * kernel


def _rounded(value: float, tensor: Tensor) -> float:
    """value as tensor's dtype holds it: bounds are rounded before numbers are scaled to them."""
    return tensor.array.full_like(value, ()).item()
