"""Families over positive numbers, and over [0, 1], that are transforms of others' draws."""

from __future__ import annotations

import math

import genesis.functional as F
from genesis.creation_like import full_like, ones_like, zeros_like
from genesis.distributions import constraints
from genesis.distributions.composed import TransformedDistribution
from genesis.distributions.constraints import Constraint
from genesis.distributions.continuous import EULER, Cauchy, Exponential, Normal, Uniform
from genesis.distributions.distribution import Parameter, broadcast
from genesis.distributions.gamma import Gamma
from genesis.distributions.transforms import AbsTransform, AffineTransform, ExpTransform, PowerTransform
from genesis.tensor import Tensor


class _Half(TransformedDistribution):
    """|x| of draws that are symmetric around 0."""

    support = constraints.nonnegative
    arg_constraints = {"scale": constraints.positive}
    _of: type[Normal | Cauchy]

    def __init__(self, scale: Parameter, validate_args: bool | None = None) -> None:
        (scale,) = broadcast(scale)
        super().__init__(self._of(0.0 * scale.detach(), scale, validate_args), AbsTransform())

    @property
    def scale(self) -> Tensor:
        """The scale of the distribution without |x|."""
        base = self.base_dist
        assert isinstance(base, (Normal, Cauchy))
        return base.scale

    @property
    def mode(self) -> Tensor:
        return self.scale * 0

    def log_prob(self, value: Tensor) -> Tensor:
        return F.where(value >= 0, self.base_dist.log_prob(value) + math.log(2), -math.inf)

    def cdf(self, value: Tensor) -> Tensor:
        return 2 * self.base_dist.cdf(value) - 1

    def icdf(self, value: Tensor) -> Tensor:
        return self.base_dist.icdf((value + 1) / 2)

    def entropy(self) -> Tensor:
        return self.base_dist.entropy() - math.log(2)


class HalfNormal(_Half):
    """|x| of normal draws around 0.

    Args:
        scale: the standard deviation of x.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import HalfNormal
        >>> round(HalfNormal(1.0).mean.item(), 4)
        0.7979
    """

    _of = Normal

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1 - 2 / math.pi)


class HalfCauchy(_Half):
    """|x| of Cauchy draws around 0, which has no mean. See `genesis.distributions.HalfNormal`."""

    _of = Cauchy

    @property
    def mean(self) -> Tensor:
        return full_like(self.scale, math.inf)

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance


class Pareto(TransformedDistribution):
    """The Pareto distribution: density alpha · scaleᵃˡᵖʰᵃ / xᵃˡᵖʰᵃ⁺¹ from scale on.

    Args:
        scale: the least value, above 0.
        alpha: the exponent, above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Pareto
        >>> Pareto(1.0, 3.0).mean.item()
        1.5
    """

    arg_constraints = {"scale": constraints.positive, "alpha": constraints.positive}

    def __init__(self, scale: Parameter, alpha: Parameter, validate_args: bool | None = None) -> None:
        self.scale, self.alpha = broadcast(scale, alpha)
        base = Exponential(self.alpha, validate_args)
        super().__init__(base, [ExpTransform(), AffineTransform(0.0, self.scale)])

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.greater_than_eq(self.scale)

    @property
    def mean(self) -> Tensor:
        alpha = self.alpha.clamp_min(1)  # infinite at 1 and below
        return alpha * self.scale / (alpha - 1)

    @property
    def mode(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        alpha = self.alpha.clamp_min(2)
        return self.scale.square() * alpha / ((alpha - 1).square() * (alpha - 2))

    def entropy(self) -> Tensor:
        return (self.scale / self.alpha).log() + 1 + 1 / self.alpha


class Weibull(TransformedDistribution):
    """The Weibull distribution: 1 − cdf is e^−(x / scale)ᵏ, of concentration k.

    Args:
        scale, concentration: above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Weibull
        >>> Weibull(2.0, 1.0).mean.item()
        2.0
    """

    support = constraints.positive
    arg_constraints = {"scale": constraints.positive, "concentration": constraints.positive}

    def __init__(self, scale: Parameter, concentration: Parameter, validate_args: bool | None = None) -> None:
        self.scale, self.concentration = broadcast(scale, concentration)
        steps = [PowerTransform(1 / self.concentration), AffineTransform(0.0, self.scale)]
        super().__init__(Exponential(ones_like(self.scale)), steps)

    def _moment(self, n: int) -> Tensor:
        return (1 + n / self.concentration).lgamma().exp()

    @property
    def mean(self) -> Tensor:
        return self.scale * self._moment(1)

    @property
    def mode(self) -> Tensor:
        return self.scale * ((self.concentration - 1) / self.concentration) ** (1 / self.concentration)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (self._moment(2) - self._moment(1).square())

    def entropy(self) -> Tensor:
        return EULER * (1 - 1 / self.concentration) + (self.scale / self.concentration).log() + 1


class InverseGamma(TransformedDistribution):
    """1 / x of draws of the gamma distribution.

    Args:
        concentration, rate: as in `genesis.distributions.Gamma`.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import InverseGamma
        >>> InverseGamma(3.0, 4.0).mean.item()
        2.0
    """

    support = constraints.positive
    arg_constraints = {"concentration": constraints.positive, "rate": constraints.positive}

    def __init__(self, concentration: Parameter, rate: Parameter, validate_args: bool | None = None) -> None:
        base = Gamma(concentration, rate, validate_args)
        self.concentration, self.rate = base.concentration, base.rate
        super().__init__(base, PowerTransform(-1.0))

    @property
    def mean(self) -> Tensor:
        return F.where(self.concentration > 1, self.rate / (self.concentration - 1), math.inf)

    @property
    def mode(self) -> Tensor:
        return self.rate / (self.concentration + 1)

    @property
    def variance(self) -> Tensor:
        a = self.concentration
        return F.where(a > 2, self.rate.square() / ((a - 1).square() * (a - 2)), math.inf)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a + self.rate.log() + a.lgamma() - (1 + a) * a.digamma()


class Kumaraswamy(TransformedDistribution):
    """The Kumaraswamy distribution over [0, 1]: 1 − cdf is (1 − xᵃ)ᵇ.

    Args:
        concentration1, concentration0: a and b, above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Kumaraswamy
        >>> Kumaraswamy(1.0, 1.0).mean.item()
        0.5
    """

    support = constraints.unit_interval
    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}

    def __init__(
        self, concentration1: Parameter, concentration0: Parameter, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        self.concentration1, self.concentration0 = a, b = broadcast(concentration1, concentration0)
        steps = [PowerTransform(1 / b), AffineTransform(1.0, -1.0), PowerTransform(1 / a)]
        super().__init__(Uniform(zeros_like(a), ones_like(a), validate_args), steps)

    def _moment(self, n: int) -> Tensor:
        a, b = 1 + n / self.concentration1, self.concentration0
        return b * (a.lgamma() + b.lgamma() - (a + b).lgamma()).exp()

    @property
    def mean(self) -> Tensor:
        return self._moment(1)

    @property
    def variance(self) -> Tensor:
        return self._moment(2) - self._moment(1).square()

    def entropy(self) -> Tensor:
        a, b = self.concentration1, self.concentration0
        return 1 - 1 / b + (1 - 1 / a) * ((b + 1).digamma() + EULER) - a.log() - b.log()
