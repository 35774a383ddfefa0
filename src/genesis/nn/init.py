"""Initialisers: they fill a tensor in place, outside the graph, and return it.

On the CPU they draw the same numbers as PyTorch's under the same seed, so that equal layers start equal.
"""

from __future__ import annotations

import math
import warnings

from genesis import dtypes
from genesis.autograd import no_grad
from genesis.errors import ShapeError, describe
from genesis.random import rand, randn
from genesis.tensor import Tensor

_PIECE = 1 << 18  # numbers: 2 MiB in float64


@no_grad()
def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Fill with draws from the uniform distribution over [a, b).

    Args:
        tensor: any shape, a floating dtype; this holds for all initialisers, unless they say otherwise.
        a, b: bounds.
    Returns: tensor.

    Example:
        >>> nn.init.uniform_(genesis.empty(3), 2.0, 2.0).tolist()
        [2.0, 2.0, 2.0]
    """
    draws = rand(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    low, high = _rounded(a, tensor), _rounded(b, tensor)
    return tensor.copy_(_scaled(draws, _rounded(high - low, tensor), low))


@no_grad()
def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Fill with draws from the normal distribution of this mean and standard deviation.

    Args:
        tensor: any shape, a floating dtype.
        mean, std: of the distribution.
    Returns: tensor.

    Example:
        >>> nn.init.normal_(genesis.empty(2), mean=3.0, std=0.0).tolist()
        [3.0, 3.0]
    """
    if tensor.numel() < 16:  # so few, PyTorch draws and scales one by one in float64
        return tensor.copy_(randn(tensor.shape, dtype=dtypes.float64, device=tensor.device) * std + mean)
    draws = randn(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return tensor.copy_(_scaled(draws, _rounded(std, tensor), _rounded(mean, tensor)))


def _scaled(draws: Tensor, scale: float, shift: float) -> Tensor:
    """draws · scale + shift, in place.

    PyTorch scales with a fused multiply-add: one rounding, which float64 gives to float32. It is done in pieces, as
    float64 copies of a large weight would take several times its memory.
    """
    for piece in draws.reshape(-1).split(_PIECE):
        piece.copy_(piece.to(dtypes.float64) * scale + shift)
    return draws


def trunc_normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Tensor:
    """Fill with draws from the normal distribution truncated to [a, b]: draws outside are repeated.

    Args:
        tensor: any shape, a floating dtype.
        mean, std: of the normal distribution, before truncation.
        a, b: bounds of the values.
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
    """Fill with val.

    Args:
        tensor: any shape and dtype.
        val: a number that the dtype holds.
    Returns: tensor.

    Example:
        >>> nn.init.constant_(genesis.empty(2), 0.5).tolist()
        [0.5, 0.5]
    """
    return tensor.fill_(val)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones.

    Args:
        tensor: any shape and dtype.
    Returns: tensor.

    Example:
        >>> nn.init.ones_(genesis.empty(2)).tolist()
        [1.0, 1.0]
    """
    return constant_(tensor, 1.0)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros.

    Args:
        tensor: any shape and dtype.
    Returns: tensor.

    Example:
        >>> nn.init.zeros_(genesis.empty(2)).tolist()
        [0.0, 0.0]
    """
    return constant_(tensor, 0.0)


@no_grad()
def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with ones on the diagonal and zeros elsewhere: a linear layer that returns its input.

    Args:
        tensor: (N, M), any dtype.
    Returns: tensor.
    Raises: ShapeError: tensor is not a matrix.

    Example:
        >>> nn.init.eye_(genesis.empty(2, 3)).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    if tensor.ndim != 2:
        raise ShapeError(describe("eye_", "tensor", "2 dimensions", tensor.ndim))
    tensor.zero_()
    tensor.array.diagonal(0, 1).copy_into(1)
    return tensor


@no_grad()
def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill with ones at the centre of each channel's own kernel, zeros elsewhere: a convolution that returns its input.

    Args:
        tensor: the weight of a convolution, (K, C / groups, …) with 1 to 3 kernel dimensions.
        groups: number of groups, each of which returns its own channels.
    Returns: tensor.
    Raises: ShapeError: another rank, or groups does not divide K.

    Example:
        >>> nn.init.dirac_(genesis.empty(1, 1, 3)).tolist()
        [[[0.0, 1.0, 0.0]]]
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
    """Fill with draws from the uniform distribution over ±gain · √(6 / (fan_in + fan_out)).

    Args:
        tensor: (fan_out, fan_in), or (K, C, …) of a convolution; at least 2 dimensions.
        gain: see calculate_gain.
    Returns: tensor.
    Raises: ShapeError: fewer than 2 dimensions.
    Source: Glorot & Bengio 2010, Understanding the difficulty of training deep feedforward neural networks.

    Example:
        >>> bool(nn.init.xavier_uniform_(genesis.empty(3, 3)).abs().max() <= 1)
        True
    """
    bound = math.sqrt(3.0) * _xavier_std("xavier_uniform_", tensor, gain)
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Fill with draws from the normal distribution of mean 0 and standard deviation gain · √(2 / (fan_in + fan_out)).

    Args:
        tensor, gain: as in `nn.init.xavier_uniform_`.
    Returns: tensor.
    Raises: ShapeError: fewer than 2 dimensions.
    Example:
        >>> nn.init.xavier_normal_(genesis.empty(4, 3), gain=0.0).abs().max().item()
        0.0
    """
    return normal_(tensor, 0.0, _xavier_std("xavier_normal_", tensor, gain))


def _xavier_std(op: str, tensor: Tensor, gain: float) -> float:
    fan_in, fan_out = calculate_fans(op, tensor)
    return gain * math.sqrt(2.0 / float(fan_in + fan_out))


def kaiming_uniform_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Fill with draws from the uniform distribution over ±gain · √(3 / fan).

    It preserves the variance of signals through layers with this nonlinearity.

    Args:
        tensor: (fan_out, fan_in), or (K, C, …) of a convolution; at least 2 dimensions.
        a: the negative slope of leaky_relu.
        mode: "fan_in" preserves the variance in the forward pass, "fan_out" in the backward pass.
        nonlinearity: see calculate_gain.
    Returns: tensor.
    Raises: ShapeError: fewer than 2 dimensions; ValueError: mode or nonlinearity is unknown.
    Source: He et al. 2015, arXiv:1502.01852.

    Example:
        >>> bool(nn.init.kaiming_uniform_(genesis.empty(4, 3)).abs().max() <= 2**0.5)
        True
    """
    if tensor.numel() == 0:
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std("kaiming_uniform_", tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Tensor:
    """Fill with draws from the normal distribution of mean 0 and standard deviation gain / √fan.

    Args:
        tensor, a, mode, nonlinearity: as in `nn.init.kaiming_uniform_`.
    Returns: tensor.
    Raises: ShapeError: fewer than 2 dimensions; ValueError: mode or nonlinearity is unknown.
    Source: He et al. 2015, arXiv:1502.01852.
    Example:
        >>> deviation = nn.init.kaiming_normal_(genesis.empty(100, 100), nonlinearity="relu").std().item()
        >>> 0.12 < deviation < 0.16  # √(2 / 100) = 0.141
        True
    """
    if tensor.numel() == 0:
        return tensor
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity))


def _kaiming_std(op: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(describe(op, "mode", '"fan_in" or "fan_out"', repr(mode)))
    fan_in, fan_out = calculate_fans(op, tensor)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if mode == "fan_in" else fan_out)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor of the weights' standard deviation that compensates for this nonlinearity.

    Args:
        nonlinearity: "linear", "conv2d" and the like, "sigmoid", "tanh", "relu", "leaky_relu" or "selu".
        param: the negative slope of leaky_relu; 0.01 by default.
    Raises: ValueError: nonlinearity is unknown, or param is not a number.

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
    """(fan_in, fan_out) of a weight: the inputs that each output depends on, and the outputs that each input reaches.

    Args:
        op: the name that errors show.
        tensor: (fan_out, fan_in), or (K, C, …) of a convolution.
    Returns: (fan_in, fan_out).
    Raises: ShapeError: fewer than 2 dimensions; the message names op.

    Example:
        >>> nn.init.calculate_fans("mine", genesis.empty(8, 3, 5, 5))
        (75, 200)
    """
    if tensor.ndim < 2:
        raise ShapeError(describe(op, "tensor", "at least 2 dimensions", tensor.ndim))
    kernel = math.prod(tensor.shape[2:])
    return tensor.shape[1] * kernel, tensor.shape[0] * kernel


def _rounded(value: float, tensor: Tensor) -> float:
    """value as tensor's dtype holds it: bounds are rounded before numbers are scaled to them."""
    return tensor.array.full_like(value, ()).item()
