"""The Kullback-Leibler divergence of two distributions, by a table of pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import genesis.functional as F
from genesis.distributions.composed import Independent, LogNormal, MultivariateNormal, TransformedDistribution
from genesis.distributions.continuous import EULER, Cauchy, Exponential, Gumbel, Laplace, Normal, Uniform
from genesis.distributions.counts import Binomial
from genesis.distributions.discrete import Bernoulli, Categorical, Geometric, OneHotCategorical, Poisson
from genesis.distributions.distribution import Distribution, sum_last
from genesis.distributions.gamma import Beta, Dirichlet, Gamma
from genesis.distributions.positive import HalfNormal, Pareto
from genesis.linalg import solve_triangular
from genesis.tensor import Tensor

P = TypeVar("P", bound=Distribution)
Q = TypeVar("Q", bound=Distribution)
Divergence = Callable[[P, Q], Tensor]
_PAIRS: dict[tuple[type, type], Callable[[Any, Any], Tensor]] = {}


def register_kl(type_p: type[P], type_q: type[Q]) -> Callable[[Divergence[P, Q]], Divergence[P, Q]]:
    """Register a function as the divergence of a pair of families; a decorator.

    Args:
        type_p, type_q: classes; subclasses without a function of their own use it too.
    Returns: the decorator.

    Example:
        >>> from genesis.distributions import Normal, register_kl
        >>> class Mine(Normal): pass
        >>> function = register_kl(Mine, Mine)(lambda p, q: p.mean - q.mean)
        >>> genesis.distributions.kl_divergence(Mine(1.0, 1.0), Mine(0.0, 1.0)).item()
        1.0
    """

    def register(function: Divergence[P, Q]) -> Divergence[P, Q]:
        _PAIRS[type_p, type_q] = function
        return function

    return register


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """E_p[ln p − ln q].

    Args:
        p, q: distributions of families that have one.
    Returns: the batch shape, floating.
    Raises: NotImplementedError: there is none for this pair.

    Example:
        >>> from genesis.distributions import Normal, kl_divergence
        >>> kl_divergence(Normal(1.0, 1.0), Normal(0.0, 1.0)).item()
        0.5
    """
    for first in type(p).__mro__:
        for second in type(q).__mro__:
            if (first, second) in _PAIRS:
                return _PAIRS[first, second](p, q)
    raise NotImplementedError(f"kl_divergence: none is known from {type(p).__name__} to {type(q).__name__}")


@register_kl(Normal, Normal)
def _normal(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio + ((p.loc - q.loc) / q.scale).square() - 1 - ratio.log())


@register_kl(LogNormal, LogNormal)
def _log_normal(p: LogNormal, q: LogNormal) -> Tensor:
    return _normal(p._normal, q._normal)


@register_kl(HalfNormal, HalfNormal)
def _half_normal(p: HalfNormal, q: HalfNormal) -> Tensor:
    ratio = (p.scale / q.scale).square()
    return 0.5 * (ratio - 1 - ratio.log())


@register_kl(Cauchy, Cauchy)
def _cauchy(p: Cauchy, q: Cauchy) -> Tensor:
    return ((p.scale + q.scale).square() + (p.loc - q.loc).square()).log() - (4 * p.scale * q.scale).log()


@register_kl(Gumbel, Gumbel)
def _gumbel(p: Gumbel, q: Gumbel) -> Tensor:
    ratio, apart = p.scale / q.scale, (p.loc - q.loc) / q.scale
    return -ratio.log() + apart + (ratio - 1) * EULER + ((1 + ratio).lgamma() - apart).exp() - 1


@register_kl(Pareto, Pareto)
def _pareto(p: Pareto, q: Pareto) -> Tensor:
    ratio = q.alpha / p.alpha
    found = q.alpha * (p.scale / q.scale).log() - ratio.log() + ratio - 1
    return F.where(p.scale >= q.scale, found, float("inf"))


@register_kl(Laplace, Laplace)
def _laplace(p: Laplace, q: Laplace) -> Tensor:
    ratio, apart = p.scale / q.scale, (p.loc - q.loc).abs()
    return -ratio.log() + apart / q.scale + ratio * (-apart / p.scale).exp() - 1


@register_kl(Uniform, Uniform)
def _uniform(p: Uniform, q: Uniform) -> Tensor:
    inside = (q.low <= p.low) & (q.high >= p.high)
    return F.where(inside, ((q.high - q.low) / (p.high - p.low)).log(), float("inf"))


@register_kl(Exponential, Exponential)
def _exponential(p: Exponential, q: Exponential) -> Tensor:
    ratio = q.rate / p.rate
    return ratio - ratio.log() - 1


@register_kl(Gamma, Gamma)
def _gamma(p: Gamma, q: Gamma) -> Tensor:
    a, b = p.concentration, q.concentration
    return (
        b * (p.rate / q.rate).log() + b.lgamma() - a.lgamma() + (a - b) * a.digamma() + (q.rate - p.rate) * (a / p.rate)
    )  # fmt: skip


@register_kl(Dirichlet, Dirichlet)
def _dirichlet(p: Dirichlet, q: Dirichlet) -> Tensor:
    a, b = p.concentration, q.concentration
    total = a.sum(-1)
    expected = a.digamma() - total.digamma().unsqueeze(-1)
    return total.lgamma() - b.sum(-1).lgamma() + (b.lgamma() - a.lgamma()).sum(-1) + ((a - b) * expected).sum(-1)


@register_kl(Beta, Beta)
def _beta(p: Beta, q: Beta) -> Tensor:
    return _dirichlet(p._dirichlet(), q._dirichlet())


@register_kl(Bernoulli, Bernoulli)
def _bernoulli(p: Bernoulli, q: Bernoulli) -> Tensor:
    one = p.probs * (F.softplus(-q.logits) - F.softplus(-p.logits))
    return one + (1 - p.probs) * (F.softplus(q.logits) - F.softplus(p.logits))


@register_kl(Binomial, Binomial)
def _binomial(p: Binomial, q: Binomial) -> Tensor:
    if bool((p.total_count < q.total_count).any()):
        raise NotImplementedError("kl_divergence: Binomial's total_count of p is below that of q")
    found = p.total_count * (p.probs * (p.logits - q.logits) + (-p.probs).log1p() - (-q.probs).log1p())
    return F.where(p.total_count == q.total_count, found, float("inf"))


@register_kl(Geometric, Geometric)
def _geometric(p: Geometric, q: Geometric) -> Tensor:
    return -p.entropy() - (-q.probs).log1p() / p.probs - q.logits


@register_kl(Categorical, Categorical)
def _categorical(p: Categorical, q: Categorical) -> Tensor:
    return (p.probs * (p.logits - q.logits)).sum(-1)


@register_kl(OneHotCategorical, OneHotCategorical)
def _one_hot(p: OneHotCategorical, q: OneHotCategorical) -> Tensor:
    return _categorical(p._categorical, q._categorical)


@register_kl(Poisson, Poisson)
def _poisson(p: Poisson, q: Poisson) -> Tensor:
    return p.rate * (p.rate / q.rate).log() - (p.rate - q.rate)


@register_kl(Independent, Independent)
def _independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise NotImplementedError("kl_divergence: both Independent need the same reinterpreted_batch_ndims")
    return sum_last(kl_divergence(p.base_dist, q.base_dist), p.reinterpreted_batch_ndims)


@register_kl(TransformedDistribution, TransformedDistribution)
def _transformed(p: TransformedDistribution, q: TransformedDistribution) -> Tensor:
    if p.transforms != q.transforms or p.event_shape != q.event_shape:
        raise NotImplementedError("kl_divergence: both TransformedDistribution need the same transforms")
    return kl_divergence(p.base_dist, q.base_dist)


@register_kl(MultivariateNormal, MultivariateNormal)
def _multivariate_normal(p: MultivariateNormal, q: MultivariateNormal) -> Tensor:
    scaled = solve_triangular(q.scale_tril, p.scale_tril, upper=False)
    apart = solve_triangular(q.scale_tril, (q.loc - p.loc).unsqueeze(-1), upper=False)
    distance = scaled.square().sum((-2, -1)) + apart.square().sum((-2, -1)) - p.loc.shape[-1]
    return q._half_log_det() - p._half_log_det() + 0.5 * distance
