"""Families of integers: Bernoulli, Categorical, Geometric, Poisson, and one-hot vectors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import genesis.functional as F
from genesis.autograd import enable_grad, no_grad
from genesis.creation import arange, eye
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.distribution import Distribution, Parameter, broadcast
from genesis.draws import draw_indices
from genesis.dtypes import float64
from genesis.errors import describe
from genesis.random import rand, randn
from genesis.tensor import Tensor


def _one_of(op: str, probs: object, logits: object) -> None:
    if (probs is None) == (logits is None):
        raise ValueError(describe(op, "probs", "either probs or logits", "both" if probs is not None else "neither"))


def odds_of(op: str, probs: Parameter | None, logits: Parameter | None) -> tuple[Tensor, Tensor]:
    """A probability and its log-odds, of which one is given."""
    _one_of(op, probs, logits)
    if logits is not None:
        (logits,) = broadcast(logits)
        return logits.sigmoid(), logits
    assert probs is not None
    (probs,) = broadcast(probs)
    eps = _eps(probs)
    return probs, probs.clamp(eps, 1 - eps).logit()


class _ByOdds(Distribution):
    """A family of one probability."""

    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(
        self, probs: Parameter | None = None, logits: Parameter | None = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        self.probs, self.logits = odds_of(type(self).__name__, probs, logits)
        super().__init__(self.probs.shape, validate_args=validate_args)


class Bernoulli(_ByOdds):
    """1 with some probability, else 0.

    Args:
        probs: the probability of 1.
        logits: its log-odds, in its place.
        validate_args: as in `genesis.distributions.Distribution`.
    Raises: ValueError: both probs and logits, or neither.

    Example:
        >>> from genesis.distributions import Bernoulli
        >>> Bernoulli(0.25).mean.item(), Bernoulli(0.25).variance.item()
        (0.25, 0.1875)
    """

    support = constraints.boolean
    has_enumerate_support = True

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(2, dtype=self.probs.dtype, device=self.probs.device).reshape((2, *[1] * len(self.batch_shape)))
        return values.expand((2, *self.batch_shape)) if expand else values

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def mode(self) -> Tensor:
        return F.where(self.probs == 0.5, math.nan, (self.probs > 0.5).to(self.probs.dtype))

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            draws = rand(self._shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device)
            return (draws < self.probs).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = F.broadcast_tensors(self.logits, value)
        return -F.binary_cross_entropy_with_logits(logits, value, reduction="none")

    def entropy(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


def _eps(values: Tensor) -> float:
    return 2.0**-52 if values.dtype is float64 else 2.0**-23


class Geometric(_ByOdds):
    """The number of failures before the first success. See `genesis.distributions.Bernoulli`."""

    support = constraints.nonnegative_integer

    @property
    def mean(self) -> Tensor:
        return 1 / self.probs - 1

    @property
    def mode(self) -> Tensor:
        return self.probs * 0

    @property
    def variance(self) -> Tensor:
        return (1 / self.probs - 1) / self.probs

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            draws = rand(self._shape(sample_shape), dtype=self.probs.dtype, device=self.probs.device)
            return ((-draws).log1p() / (-self.probs).log1p()).floor()

    def log_prob(self, value: Tensor) -> Tensor:
        return F.xlog1py(value, -self.probs) + self.probs.log()

    def entropy(self) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none") / self.probs


class Categorical(Distribution):
    """A number from 0 to K − 1 with given probabilities.

    Args:
        probs: (…, K), at least 0; they are divided by their sum.
        logits: (…, K), their logarithms up to a constant, in their place.
        validate_args: as in `genesis.distributions.Distribution`.
    Raises: ValueError: both probs and logits, or neither.

    Example:
        >>> from genesis.distributions import Categorical
        >>> [round(p, 4) for p in Categorical(genesis.tensor([1.0, 3.0])).probs.tolist()]
        [0.25, 0.75]
    """

    has_enumerate_support = True
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        _one_of(type(self).__name__, probs, logits)
        if logits is not None:
            self.logits = logits - logits.logsumexp(-1, True)
        elif probs is not None:
            self.probs = probs / probs.sum(-1, True)
        given = self.probs if logits is None else self.logits
        super().__init__(given.shape[:-1], validate_args=False)
        if validate_args is not False:
            self._validate(given)

    def _validate(self, given: Tensor) -> None:
        """One look at the values: NaN passes through amin, and a negative weight is negative or NaN behind the sum."""
        if not given.numel():
            return
        lowest = given.detach().amin().item()
        if math.isnan(lowest) or ("probs" in vars(self) and lowest < 0):
            name = "probs" if "probs" in vars(self) else "logits"
            raise ValueError(describe(type(self).__name__, name, "values in [0, 1] behind their sum", "others"))

    @functools.cached_property
    def probs(self) -> Tensor:
        """(…, K), that sum to 1."""
        with enable_grad():  # it is kept, and may be asked for while drawing
            return self.logits.softmax(-1)

    @functools.cached_property
    def logits(self) -> Tensor:
        """(…, K), the logarithms of probs."""
        eps = _eps(self.probs)
        with enable_grad():
            return self.probs.clamp(eps, 1 - eps).log()

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.integer_interval(0, self._num_events - 1)

    @property
    def _num_events(self) -> int:
        known = vars(self)
        return int((known["probs"] if "probs" in known else known["logits"]).shape[-1])

    def enumerate_support(self, expand: bool = True) -> Tensor:
        values = arange(self._num_events, device=self.logits.device).reshape((-1, *[1] * len(self.batch_shape)))
        return values.expand((-1, *self.batch_shape)) if expand else values

    @property
    def mean(self) -> Tensor:
        return self.probs[..., 0] * math.nan

    @property
    def variance(self) -> Tensor:
        return self.probs[..., 0] * math.nan

    @property
    def mode(self) -> Tensor:
        """The most probable number."""
        return self.probs.argmax(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            if not sample_shape:
                return draw_indices(self.probs, 1).squeeze(-1)
            rows = self.probs.reshape(-1, self.probs.shape[-1])
            return draw_indices(rows, math.prod(sample_shape)).t().reshape(self._shape(sample_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        logits, value = self.logits, value.long()
        if value.shape != self.batch_shape:
            shape = F.broadcast_shapes(value.shape, self.batch_shape)
            logits, value = logits.expand((*shape, logits.shape[-1])), value.expand(shape)
        return logits.gather(-1, value.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        lowest = -3.4e38
        return -(self.logits.clamp_min(lowest) * self.probs).sum(-1)


class OneHotCategorical(Distribution):
    """A one-hot vector with given probabilities of its places. See `genesis.distributions.Categorical`."""

    support = constraints.one_hot
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}
    has_enumerate_support = True

    def __init__(
        self, probs: Tensor | None = None, logits: Tensor | None = None, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        self._categorical = Categorical(probs, logits, validate_args)
        self.probs, self.logits = self._categorical.probs, self._categorical.logits
        super().__init__(self.probs.shape[:-1], self.probs.shape[-1:], validate_args=False)

    @property
    def mean(self) -> Tensor:
        return self.probs

    @property
    def variance(self) -> Tensor:
        return self.probs * (1 - self.probs)

    @property
    def mode(self) -> Tensor:
        return F.one_hot(self.probs.argmax(-1), self.probs.shape[-1]).to(self.probs.dtype)

    def enumerate_support(self, expand: bool = True) -> Tensor:
        size = self.event_shape[0]
        values = eye(size, dtype=self.probs.dtype, device=self.probs.device)
        values = values.reshape((size, *[1] * len(self.batch_shape), size))
        return values.expand((size, *self.batch_shape, size)) if expand else values

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        places = self._categorical.sample(sample_shape)
        return F.one_hot(places, self.probs.shape[-1]).to(self.probs.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        return self._categorical.log_prob(value.argmax(-1))

    def entropy(self) -> Tensor:
        return self._categorical.entropy()


class Poisson(Distribution):
    """The number of events at a rate.

    Args:
        rate: above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import Poisson
        >>> Poisson(3.0).log_prob(genesis.tensor(0.0)).item()
        -3.0
    """

    support = constraints.nonnegative_integer
    arg_constraints = {"rate": constraints.positive}

    def __init__(self, rate: Parameter, validate_args: bool | None = None) -> None:
        (self.rate,) = broadcast(rate)
        super().__init__(self.rate.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.rate

    @property
    def mode(self) -> Tensor:
        return self.rate.floor()

    @property
    def variance(self) -> Tensor:
        return self.rate

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            rate = self.rate.expand(self._shape(sample_shape))
            return draw_poisson(rate.double()).to(self.rate.dtype)

    def log_prob(self, value: Tensor) -> Tensor:
        return F.xlogy(value, self.rate) - self.rate - (value + 1).lgamma()


def draw_poisson(rate: Tensor) -> Tensor:
    """Up to 1000 by inversion, term by term; above, a rounded normal draw with the skewness of the distribution."""
    small = rate <= 1000
    part = F.where(small, rate, 1.0)
    u = rand(rate.shape, dtype=float64, device=rate.device)
    term, count = -part, F.where(small, 0.0, 0.0)
    below = term.exp()
    number = 0
    while bool((waiting := u > below).any()) and number < 2000:
        number += 1
        count = F.where(waiting, float(number), count)
        term = term + part.log() - math.log(number)
        below = below + term.exp()
    z = randn(rate.shape, dtype=float64, device=rate.device)
    normal = (rate + rate.sqrt() * z + (z * z - 1) / 6).round().clamp_min(0)
    return F.where(small, count, normal)
