"""Distributions of distributions: Independent, transformed ones, LogNormal, and the multivariate normal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import genesis.functional as F
from genesis.autograd import no_grad
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.continuous import Normal
from genesis.distributions.distribution import Distribution, Parameter, sum_last
from genesis.distributions.transforms import ComposeTransform, ExpTransform, StickBreakingTransform, Transform
from genesis.errors import ShapeError, describe
from genesis.linalg import cholesky, solve_triangular
from genesis.linalg.older import cholesky_inverse
from genesis.random import randn
from genesis.tensor import Tensor


class Independent(Distribution):
    """The last dimensions of another distribution's batch as parts of one draw.

    Args:
        base_distribution: any.
        reinterpreted_batch_ndims: how many dimensions.
        validate_args: accepted for PyTorch's sake.
    Raises: ShapeError: the batch has fewer dimensions.

    Example:
        >>> from genesis.distributions import Independent, Normal
        >>> Independent(Normal(genesis.zeros(2), 1.0), 1).log_prob(genesis.zeros(2)).shape
        ()
    """

    def __init__(
        self, base_distribution: Distribution, reinterpreted_batch_ndims: int, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        shape, count = base_distribution.batch_shape, reinterpreted_batch_ndims
        if count > len(shape):
            raise ShapeError(describe("Independent", "reinterpreted_batch_ndims", f"at most {len(shape)}", count))
        self.base_dist, self.reinterpreted_batch_ndims = base_distribution, count
        cut = len(shape) - count
        super().__init__(shape[:cut], (*shape[cut:], *base_distribution.event_shape), validate_args=False)
        self.has_rsample = base_distribution.has_rsample

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        count, base = self.reinterpreted_batch_ndims, self.base_dist.support
        return constraints.independent(base, count) if count else base

    @property
    def mode(self) -> Tensor:
        return self.base_dist.mode

    @property
    def mean(self) -> Tensor:
        return self.base_dist.mean

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.sample(sample_shape)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.base_dist.rsample(sample_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        return sum_last(self.base_dist.log_prob(value), self.reinterpreted_batch_ndims)

    def entropy(self) -> Tensor:
        return sum_last(self.base_dist.entropy(), self.reinterpreted_batch_ndims)


class TransformedDistribution(Distribution):
    """The distribution of transforms of another one's draws.

    Args:
        base_distribution: any.
        transforms: one, or a sequence that is applied in order.
        validate_args: accepted for PyTorch's sake.
    Raises: ShapeError: the base's draws have fewer dimensions than the transforms' events.

    Example:
        >>> from genesis.distributions import ExpTransform, Normal, TransformedDistribution
        >>> TransformedDistribution(Normal(0.0, 1.0), ExpTransform()).log_prob(genesis.tensor(1.0)).item()
        -0.9189385175704956
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        whole = ComposeTransform(self.transforms)
        domain, codomain, base = whole.domain.event_dim, whole.codomain.event_dim, base_distribution
        before = (*base.batch_shape, *base.event_shape)
        if len(before) < domain:
            raise ShapeError(describe("TransformedDistribution", "base_distribution", f"{domain} dimensions", before))
        after = whole.forward_shape(before)
        if (wider := whole.inverse_shape(after)) != before:  # the transform's parameters broadcast
            base = base.expand(wider[: len(wider) - len(base.event_shape)])
        more = domain - len(base.event_shape)
        self.base_dist = Independent(base, more) if more > 0 else base
        event_dim = max(codomain, len(base.event_shape) + codomain - domain)
        cut = len(after) - event_dim
        super().__init__(after[:cut], after[cut:], validate_args=False)
        self.has_rsample = base.has_rsample

    @property
    def support(self) -> Constraint:  # type: ignore[override]
        if not self.transforms:
            return self.base_dist.support
        codomain = self.transforms[-1].codomain
        more = len(self.event_shape) - codomain.event_dim
        return constraints.independent(codomain, more) if more > 0 else codomain

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self._forward(self.base_dist.rsample(sample_shape))

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        with no_grad():
            return self._forward(self.base_dist.sample(sample_shape))

    def _forward(self, value: Tensor) -> Tensor:
        for transform in self.transforms:
            value = transform(value)
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        lost: Tensor | float = 0.0
        dims = len(self.event_shape)
        for transform in reversed(self.transforms):
            before = transform.inv(value)
            dims += transform.domain.event_dim - transform.codomain.event_dim
            slope = transform.log_abs_det_jacobian(before, value)
            lost = lost + sum_last(slope, dims - transform.domain.event_dim)
            value = before
        return sum_last(self.base_dist.log_prob(value), dims - len(self.base_dist.event_shape)) - lost

    def cdf(self, value: Tensor) -> Tensor:
        for transform in reversed(self.transforms):
            value = transform.inv(value)
        return self._turned(self.base_dist.cdf(value))

    def icdf(self, value: Tensor) -> Tensor:
        return self._forward(self.base_dist.icdf(self._turned(value)))

    def _turned(self, p: Tensor) -> Tensor:
        """1 − p where the transforms fall."""
        sign = ComposeTransform(self.transforms).sign
        return p if isinstance(sign, int) and sign > 0 else sign * (p - 0.5) + 0.5


