"""Mixtures of distributions of one family."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.autograd import no_grad
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.discrete import Categorical
from genesis.distributions.distribution import Distribution
from genesis.errors import ShapeError, describe
from genesis.tensor import Tensor


class MixtureSameFamily(Distribution):
    """Draws of one of K components, which is drawn first.

    Args:
        mixture_distribution: over K numbers.
        component_distribution: whose last batch dimension is K.
        validate_args: accepted for PyTorch's sake.
    Raises: ShapeError: the batch shape of the mixture and that of the components don't fit.

    Example:
        >>> from genesis.distributions import Categorical, MixtureSameFamily, Normal
        >>> two = Normal(genesis.tensor([-1.0, 1.0]), 1.0)
        >>> MixtureSameFamily(Categorical(genesis.tensor([0.5, 0.5])), two).variance.item()
        2.0
    """

    def __init__(
        self, mixture_distribution: Categorical, component_distribution: Distribution,
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        weights, shape = mixture_distribution.logits.shape, component_distribution.batch_shape
        if not shape or weights[-1] != shape[-1] or any(
            mine not in (1, other) and other != 1
            for mine, other in zip(reversed(weights[:-1]), reversed(shape[:-1]), strict=False)
        ):  # fmt: skip
            expected = f"batch shapes that end in {tuple(weights)}"
            raise ShapeError(describe("MixtureSameFamily", "component_distribution", expected, shape))
        self.mixture_distribution, self.component_distribution = mixture_distribution, component_distribution
        super().__init__(shape[:-1], component_distribution.event_shape, validate_args=False)

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        return constraints.MixtureSameFamilyConstraint(self.component_distribution.support)

    @property
    def mean(self) -> Tensor:
        return (self._weights() * self.component_distribution.mean).sum(-1 - len(self.event_shape))

    @property
    def variance(self) -> Tensor:
        """The variance within components, and that of their means."""
        means = self.component_distribution.mean
        center, dim = self.mean, -1 - len(self.event_shape)
        within = self.component_distribution.variance
        return (self._weights() * (within + (means - center.unsqueeze(dim)).square())).sum(dim)

    def _weights(self) -> Tensor:
        probs = self.mixture_distribution.probs
        return probs.reshape((*probs.shape, *[1] * len(self.event_shape)))

    def _unsqueezed(self, value: Tensor) -> Tensor:
        return value.unsqueeze(-1 - len(self.event_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        each = self.component_distribution.log_prob(self._unsqueezed(value))
        return (each + self.mixture_distribution.logits.log_softmax(-1)).logsumexp(-1)

    def cdf(self, value: Tensor) -> Tensor:
        each = self.component_distribution.cdf(self._unsqueezed(value))
        return (each * self.mixture_distribution.probs).sum(-1)

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        dims = len(self.event_shape)
        with no_grad():
            chosen = self.mixture_distribution.sample(sample_shape)
            drawn = self.component_distribution.sample(sample_shape)
            dim = drawn.ndim - 1 - dims
            places = chosen.reshape((*chosen.shape, *[1] * (dims + 1)))
            size = (*drawn.shape[:dim], 1, *drawn.shape[dim + 1 :])
            return drawn.gather(dim, places.expand(size)).squeeze(dim)
