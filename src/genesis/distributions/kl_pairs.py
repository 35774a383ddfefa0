"""Divergences between different families: E_p[ln p] is −p.entropy(), and E_p[ln q] needs a few moments of p."""

from __future__ import annotations

import math

import genesis.functional as F
from genesis.creation_like import full_like
from genesis.distributions.continuous import EULER, Exponential, Gumbel, Laplace, Normal, Uniform
from genesis.distributions.counts import Binomial
from genesis.distributions.discrete import Bernoulli, Poisson
from genesis.distributions.distribution import Distribution
from genesis.distributions.gamma import Beta, Gamma
from genesis.distributions.kl import register_kl
from genesis.distributions.positive import Pareto
from genesis.tensor import Tensor

# --- what is needed of p ----------------------------------------------------------------------------------------------


def _mean_log(p: Beta | Exponential | Pareto | Uniform) -> Tensor:
    """E[ln x]."""
    if isinstance(p, Beta):
        return p.concentration1.digamma() - (p.concentration1 + p.concentration0).digamma()
    if isinstance(p, Exponential):
        return -p.rate.log() - EULER
    if isinstance(p, Pareto):
        return p.scale.log() + 1 / p.alpha
    return (F.xlogy(p.high, p.high) - F.xlogy(p.low, p.low)) / p._width - 1


def _mean_exp(p: Exponential | Gamma | Normal | Uniform, t: Tensor) -> Tensor:
    """E[e^−tx]."""
    if isinstance(p, Exponential):
        return p.rate / (p.rate + t)
    if isinstance(p, Gamma):
        return (1 + t / p.rate) ** -p.concentration
    if isinstance(p, Normal):
        return (-t * p.loc + (t * p.scale).square() / 2).exp()
    return ((-t * p.low).exp() - (-t * p.high).exp()) / (t * p._width)


def _where_above(p: Distribution, lowest: Tensor | float, divergence: Tensor) -> Tensor:
    """The divergence where all of p is at least `lowest`, else infinity."""
    return F.where(p.low >= lowest, divergence, math.inf) if isinstance(p, Uniform) else divergence


# --- by q -------------------------------------------------------------------------------------------------------------


def _to_normal(p: Distribution, q: Normal) -> Tensor:
    square = p.variance + (p.mean - q.loc).square()
    return square / (2 * q.scale.square()) + q.scale.log() + math.log(2 * math.pi) / 2 - p.entropy()


register_kl(Beta, Normal)(_to_normal)
register_kl(Exponential, Normal)(_to_normal)
register_kl(Gamma, Normal)(_to_normal)
register_kl(Gumbel, Normal)(_to_normal)
register_kl(Laplace, Normal)(_to_normal)
register_kl(Uniform, Normal)(_to_normal)


@register_kl(Pareto, Normal)
def _pareto_to_normal(p: Pareto, q: Normal) -> Tensor:
    return F.where(p.alpha > 2, _to_normal(p, q), math.inf)


def _to_exponential(p: Distribution, q: Exponential) -> Tensor:
    return _where_above(p, 0.0, q.rate * p.mean - q.rate.log() - p.entropy())


register_kl(Beta, Exponential)(_to_exponential)
register_kl(Gamma, Exponential)(_to_exponential)
register_kl(Pareto, Exponential)(_to_exponential)
register_kl(Uniform, Exponential)(_to_exponential)


def _to_gamma(p: Beta | Exponential | Pareto | Uniform, q: Gamma) -> Tensor:
    a, b = q.concentration, q.rate
    return _where_above(p, 0.0, a.lgamma() - a * b.log() - (a - 1) * _mean_log(p) + b * p.mean - p.entropy())


register_kl(Beta, Gamma)(_to_gamma)
register_kl(Exponential, Gamma)(_to_gamma)
register_kl(Pareto, Gamma)(_to_gamma)
register_kl(Uniform, Gamma)(_to_gamma)


def _to_gumbel(p: Exponential | Gamma | Normal | Uniform, q: Gumbel) -> Tensor:
    t = 1 / q.scale
    rising = (q.loc * t).exp() * _mean_exp(p, t)
    return q.scale.log() + (p.mean - q.loc) * t + rising - p.entropy()


register_kl(Exponential, Gumbel)(_to_gumbel)
register_kl(Gamma, Gumbel)(_to_gumbel)
register_kl(Normal, Gumbel)(_to_gumbel)
register_kl(Uniform, Gumbel)(_to_gumbel)


@register_kl(Bernoulli, Poisson)
def _bernoulli_to_poisson(p: Bernoulli, q: Poisson) -> Tensor:
    return q.rate - p.probs * q.rate.log() - p.entropy()


@register_kl(Beta, Uniform)
def _beta_to_uniform(p: Beta, q: Uniform) -> Tensor:
    return F.where((q.low <= 0) & (q.high >= 1), q._width.log() - p.entropy(), math.inf)


@register_kl(Normal, Laplace)
def _normal_to_laplace(p: Normal, q: Laplace) -> Tensor:
    apart = p.loc - q.loc
    z = apart / p.scale
    distance = math.sqrt(2 / math.pi) * p.scale * (-z.square() / 2).exp() + apart * (z * math.sqrt(0.5)).erf()
    return distance / q.scale + (2 * q.scale).log() - p.entropy()


@register_kl(Uniform, Beta)
def _uniform_to_beta(p: Uniform, q: Beta) -> Tensor:
    a, b = q.concentration1, q.concentration0
    mirrored = Uniform(1 - p.high, 1 - p.low, validate_args=False)
    log_beta = a.lgamma() + b.lgamma() - (a + b).lgamma()
    found = log_beta - (a - 1) * _mean_log(p) - (b - 1) * _mean_log(mirrored) - p.entropy()
    return F.where((p.low >= 0) & (p.high <= 1), found, math.inf)


@register_kl(Uniform, Pareto)
def _uniform_to_pareto(p: Uniform, q: Pareto) -> Tensor:
    found = (q.alpha + 1) * _mean_log(p) - q.alpha.log() - q.alpha * q.scale.log() - p.entropy()
    return _where_above(p, q.scale, found)


# --- where p draws what q never does ----------------------------------------------------------------------------------


def _infinite(p: Distribution, q: Distribution) -> Tensor:
    return full_like(p.mean, math.inf)


_NEVER: dict[type[Distribution], tuple[type[Distribution], ...]] = {
    Beta: (Pareto,),
    Exponential: (Beta, Pareto, Uniform),
    Gamma: (Beta, Pareto, Uniform),
    Gumbel: (Beta, Exponential, Gamma, Pareto, Uniform),
    Laplace: (Beta, Exponential, Gamma, Pareto, Uniform),
    Normal: (Beta, Exponential, Gamma, Pareto, Uniform),
    Pareto: (Beta, Uniform),
    Poisson: (Bernoulli, Binomial),
}
for _drawn, _others in _NEVER.items():
    for _other in _others:
        register_kl(_drawn, _other)(_infinite)
