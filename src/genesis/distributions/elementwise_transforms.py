"""Transforms of single numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import genesis.functional as F
from genesis.distributions import constraints
from genesis.distributions.constraints import Constraint
from genesis.distributions.distribution import sum_last
from genesis.distributions.transform import Transform
from genesis.dtypes import finfo
from genesis.shapes import Shape
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.distributions.distribution import Distribution


class ExpTransform(Transform):
    """eˣ. See `genesis.distributions.Transform`."""

    bijective, sign, codomain = True, 1, constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class SigmoidTransform(Transform):
    """1 / (1 + e⁻ˣ), kept inside (0, 1). See `genesis.distributions.Transform`."""

    bijective, sign, codomain = True, 1, constraints.unit_interval

    def _call(self, x: Tensor) -> Tensor:
        return inside_unit(x.sigmoid())

    def _inverse(self, y: Tensor) -> Tensor:
        y = inside_unit(y)
        return y.log() - (-y).log1p()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -F.softplus(-x) - F.softplus(x)


def inside_unit(p: Tensor) -> Tensor:
    """p without 0 and 1, whose logarithms would be infinite."""
    limits = finfo(p.dtype)
    return p.clamp(limits.tiny, 1.0 - limits.eps)


class SoftplusTransform(Transform):
    """ln(1 + eˣ). See `genesis.distributions.Transform`."""

    bijective, sign, codomain = True, 1, constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return F.softplus(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return (-(-y).expm1()).log() + y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -F.softplus(-x)


class TanhTransform(Transform):
    """The hyperbolic tangent. See `genesis.distributions.Transform`."""

    bijective, sign, codomain = True, 1, constraints.interval(-1.0, 1.0)

    def _call(self, x: Tensor) -> Tensor:
        return x.tanh()

    def _inverse(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (math.log(2.0) - x - F.softplus(-2.0 * x))


class AbsTransform(Transform):
    """|x|, whose inverse is the positive one. See `genesis.distributions.Transform`."""

    codomain = constraints.positive

    def _call(self, x: Tensor) -> Tensor:
        return x.abs()

    def _inverse(self, y: Tensor) -> Tensor:
        return y


class PowerTransform(Transform):
    """x to a power, for x above 0.

    Args:
        exponent: a number or a tensor.
        cache_size: as in `genesis.distributions.Transform`.

    Example:
        >>> from genesis.distributions import PowerTransform
        >>> PowerTransform(2.0)(genesis.tensor(3.0)).item()
        9.0
    """

    bijective, domain, codomain = True, constraints.positive, constraints.positive

    def __init__(self, exponent: Tensor | float, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.exponent = exponent

    @property
    def sign(self) -> int | Tensor:  # type: ignore[override]
        return sign_of(self.exponent)

    def _renewed(self, cache_size: int) -> Transform:
        return PowerTransform(self.exponent, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return x**self.exponent

    def _inverse(self, y: Tensor) -> Tensor:
        return y ** (1 / self.exponent)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.exponent * y / x).abs().log()

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return _broadcast(shape, self.exponent)

    inverse_shape = forward_shape

    def _identity(self) -> tuple[object, ...]:
        return (_comparable(self.exponent),)


class AffineTransform(Transform):
    """loc + scale · x.

    Args:
        loc, scale: numbers or tensors.
        event_dim: dimensions of one event.
        cache_size: as in `genesis.distributions.Transform`.

    Example:
        >>> from genesis.distributions import AffineTransform
        >>> AffineTransform(1.0, 2.0)(genesis.tensor(3.0)).item()
        7.0
    """

    bijective = True

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, event_dim: int = 0, cache_size: int = 0
    ) -> None:  # fmt: skip
        super().__init__(cache_size)
        self.loc, self.scale, self._event_dim = loc, scale, event_dim
        if event_dim:
            self.domain = self.codomain = constraints.independent(constraints.real, event_dim)

    @property
    def sign(self) -> int | Tensor:  # type: ignore[override]
        return sign_of(self.scale)

    def _renewed(self, cache_size: int) -> Transform:
        return AffineTransform(self.loc, self.scale, self._event_dim, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def _inverse(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        slope = self.scale if isinstance(self.scale, Tensor) else x.new_full((), self.scale)
        return sum_last(slope.abs().log().expand(x.shape), self._event_dim)

    def forward_shape(self, shape: Sequence[int]) -> Shape:
        return _broadcast(shape, self.loc, self.scale)

    inverse_shape = forward_shape

    def _identity(self) -> tuple[object, ...]:
        return _comparable(self.loc), _comparable(self.scale), self._event_dim


class CumulativeDistributionTransform(Transform):
    """The cdf of a distribution, which makes its draws uniform.

    Args:
        distribution: of single numbers, with a cdf and an icdf.
        cache_size: as in `genesis.distributions.Transform`.

    Example:
        >>> from genesis.distributions import CumulativeDistributionTransform, Normal
        >>> CumulativeDistributionTransform(Normal(0.0, 1.0))(genesis.tensor(0.0)).item()
        0.5
    """

    bijective, sign, codomain = True, 1, constraints.unit_interval

    def __init__(self, distribution: Distribution, cache_size: int = 0) -> None:
        super().__init__(cache_size)
        self.distribution = distribution

    @property
    def domain(self) -> Constraint:  # type: ignore[override]
        return self.distribution.support

    def _renewed(self, cache_size: int) -> Transform:
        return CumulativeDistributionTransform(self.distribution, cache_size)

    def _call(self, x: Tensor) -> Tensor:
        return self.distribution.cdf(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self.distribution.icdf(y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.distribution.log_prob(x)

    def _identity(self) -> tuple[object, ...]:
        return (self.distribution,)


def sign_of(value: Tensor | float) -> int | Tensor:
    return value.sign() if isinstance(value, Tensor) else (value > 0) - (value < 0)


def _comparable(value: Tensor | float) -> object:
    return (tuple(value.shape), value.tolist()) if isinstance(value, Tensor) else value


def _broadcast(shape: Sequence[int], *values: Tensor | float) -> Shape:
    return F.broadcast_shapes(shape, *[value.shape for value in values if isinstance(value, Tensor)])
