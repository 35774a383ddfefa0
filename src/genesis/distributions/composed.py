"""Distributions of distributions: Independent, transformed ones, LogNormal, and the multivariate normal."""

from __future__ import annotations

import math
from collections.abc import Sequence

import genesis.functional as F
from genesis.autograd import no_grad
from genesis.distributions.continuous import Normal
from genesis.distributions.distribution import Distribution, Parameter, sum_last
from genesis.distributions.transforms import ExpTransform, Transform
from genesis.errors import ShapeError, describe
from genesis.linalg import cholesky, solve_triangular
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
        transforms: one, or a sequence that is applied in order; element by element.
        validate_args: accepted for PyTorch's sake.

    Example:
        >>> from genesis.distributions import ExpTransform, Normal, TransformedDistribution
        >>> TransformedDistribution(Normal(0.0, 1.0), ExpTransform()).log_prob(genesis.tensor(1.0)).item()
        -0.9189385175704956
    """

    def __init__(
        self, base_distribution: Distribution, transforms: Transform | Sequence[Transform],
        validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        self.base_dist = base_distribution
        self.transforms = [transforms] if isinstance(transforms, Transform) else list(transforms)
        super().__init__(base_distribution.batch_shape, base_distribution.event_shape, validate_args=False)

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
        for transform in reversed(self.transforms):
            before = transform.inv(value)
            lost = lost + sum_last(transform.log_abs_det_jacobian(before, value), len(self.event_shape))
            value = before
        return self.base_dist.log_prob(value) - lost

    def cdf(self, value: Tensor) -> Tensor:
        sign = 1
        for transform in reversed(self.transforms):
            sign, value = sign * transform.sign, transform.inv(value)
        below = self.base_dist.cdf(value)
        return below if sign > 0 else 1 - below


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
    def mean(self) -> Tensor:
        return (self.loc + self.scale.square() / 2).exp()

    @property
    def variance(self) -> Tensor:
        square = self.scale.square()
        return square.expm1() * (2 * self.loc + square).exp()

    def entropy(self) -> Tensor:
        return self._normal.entropy() + self.loc


class MultivariateNormal(Distribution):
    """The normal distribution of vectors.

    Args:
        loc: (…, K), the mean.
        covariance_matrix: (…, K, K), positive definite.
        precision_matrix: not supported.
        scale_tril: (…, K, K), the Cholesky factor of the covariance, in its place.
        validate_args: accepted for PyTorch's sake.
    Raises: ValueError: not exactly one matrix. LinAlgError: the covariance is not positive definite.

    Example:
        >>> from genesis.distributions import MultivariateNormal
        >>> MultivariateNormal(genesis.zeros(2), genesis.eye(2)).log_prob(genesis.zeros(2)).item()
        -1.8378770351409912
    """

    has_rsample = True

    def __init__(
        self, loc: Tensor, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
        scale_tril: Tensor | None = None, validate_args: bool | None = None,
    ) -> None:  # fmt: skip
        if precision_matrix is not None:
            raise NotImplementedError("MultivariateNormal: precision_matrix is not supported; give its inverse")
        if (covariance_matrix is None) == (scale_tril is None):
            raise ValueError(describe("MultivariateNormal", "scale_tril", "one of the matrices", "both or neither"))
        factor = scale_tril if covariance_matrix is None else cholesky(covariance_matrix)
        assert factor is not None
        batch = F.broadcast_shapes(loc.shape[:-1], factor.shape[:-2])
        self.loc, self.scale_tril = loc.expand((*batch, loc.shape[-1])), factor.expand((*batch, *factor.shape[-2:]))
        super().__init__(batch, loc.shape[-1:], validate_args=False)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariances."""
        return self.scale_tril @ self.scale_tril.mT

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
