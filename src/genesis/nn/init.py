"""Initialisers: they fill a tensor in place, outside the graph, and return it.

On the CPU they draw the same numbers as PyTorch's under the same seed, so that equal layers start equal.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import ParamSpec

from genesis.autograd import no_grad
from genesis.errors import ShapeError, describe
from genesis.generator import Generator
from genesis.nn.draws import normal_ as normal_
from genesis.nn.draws import trunc_normal_ as trunc_normal_
from genesis.nn.draws import uniform_ as uniform_
from genesis.nn.reflections import orthonormal
from genesis.random import randperm
from genesis.tensor import Tensor

P = ParamSpec("P")


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


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with draws from the uniform distribution over ±gain · √(6 / (fan_in + fan_out)).

    Args:
        tensor: (fan_out, fan_in), or (K, C, …) of a convolution; at least 2 dimensions.
        gain: see calculate_gain.
        generator: as in `nn.init.uniform_`.
    Returns: tensor.
    Raises: ShapeError: fewer than 2 dimensions.
    Source: Glorot & Bengio 2010, Understanding the difficulty of training deep feedforward neural networks.

    Example:
        >>> bool(nn.init.xavier_uniform_(genesis.empty(3, 3)).abs().max() <= 1)
        True
    """
    bound = math.sqrt(3.0) * _xavier_std("xavier_uniform_", tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with draws from the normal distribution of mean 0 and standard deviation gain · √(2 / (fan_in + fan_out)).

    Args:
        tensor, gain, generator: as in `nn.init.xavier_uniform_`.
    Returns: tensor.
    Raises: ShapeError: fewer than 2 dimensions.
    Example:
        >>> nn.init.xavier_normal_(genesis.empty(4, 3), gain=0.0).abs().max().item()
        0.0
    """
    return normal_(tensor, 0.0, _xavier_std("xavier_normal_", tensor, gain), generator)


def _xavier_std(op: str, tensor: Tensor, gain: float) -> float:
    fan_in, fan_out = calculate_fans(op, tensor)
    return gain * math.sqrt(2.0 / float(fan_in + fan_out))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Fill with draws from the uniform distribution over ±gain · √(3 / fan).

    It preserves the variance of signals through layers with this nonlinearity.

    Args:
        tensor: (fan_out, fan_in), or (K, C, …) of a convolution; at least 2 dimensions.
        a: the negative slope of leaky_relu.
        mode: "fan_in" preserves the variance in the forward pass, "fan_out" in the backward pass.
        nonlinearity: see calculate_gain.
        generator: as in `nn.init.uniform_`.
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
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Fill with draws from the normal distribution of mean 0 and standard deviation gain / √fan.

    Args:
        tensor, a, mode, nonlinearity, generator: as in `nn.init.kaiming_uniform_`.
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
    return normal_(tensor, 0.0, _kaiming_std("kaiming_normal_", tensor, a, mode, nonlinearity), generator)


def _kaiming_std(op: str, tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(describe(op, "mode", '"fan_in" or "fan_out"', repr(mode)))
    fan_in, fan_out = calculate_fans(op, tensor)
    return calculate_gain(nonlinearity, a) / math.sqrt(fan_in if mode == "fan_in" else fan_out)


@no_grad()
def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Fill with a random matrix whose rows, or whose columns if they are fewer, are orthonormal.

    Args:
        tensor: (rows, …), at least 2 dimensions; those behind the first are taken as one.
        gain: multiplies the matrix.
        generator: as in `nn.init.uniform_`.
    Returns: tensor.
    Raises: ShapeError: fewer than 2 dimensions.
    Source: Saxe, McClelland & Ganguli 2013, arXiv:1312.6120; Mezzadri 2006, arXiv:math-ph/0609050 (the signs).

    Example:
        >>> rows = nn.init.orthogonal_(genesis.empty(2, 3))
        >>> (rows @ rows.t()).round(decimals=4).abs().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if tensor.ndim < 2:
        raise ShapeError(describe("orthogonal_", "tensor", "at least 2 dimensions", tensor.ndim))
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    draws = normal_(tensor.new_empty((rows, tensor.numel() // rows)), generator=generator)
    is_wide = rows < draws.shape[1]
    q = orthonormal(draws.t() if is_wide else draws)
    return tensor.copy_((q.t() if is_wide else q).mul(gain).reshape(tensor.shape))


@no_grad()
def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fill with draws from the normal distribution of mean 0, and a share of each column with zeros.

    Args:
        tensor: (rows, columns).
        sparsity: the share of each column's elements that are zero, rounded up, in [0, 1].
        std: of the others.
        generator: draw the normal numbers from this stream; as in PyTorch, not the places of the zeros.
    Returns: tensor.
    Raises: ShapeError: not 2 dimensions. ValueError: sparsity is out of range.
    Source: Martens 2010, Deep learning via Hessian-free optimization.

    Example:
        >>> nn.init.sparse_(genesis.empty(4, 2), 0.5).ne(0).sum(0).tolist()
        [2, 2]
    """
    if tensor.ndim != 2:
        raise ShapeError(describe("sparse_", "tensor", "2 dimensions", tensor.ndim))
    if not 0 <= sparsity <= 1:
        raise ValueError(describe("sparse_", "sparsity", "a number in [0, 1]", sparsity))
    rows, columns = tensor.shape
    normal_(tensor, 0.0, std, generator)
    zeros = math.ceil(sparsity * rows)
    for column in range(columns):
        tensor[randperm(rows, device=tensor.device)[:zeros], column] = 0
    return tensor


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


# --- PyTorch's other names --------------------------------------------------------------------------------------------


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """PyTorch's name of calculate_fans, which initialisers of others call."""
    return calculate_fans("calculate_fan_in_and_fan_out", tensor)


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """fan_in or fan_out of a weight."""
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ValueError(describe("calculate_correct_fan", "mode", '"fan_in" or "fan_out"', repr(mode)))
    return _calculate_fan_in_and_fan_out(tensor)[mode.lower() == "fan_out"]


def _deprecated(initialiser: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """The initialiser under its old name, which has no underscore."""
    name = initialiser.__name__

    @functools.wraps(initialiser)
    def renamed(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        warnings.warn(f"nn.init.{name[:-1]} is the old name of nn.init.{name}", FutureWarning, stacklevel=2)
        return initialiser(*args, **kwargs)

    renamed.__name__ = renamed.__qualname__ = name[:-1]
    renamed.__doc__ = f"Deprecated name of {name}. See `nn.init.{name}`."
    return renamed


uniform, normal, constant = _deprecated(uniform_), _deprecated(normal_), _deprecated(constant_)
eye, dirac, sparse, orthogonal = _deprecated(eye_), _deprecated(dirac_), _deprecated(sparse_), _deprecated(orthogonal_)
xavier_uniform, xavier_normal = _deprecated(xavier_uniform_), _deprecated(xavier_normal_)
kaiming_uniform, kaiming_normal = _deprecated(kaiming_uniform_), _deprecated(kaiming_normal_)
