"""Families of counts of successes: Binomial, NegativeBinomial, Multinomial."""

from __future__ import annotations

import math
from collections.abc import Sequence

import genesis.functional as F
from genesis.autograd import no_grad
from genesis.creation import arange
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.discrete import Categorical, draw_poisson, odds_of
from genesis.distributions.distribution import Distribution, Parameter, broadcast
from genesis.distributions.gamma import standard_gamma
from genesis.errors import DTypeError, describe
from genesis.random import rand
from genesis.tensor import Tensor


class Binomial(Distribution):
    """The number of successes in independent trials.

    Args:
        total_count: of trials, at least 0.
        probs: the probability of success.
        logits: its log-odds, in its place.
        validate_args: as in `genesis.distributions.Distribution`.
    Raises: ValueError: both probs and logits, or neither.

    Example:
        >>> from genesis.distributions import Binomial
        >>> Binomial(4, 0.25).mean.item(), Binomial(4, 0.25).variance.item()
        (1.0, 0.75)
    """

    has_enumerate_support = True
    arg_constraints = {
        "total_count": constraints.nonnegative_integer, "probs": constraints.unit_interval, "logits": constraints.real,
    }  # fmt: skip

    def __init__(
        self, total_count: Parameter = 1, probs: Parameter | None = None, logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.probs, self.logits = odds_of(type(self).__name__, probs, logits)
        self.total_count, self.probs, self.logits = broadcast(_like(total_count, self.probs), self.probs, self.logits)
        super().__init__(self.probs.shape, validate_args=validate_args)

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.integer_interval(0, self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.probs

    @property
    def mode(self) -> Tensor:
        return F.minimum(((self.total_count + 1) * self.probs).floor(), self.total_count)

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._shape(sample_shape)
        with no_grad():
            drawn = draw_binomial(self.total_count.double().expand(shape), self.probs.double().expand(shape))
            return drawn.to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        n, logits = self.total_count, self.logits
        log_ways = (n + 1).lgamma() - (value + 1).lgamma() - (n - value + 1).lgamma()
        return log_ways + value * logits + n * F.logsigmoid(-logits)

    def entropy(self) -> Tensor:
        each = self.log_prob(self.enumerate_support(False))
        return -(each.exp() * each).sum(0)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        most = int(self.total_count.amax().item())
        if int(self.total_count.amin().item()) != most:
            raise NotImplementedError("Binomial.enumerate_support: the elements of total_count differ")
        values = arange(most + 1, dtype=self.probs.dtype, device=self.probs.device)
        values = values.reshape((-1, *[1] * len(self.batch_shape)))
        return values.expand((-1, *self.batch_shape)) if expand else values


def _like(value: Parameter, other: Tensor) -> Tensor:
    return value.to(other.dtype) if isinstance(value, Tensor) else other.new_full((), value)


def draw_binomial(count: Tensor, p: Tensor) -> Tensor:
    """Halve the trials until few are left: the middle one of uniform draws in order has a beta distribution.

    Source: Devroye 1986, Non-Uniform Random Variate Generation, §X.4.3.
    """
    successes = 0.0 * count
    while bool((many := count > 64).any()):
        middle = (count / 2).floor() + 1
        a, b = (standard_gamma(F.where(many, each, 1.0)) for each in (middle, count + 1 - middle))
        value = a / (a + b)  # of the middle one: it is a success if it is at most p
        above = value > p
        successes = successes + F.where(many & ~above, middle, 0.0)
        rest = F.where(above, p / value, (p - value) / (1 - value))
        count = F.where(many, F.where(above, middle - 1, count - middle), count)
        p = F.where(many, rest.clamp(0, 1), p)
    most = int(count.amax().item()) if count.numel() else 0
    trials = rand((*count.shape, most), dtype=count.dtype, device=count.device)
    counted = arange(most, dtype=count.dtype, device=count.device) < count.unsqueeze(-1)
    return successes + ((trials < p.unsqueeze(-1)) & counted).sum(-1)


class NegativeBinomial(Distribution):
    """The number of successes before a number of failures.

    Args:
        total_count: of failures, above 0; need not be whole.
        probs, logits: as in `genesis.distributions.Binomial`; probs below 1.
        validate_args: as in `genesis.distributions.Distribution`.
    Raises: ValueError: both probs and logits, or neither.

    Example:
        >>> from genesis.distributions import NegativeBinomial
        >>> NegativeBinomial(3.0, 0.5).mean.item()
        3.0
    """

    support = constraints.nonnegative_integer
    arg_constraints = {
        "total_count": constraints.greater_than_eq(0.0), "probs": constraints.half_open_interval(0.0, 1.0),
        "logits": constraints.real,
    }  # fmt: skip

    def __init__(
        self, total_count: Parameter, probs: Parameter | None = None, logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.probs, self.logits = odds_of(type(self).__name__, probs, logits)
        self.total_count, self.probs, self.logits = broadcast(_like(total_count, self.probs), self.probs, self.logits)
        super().__init__(self.probs.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.total_count * self.logits.exp()

    @property
    def mode(self) -> Tensor:
        return ((self.total_count - 1) * self.logits.exp()).floor().clamp_min(0)

    @property
    def variance(self) -> Tensor:
        return self.mean / (-self.logits).sigmoid()

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._shape(sample_shape)
        with no_grad():
            rate = standard_gamma(self.total_count.expand(shape)) * self.logits.double().exp()
            return draw_poisson(rate).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        n, logits = self.total_count, self.logits
        log_ways = (n + value).lgamma() - (value + 1).lgamma() - n.lgamma()
        log_ways = F.where(n + value == 0, 0.0, log_ways)
        return log_ways + n * F.logsigmoid(-logits) + value * F.logsigmoid(logits)


class Multinomial(Distribution):
    """How often each of K numbers is drawn.

    Args:
        total_count: of draws, an int.
        probs, logits: as in `genesis.distributions.Categorical`.
        validate_args: as in `genesis.distributions.Distribution`.
    Raises: DTypeError: total_count is no int. ValueError: both probs and logits, or neither.

    Example:
        >>> from genesis.distributions import Multinomial
        >>> Multinomial(8, genesis.tensor([1.0, 3.0])).mean.tolist()
        [2.0, 6.0]
    """

    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, total_count: int = 1, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(total_count, int):
            raise DTypeError(describe("Multinomial", "total_count", "an int", repr(total_count)))
        self.total_count, self._categorical = total_count, Categorical(probs, logits, validate_args)
        shape = self._categorical.probs.shape
        super().__init__(shape[:-1], shape[-1:], validate_args=False)

    @property
    def probs(self) -> Tensor:
        """(…, K), that sum to 1."""
        return self._categorical.probs

    @property
    def logits(self) -> Tensor:
        """(…, K), the logarithms of probs."""
        return self._categorical.logits

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.multinomial(self.total_count)

    @property
    def mean(self) -> Tensor:
        return self.probs * self.total_count

    @property
    def variance(self) -> Tensor:
        return self.total_count * self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = self._categorical.sample((self.total_count, *sample_shape))
        return F.one_hot(drawn, self.event_shape[0]).sum(0).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        log_ways = (value.sum(-1) + 1).lgamma() - (value + 1).lgamma().sum(-1)
        impossible = (value == 0) & (self.logits == -math.inf)
        return log_ways + F.where(impossible, 0.0, self.logits * value).sum(-1)

    def entropy(self) -> Tensor:
        n = self.total_count
        each = Binomial(n, self.probs, validate_args=False)
        counts = each.enumerate_support(False)[1:]
        spread = (each.log_prob(counts).exp() * (counts + 1).lgamma()).sum((0, -1))
        return n * self._categorical.entropy() - math.lgamma(n + 1) + spread
