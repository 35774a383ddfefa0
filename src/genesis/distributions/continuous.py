"""Families of one real number whose draws are functions of uniform or normal ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

import genesis.functional as F
from genesis.creation_like import full_like
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.distribution import Distribution, Parameter, broadcast
from genesis.errors import describe
from genesis.random import rand, randn
from genesis.tensor import Tensor

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class _LocationScale(Distribution):
    """loc + scale · a draw of the standard distribution."""

    has_rsample = True
    support = constraints.real
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(self, loc: Parameter, scale: Parameter, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast(loc, scale)
        super().__init__(self.loc.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.loc + self.scale * self._standard(sample_shape)

    def _standard(self, sample_shape: Sequence[int]) -> Tensor:
        return self._inverse(uniform(self.loc, self._shape(sample_shape)))

    def _inverse(self, p: Tensor) -> Tensor:
        """The icdf of the standard distribution."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        return self.loc + self.scale * self._inverse(value)


def uniform(like: Tensor, shape: Sequence[int]) -> Tensor:
    """Draws from (0, 1): never 0."""
    return rand(shape, dtype=like.dtype, device=like.device).clamp_min(float(2.0**-24))


class Normal(_LocationScale):
    """The normal distribution.

    Args:
        loc: the mean.
        scale: the standard deviation.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Normal
        >>> Normal(0.0, 1.0).log_prob(genesis.tensor(0.0)).item()
        -0.9189385175704956
    """

    @property
    def variance(self) -> Tensor:
        return self.scale.square()

    def _standard(self, sample_shape: Sequence[int]) -> Tensor:
        return randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)

    def log_prob(self, value: Tensor) -> Tensor:
        return -((value - self.loc) / self.scale).square() / 2 - self.scale.log() - _HALF_LOG_2PI

    def cdf(self, value: Tensor) -> Tensor:
        return F.ndtr((value - self.loc) / self.scale)

    def _inverse(self, p: Tensor) -> Tensor:
        return (2 * p - 1).erfinv() * math.sqrt(2)

    def entropy(self) -> Tensor:
        return 0.5 + _HALF_LOG_2PI + self.scale.log()


class Laplace(_LocationScale):
    """The Laplace distribution: density e^(−|x − loc| / scale) / (2 scale). See `genesis.distributions.Normal`."""

    @property
    def variance(self) -> Tensor:
        return 2 * self.scale.square()

    def log_prob(self, value: Tensor) -> Tensor:
        return -(2 * self.scale).log() - (value - self.loc).abs() / self.scale

    def cdf(self, value: Tensor) -> Tensor:
        z = (value - self.loc) / self.scale
        return 0.5 - 0.5 * z.sign() * (-z.abs()).expm1()

    def _inverse(self, p: Tensor) -> Tensor:
        term = p - 0.5
        return -term.sign() * (-2 * term.abs()).log1p()

    def entropy(self) -> Tensor:
        return 1 + (2 * self.scale).log()


class Cauchy(_LocationScale):
    """The Cauchy distribution, which has no mean. See `genesis.distributions.Normal`."""

    @property
    def mean(self) -> Tensor:
        return full_like(self.loc, math.nan)

    @property
    def variance(self) -> Tensor:
        return full_like(self.loc, math.inf)

    def log_prob(self, value: Tensor) -> Tensor:
        return -math.log(math.pi) - self.scale.log() - ((value - self.loc) / self.scale).square().log1p()

    def cdf(self, value: Tensor) -> Tensor:
        return ((value - self.loc) / self.scale).atan() / math.pi + 0.5

    def _inverse(self, p: Tensor) -> Tensor:
        return (math.pi * (p - 0.5)).tan()

    def entropy(self) -> Tensor:
        return math.log(4 * math.pi) + self.scale.log()


class Gumbel(_LocationScale):
    """The Gumbel distribution: of greatest values. See `genesis.distributions.Normal`."""

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (math.pi**2 / 6)

    def log_prob(self, value: Tensor) -> Tensor:
        z = (self.loc - value) / self.scale
        return z - z.exp() - self.scale.log()

    def cdf(self, value: Tensor) -> Tensor:
        return (-((self.loc - value) / self.scale).exp()).exp()

    def _inverse(self, p: Tensor) -> Tensor:
        return -(-p.log()).log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)


EULER = 0.57721566490153286060


class Uniform(Distribution):
    """The uniform distribution over [low, high).

    Args:
        low, high: the bounds, low < high.
        validate_args: as in `genesis.distributions.Distribution`.
    Raises: ValueError: low is not below high.

    Example:
        >>> from genesis.distributions import Uniform
        >>> Uniform(0.0, 2.0).log_prob(genesis.tensor([1.0, 3.0])).tolist()
        [-0.6931471824645996, -inf]
    """

    has_rsample = True
    arg_constraints = {"low": constraints.dependent, "high": constraints.dependent}

    def __init__(self, low: Parameter, high: Parameter, validate_args: bool | None = None) -> None:
        self.low, self.high = broadcast(low, high)
        if validate_args is not False and not bool((self._width > 0).all()):
            raise ValueError(describe("Uniform", "high", "values above low", "others"))
        super().__init__(self.low.shape, validate_args=validate_args)

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.interval(self.low, self.high)

    @property
    def _width(self) -> Tensor:
        return self.high - self.low

    @property
    def mean(self) -> Tensor:
        return (self.low + self.high) / 2

    @property
    def mode(self) -> Tensor:
        return full_like(self.low, math.nan)

    @property
    def variance(self) -> Tensor:
        return self._width.square() / 12

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        draws = rand(self._shape(sample_shape), dtype=self.low.dtype, device=self.low.device)
        return self.low + draws * self._width

    def log_prob(self, value: Tensor) -> Tensor:
        inside = (self.low <= value) & (value < self.high)
        return F.where(inside, 0.0, -math.inf) - self._width.log()

    def cdf(self, value: Tensor) -> Tensor:
        return ((value - self.low) / self._width).clamp(0, 1)

    def icdf(self, value: Tensor) -> Tensor:
        return self.low + value * self._width

    def entropy(self) -> Tensor:
        return self._width.log()


class Exponential(Distribution):
    """The exponential distribution: density rate · e^(−rate · x).

    Args:
        rate: above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Exponential
        >>> Exponential(2.0).mean.item()
        0.5
    """

    has_rsample = True
    support = constraints.nonnegative
    arg_constraints = {"rate": constraints.positive}

    def __init__(self, rate: Parameter, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate.reciprocal()

    @property
    def mode(self) -> Tensor:
        return self.rate * 0

    @property
    def variance(self) -> Tensor:
        return self.rate.square().reciprocal()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return -uniform(self.rate, self._shape(sample_shape)).log() / self.rate

    def log_prob(self, value: Tensor) -> Tensor:
        return self.rate.log() - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        return -(-self.rate * value).expm1()

    def icdf(self, value: Tensor) -> Tensor:
        return -(-value).log1p() / self.rate

    def entropy(self) -> Tensor:
        return 1 - self.rate.log()
