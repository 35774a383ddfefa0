"""Families of nearly discrete draws, with gradients: relaxed at a temperature, or straight through."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.distributions import constraints
from genesis.distributions.composed import TransformedDistribution
from genesis.distributions.discrete import Categorical, OneHotCategorical, odds_of
from genesis.distributions.distribution import Distribution, Parameter
from genesis.distributions.elementwise_transforms import inside_unit
from genesis.distributions.transforms import ExpTransform, SigmoidTransform
from genesis.random import rand
from genesis.tensor import Tensor


def _uniform(like: Tensor, shape: Sequence[int]) -> Tensor:
    return inside_unit(rand(shape, dtype=like.dtype, device=like.device))


class LogitRelaxedBernoulli(Distribution):
    """Log-odds of RelaxedBernoulli's draws. See `genesis.distributions.RelaxedBernoulli`."""

    has_rsample = True
    support = constraints.real
    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(
        self, temperature: Tensor, probs: Parameter | None = None, logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.temperature = temperature
        self.probs, self.logits = odds_of(type(self).__name__, probs, logits)
        super().__init__(self.probs.shape, validate_args=validate_args)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        u, p = _uniform(self.probs, self._shape(sample_shape)), inside_unit(self.probs)
        return (u.log() - (-u).log1p() + p.log() - (-p).log1p()) / self.temperature

    def log_prob(self, value: Tensor) -> Tensor:
        apart = self.logits - value * self.temperature
        return self.temperature.log() + apart - 2 * apart.exp().log1p()


class RelaxedBernoulli(TransformedDistribution):
    """Draws in (0, 1), the nearer to 0 and 1 the lower the temperature, with gradients.

    Args:
        temperature: a tensor, above 0.
        probs, logits: as in `genesis.distributions.Bernoulli`.
        validate_args: as in `genesis.distributions.Distribution`.
    Raises: ValueError: both probs and logits, or neither.
    Source: Maddison et al. 2016, arXiv:1611.00712; Jang et al. 2016, arXiv:1611.01144.

    Example:
        >>> from genesis.distributions import RelaxedBernoulli
        >>> RelaxedBernoulli(genesis.tensor(0.5), 0.25).rsample((3,)).shape
        (3,)
    """

    support = constraints.unit_interval
    arg_constraints = {"probs": constraints.unit_interval, "logits": constraints.real}

    def __init__(
        self, temperature: Tensor, probs: Parameter | None = None, logits: Parameter | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self._logit = LogitRelaxedBernoulli(temperature, probs, logits, validate_args)
        super().__init__(self._logit, SigmoidTransform())

    @property
    def temperature(self) -> Tensor:
        """How far draws are from 0 and 1."""
        return self._logit.temperature

    @property
    def logits(self) -> Tensor:
        """The log-odds."""
        return self._logit.logits

    @property
    def probs(self) -> Tensor:
        """The probability of values above 1/2."""
        return self._logit.probs


class ExpRelaxedCategorical(Distribution):
    """Logarithms of RelaxedOneHotCategorical's draws. See `genesis.distributions.RelaxedOneHotCategorical`."""

    has_rsample = True
    support = constraints.real_vector
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, temperature: Tensor, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        categorical = Categorical(probs, logits, validate_args)
        self.temperature, self.probs, self.logits = temperature, categorical.probs, categorical.logits
        super().__init__(self.probs.shape[:-1], self.probs.shape[-1:], validate_args=False)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        gumbel = -(-_uniform(self.logits, self._shape(sample_shape)).log()).log()
        return ((self.logits + gumbel) / self.temperature).log_softmax(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        size = self.event_shape[0]
        log_scale = self.temperature.new_full((), size).lgamma() + (size - 1) * self.temperature.log()
        return (self.logits - value * self.temperature).log_softmax(-1).sum(-1) + log_scale


class RelaxedOneHotCategorical(TransformedDistribution):
    """Draws from the simplex, the nearer to one-hot vectors the lower the temperature, with gradients.

    Args:
        temperature: a tensor, above 0.
        probs, logits: as in `genesis.distributions.Categorical`.
        validate_args: as in `genesis.distributions.Distribution`.
    Raises: ValueError: both probs and logits, or neither.
    Source: Maddison et al. 2016, arXiv:1611.00712; Jang et al. 2016, arXiv:1611.01144.

    Example:
        >>> from genesis.distributions import RelaxedOneHotCategorical
        >>> RelaxedOneHotCategorical(genesis.tensor(0.5), genesis.tensor([0.2, 0.8])).rsample((3,)).shape
        (3, 2)
    """

    support = constraints.simplex
    arg_constraints = {"probs": constraints.simplex, "logits": constraints.real_vector}

    def __init__(
        self, temperature: Tensor, probs: Tensor | None = None, logits: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self._log = ExpRelaxedCategorical(temperature, probs, logits, validate_args)
        super().__init__(self._log, ExpTransform())

    @property
    def temperature(self) -> Tensor:
        """How far draws are from one-hot vectors."""
        return self._log.temperature

    @property
    def logits(self) -> Tensor:
        """(…, K), the logarithms of probs."""
        return self._log.logits

    @property
    def probs(self) -> Tensor:
        """(…, K), that sum to 1."""
        return self._log.probs


class OneHotCategoricalStraightThrough(OneHotCategorical):
    """OneHotCategorical whose draws hand their gradient on to probs. See `genesis.distributions.Categorical`.

    Source: Bengio et al. 2013, arXiv:1308.3432.
    """

    has_rsample = True

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.sample(sample_shape) + (self.probs - self.probs.detach())