class LogNormal(TransformedDistribution):
    """e to a normal draw.

    Args:
        loc, scale: of the normal distribution.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import LogNormal
        >>> LogNormal(0.0, 1.0).mean.item()
        1.6487212181091309
    """

    support = constraints.positive
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(self, loc: Parameter, scale: Parameter, validate_args: bool | None = None) -> None:
        self._normal = Normal(loc, scale, validate_args)
        super().__init__(self._normal, ExpTransform())

    @property
    def loc(self) -> Tensor:
        """The mean of the logarithm."""
        return self._normal.loc

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the logarithm."""
        return self._normal.scale

    @property
    def mode(self) -> Tensor:
        return (self.loc - self.scale.square()).exp()

    @property
    def mean(self) -> Tensor:
        return (self.loc + self.scale.square() / 2).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale.square()
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        return self._normal.entropy() + self.loc


class LogisticNormal(TransformedDistribution):
    """The stick-breaking transform of a normal draw: from the simplex of one more dimension.

    Args:
        loc, scale: (…, K), of the normal distribution.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import LogisticNormal
        >>> LogisticNormal(genesis.zeros(2), genesis.ones(2)).sample().shape
        (3,)
    """

    support = constraints.simplex
    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}

    def __init__(self, loc: Parameter, scale: Parameter, validate_args: bool | None = None) -> None:
        normal = Normal(loc, scale, validate_args)
        self._normal = normal if normal.batch_shape else normal.expand((1,))
        super().__init__(self._normal, StickBreakingTransform())

    @property
    def loc(self) -> Tensor:
        """The mean of the normal distribution."""
        return self._normal.loc

    @property
    def scale(self) -> Tensor:
        """The standard deviation of the normal distribution."""
        return self._normal.scale


class MultivariateNormal(Distribution):
    """The normal distribution of vectors.

    Args:
        loc: (…, K), the mean.
        covariance_matrix: (…, K, K), positive definite.
        precision_matrix: (…, K, K), the inverse of the covariance, in its place.
        scale_tril: (…, K, K), the Cholesky factor of the covariance, in its place.
        validate_args: accepted for PyTorch's sake.
    Raises: ValueError: not exactly one matrix. LinAlgError: the covariance is not positive definite.

    Example:
        >>> from genesis.distributions import MultivariateNormal
        >>> MultivariateNormal(genesis.zeros(2), genesis.eye(2)).log_prob(genesis.zeros(2)).item()
        -1.8378770351409912
    """

    has_rsample = True
    support = constraints.real_vector

    def __init__(
        self, loc: Tensor, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        given = [each for each in (covariance_matrix, scale_tril, precision_matrix) if each is not None]
        if len(given) != 1:
            raise ValueError(describe("MultivariateNormal", "scale_tril", "one of the matrices", f"{len(given)}"))
        factor = given[0]
        if precision_matrix is not None:
            factor = cholesky(cholesky_inverse(cholesky(precision_matrix)))
        elif covariance_matrix is not None:
            factor = cholesky(covariance_matrix)
        batch = F.broadcast_shapes(loc.shape[:-1], factor.shape[:-2])
        self.loc, self.scale_tril = loc.expand((*batch, loc.shape[-1])), factor.expand((*batch, *factor.shape[-2:]))
        super().__init__(batch, loc.shape[-1:], validate_args=False)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariances."""
        return self.scale_tril @ self.scale_tril.mT

    @property
    def precision_matrix(self) -> Tensor:
        """The inverse of the covariances."""
        return cholesky_inverse(self.scale_tril)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def mean(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        return self.scale_tril.square().sum(-1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        draws = randn(self._shape(sample_shape), dtype=self.loc.dtype, device=self.loc.device)
        return self.loc + (self.scale_tril @ draws.unsqueeze(-1)).squeeze(-1)

    def log_prob(self, value: Tensor) -> Tensor:
        apart = (value - self.loc).unsqueeze(-1)
        shape = F.broadcast_shapes(apart.shape[:-2], self.batch_shape)
        factor = self.scale_tril.expand((*shape, *self.scale_tril.shape[-2:]))
        scaled = solve_triangular(factor, apart.expand((*shape, *apart.shape[-2:])), upper=False)
        size = self.loc.shape[-1]
        return -0.5 * (size * math.log(2 * math.pi) + scaled.square().sum((-2, -1))) - self._half_log_det()

    def _half_log_det(self) -> Tensor:
        return self.scale_tril.diagonal(0, -2, -1).log().sum(-1)

    def entropy(self) -> Tensor:
        return 0.5 * self.loc.shape[-1] * (1 + math.log(2 * math.pi)) + self._half_log_det()
