"""Families of quotients of normal and χ² draws: StudentT and FisherSnedecor."""

from __future__ import annotations

import math
from collections.abc import Sequence

import genesis.functional as F
from genesis.distributions import constraints
from genesis.distributions.distribution import Distribution, Parameter, broadcast
from genesis.distributions.gamma import Chi2, Gamma
from genesis.random import randn
from genesis.tensor import Tensor


class StudentT(Distribution):
    """Student's t-distribution of df degrees of freedom, moved and scaled.

    Args:
        df: above 0.
        loc: the middle.
        scale: above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import StudentT
        >>> StudentT(4.0).variance.item()
        2.0
    """

    has_rsample = True
    support = constraints.real
    arg_constraints = {"df": constraints.positive, "loc": constraints.real, "scale": constraints.positive}

    def __init__(
        self, df: Parameter, loc: Parameter = 0.0, scale: Parameter = 1.0, validate_args: bool | None = None
    ) -> None:  # fmt: skip
        self.df, self.loc, self.scale = broadcast(df, loc, scale)
        super().__init__(self.df.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return F.where(self.df > 1, self.loc, math.nan)

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def variance(self) -> Tensor:
        finite = self.scale.square() * self.df / (self.df - 2)
        return F.where(self.df > 2, finite, F.where(self.df > 1, math.inf, self.df * math.nan))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        drawn = randn(self._shape(sample_shape), dtype=self.df.dtype, device=self.df.device)
        spread = Chi2(self.df, validate_args=False).rsample(sample_shape) / self.df
        return self.loc + self.scale * drawn * spread.rsqrt()

    def log_prob(self, value: Tensor) -> Tensor:
        z, above = (value - self.loc) / self.scale, (self.df + 1) / 2
        log_width = self.scale.log() + (self.df * math.pi).log() / 2 + (self.df / 2).lgamma() - above.lgamma()
        return -above * (z.square() / self.df).log1p() - log_width

    def entropy(self) -> Tensor:
        half, above = self.df / 2, (self.df + 1) / 2
        log_beta = half.lgamma() + math.lgamma(0.5) - above.lgamma()
        return self.scale.log() + above * (above.digamma() - half.digamma()) + self.df.log() / 2 + log_beta


class FisherSnedecor(Distribution):
    """The F-distribution: of quotients of two χ² draws, each divided by its degrees of freedom.

    Args:
        df1, df2: degrees of freedom, above 0.
        validate_args: as in `genesis.distributions.Distribution`.

    Example:
        >>> from genesis.distributions import FisherSnedecor
        >>> FisherSnedecor(2.0, 4.0).mean.item()
        2.0
    """

    has_rsample = True
    support = constraints.positive
    arg_constraints = {"df1": constraints.positive, "df2": constraints.positive}

    def __init__(self, df1: Parameter, df2: Parameter, validate_args: bool | None = None) -> None:
        self.df1, self.df2 = broadcast(df1, df2)
        super().__init__(self.df1.shape, validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return F.where(self.df2 > 2, self.df2 / (self.df2 - 2), math.nan)

    @property
    def mode(self) -> Tensor:
        mode = (self.df1 - 2) / self.df1 * self.df2 / (self.df2 + 2)
        return F.where(self.df1 > 2, mode, math.nan)

    @property
    def variance(self) -> Tensor:
        a, b = self.df1, self.df2
        finite = 2 * b.square() * (a + b - 2) / (a * (b - 2).square() * (b - 4))
        return F.where(b > 4, finite, math.nan)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        above, below = (Gamma(df / 2, df / 2, validate_args=False).rsample(sample_shape) for df in (self.df1, self.df2))
        return above / below

    def log_prob(self, value: Tensor) -> Tensor:
        a, b = self.df1 / 2, self.df2 / 2
        ratio = self.df1 / self.df2
        log_beta = a.lgamma() + b.lgamma() - (a + b).lgamma()
        return a * ratio.log() + (a - 1) * value.log() - (a + b) * (ratio * value).log1p() - log_beta
