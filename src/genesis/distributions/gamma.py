"""The gamma family: Gamma, Beta, Dirichlet, Chi2, with gradients to their concentrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import genesis.functional as F
from genesis.autograd import Context, Function
from genesis.creation_like import ones_like
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.distribution import Distribution, Parameter, broadcast
from genesis.dtypes import float64
from genesis.random import rand, randn
from genesis.tensor import Tensor

_TINY = 1e-30


class StandardGamma(Function):
    """Draws of Gamma(concentration, 1), float64.

    Source: Marsaglia & Tsang 2000, doi:10.1145/358407.358414; of the gradient Figurnov et al. 2018, arXiv:1805.08498.
    """

    @staticmethod
    def forward(ctx: Context, concentration: Tensor) -> Tensor:
        drawn = _marsaglia_tsang(concentration)
        ctx.save_for_backward(concentration, drawn)
        return drawn

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        concentration, drawn = ctx.saved_tensors
        return grad * _implicit_gradient(concentration, drawn)


def _marsaglia_tsang(concentration: Tensor) -> Tensor:
    """Rejection in rounds, until every element is accepted; below 1 from concentration + 1 by a power of a uniform."""
    shape, device = concentration.shape, concentration.device
    small = concentration < 1
    d = F.where(small, concentration + 1, concentration) - 1 / 3
    c = (9 * d).rsqrt()
    drawn, waiting = ones_like(d), ones_like(d).bool()
    while bool(waiting.any()):
        x, u = randn(shape, dtype=float64, device=device), rand(shape, dtype=float64, device=device)
        v = (1 + c * x) ** 3
        inside = v > 0
        safe = F.where(inside, v, 1.0)
        accepted = waiting & inside & ((1 - u).log() < 0.5 * x * x + d - d * safe + d * safe.log())
        drawn, waiting = F.where(accepted, d * safe, drawn), waiting & ~accepted
    boost = (1 - rand(shape, dtype=float64, device=device)).log() / F.where(small, concentration, 1.0)
    return (drawn * F.where(small, boost.exp(), 1.0)).clamp_min(_TINY)


def _implicit_gradient(a: Tensor, z: Tensor) -> Tensor:
    """d z / d a = −(∂F/∂a) / (∂F/∂z), with F(a, z) = Σ zᵃ⁺ⁿ e⁻ᶻ / Γ(a + n + 1); for a above 2000 its limit."""
    large = a > 2000
    b, w = F.where(large, 1.0, a), F.where(large, 1.0, z)
    log_w, term, psi = w.log(), w / b, F.digamma(b + 1)
    total = term * (log_w - psi)
    for n in range(1, 2000):
        term, psi = term * w / (b + n), psi + 1 / (b + n)
        step = term * (log_w - psi)
        total = total + step
        if n % 16 == 0 and bool((step.abs() <= 1e-14 * total.abs() + 1e-300).all()):
            break
    return F.where(large, 1 + (z - a) / (2 * a), -total)


class Gamma(Distribution):
    """The gamma distribution: density rateᵃ xᵃ⁻¹ e^(−rate·x) / Γ(a) of concentration a.

    Args:
        concentration: the shape, above 0.
        rate: the inverse scale, above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Gamma
        >>> Gamma(2.0, 4.0).mean.item()
        0.5
    """

    has_rsample = True
    support = constraints.nonnegative
    arg_constraints: Mapping[str, Constraint] = {"concentration": constraints.positive, "rate": constraints.positive}

    def __init__(self, concentration: Parameter, rate: Parameter, validate_args: bool | None = None) -> None:
        self.concentration, self.rate = broadcast(concentration, rate)
        super().__init__(self.concentration.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.rate

    @property
    def mode(self) -> Tensor:
        return ((self.concentration - 1) / self.rate).clamp_min(0)

    @property
    def variance(self) -> Tensor:
        return self.concentration / self.rate.square()

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._shape(sample_shape)
        return (standard_gamma(self.concentration.expand(shape)) / self.rate.double()).to(self.rate.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return F.xlogy(a, self.rate) + F.xlogy(a - 1, value) - self.rate * value - a.lgamma()

    def cdf(self, value: Tensor) -> Tensor:
        return F.gammainc(self.concentration, self.rate * value)

    def entropy(self) -> Tensor:
        a = self.concentration
        return a - self.rate.log() + a.lgamma() + (1 - a) * a.digamma()


def standard_gamma(concentration: Tensor) -> Tensor:
    return StandardGamma.apply(concentration.double())


class Chi2(Gamma):
    """The χ² distribution of df degrees of freedom: Gamma(df / 2, 1 / 2). See `genesis.distributions.Gamma`."""

    arg_constraints = {"df": constraints.positive}

    def __init__(self, df: Parameter, validate_args: bool | None = None) -> None:
        (self.df,) = broadcast(df)
        super().__init__(0.5 * self.df, 0.5, validate_args)


class Dirichlet(Distribution):
    """The Dirichlet distribution over probabilities.

    Args:
        concentration: (…, K), above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Dirichlet
        >>> Dirichlet(genesis.ones(2)).mean.tolist()
        [0.5, 0.5]
    """

    has_rsample = True
    support = constraints.simplex
    arg_constraints = {"concentration": constraints.independent(constraints.positive, 1)}

    def __init__(self, concentration: Tensor, validate_args: bool | None = None) -> None:
        self.concentration = concentration
        super().__init__(concentration.shape[:-1], concentration.shape[-1:], validate_args)

    @property
    def mean(self) -> Tensor:
        return self.concentration / self.concentration.sum(-1, True)

    @property
    def mode(self) -> Tensor:
        above = (self.concentration - 1).clamp_min(0)
        mode, is_flat = above / above.sum(-1, True), (self.concentration < 1).all(-1, True)
        highest = F.one_hot(mode.argmax(-1), mode.shape[-1]).to(mode.dtype)
        return F.where(is_flat, highest, mode)

    @property
    def variance(self) -> Tensor:
        total = self.concentration.sum(-1, True)
        return self.concentration * (total - self.concentration) / (total.square() * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = standard_gamma(self.concentration.expand(self._shape(sample_shape)))
        return (drawn / drawn.sum(-1, True)).to(self.concentration.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        a = self.concentration
        return F.xlogy(a - 1, value).sum(-1) + a.sum(-1).lgamma() - a.lgamma().sum(-1)

    def entropy(self) -> Tensor:
        a, k = self.concentration, self.concentration.shape[-1]
        total = a.sum(-1)
        return (
            a.lgamma().sum(-1) - total.lgamma() - (k - total) * total.digamma() - ((a - 1) * a.digamma()).sum(-1)
        )  # fmt: skip


class Beta(Distribution):
    """The beta distribution over [0, 1].

    Args:
        concentration1, concentration0: above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Beta
        >>> Beta(1.0, 3.0).mean.item()
        0.25
    """

    has_rsample = True
    support = constraints.unit_interval
    arg_constraints = {"concentration1": constraints.positive, "concentration0": constraints.positive}

    def __init__(
        self, concentration1: Parameter, concentration0: Parameter, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        self.concentration1, self.concentration0 = broadcast(concentration1, concentration0)
        super().__init__(self.concentration1.shape, validate_args=validate_args)

    def _dirichlet(self) -> Dirichlet:
        return Dirichlet(F.stack([self.concentration1, self.concentration0], -1), validate_args=False)

    @property
    def mode(self) -> Tensor:
        return self._dirichlet().mode[..., 0]

    @property
    def mean(self) -> Tensor:
        return self.concentration1 / (self.concentration1 + self.concentration0)

    @property
    def variance(self) -> Tensor:
        total = self.concentration1 + self.concentration0
        return self.concentration1 * self.concentration0 / (total.square() * (total + 1))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._dirichlet().rsample(sample_shape)[..., 0]

    def log_prob(self, value: Tensor) -> Tensor:
        return self._dirichlet().log_prob(F.stack([value, 1 - value], -1))

    def entropy(self) -> Tensor:
        return self._dirichlet().entropy()
