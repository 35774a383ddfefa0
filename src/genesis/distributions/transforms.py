"""Invertible functions of draws, element by element, with the logarithm of their slope."""

from __future__ import annotations

from collections.abc import Sequence

import genesis.functional as F
from genesis.tensor import Tensor


class Transform:
    """A base of invertible functions.

    Args:
        cache_size: accepted for PyTorch's sake.

    Example:
        >>> from genesis.distributions import ExpTransform
        >>> ExpTransform()(genesis.tensor(0.0)).item(), ExpTransform().inv(genesis.tensor(1.0)).item()
        (1.0, 0.0)
    """

    sign: int = 1  # of the slope

    def __init__(self, cache_size: int = 0) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def inv(self, y: Tensor) -> Tensor:
        """The inverse.

        Args:
            y: any shape.
        Returns: the shape of y.
        """
        raise NotImplementedError

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        """ln |dy / dx|.

        Args:
            x, y: an argument, and the result; one shape.
        Returns: that shape.
        """
        raise NotImplementedError


class ExpTransform(Transform):
    """eˣ. See `genesis.distributions.Transform`."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.exp()

    def inv(self, y: Tensor) -> Tensor:
        return y.log()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return x


class SigmoidTransform(Transform):
    """1 / (1 + e⁻ˣ). See `genesis.distributions.Transform`."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def inv(self, y: Tensor) -> Tensor:
        return y.logit()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -F.softplus(-x) - F.softplus(x)


class TanhTransform(Transform):
    """The hyperbolic tangent. See `genesis.distributions.Transform`."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.tanh()

    def inv(self, y: Tensor) -> Tensor:
        return y.atanh()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return 2.0 * (0.6931471805599453 - x - F.softplus(-2.0 * x))


class AffineTransform(Transform):
    """loc + scale · x.

    Args:
        loc, scale: numbers or tensors.
        event_dim: accepted for PyTorch's sake.
        cache_size: as in `genesis.distributions.Transform`.

    Example:
        >>> from genesis.distributions import AffineTransform
        >>> AffineTransform(1.0, 2.0)(genesis.tensor(3.0)).item()
        7.0
    """

    def __init__(
        self, loc: Tensor | float, scale: Tensor | float, event_dim: int = 0, cache_size: int = 0
    ) -> None:  # fmt: skip
        self.loc, self.scale = loc, scale
        self.sign = 1 if isinstance(scale, Tensor) or scale > 0 else -1

    def __call__(self, x: Tensor) -> Tensor:
        return self.loc + self.scale * x

    def inv(self, y: Tensor) -> Tensor:
        return (y - self.loc) / self.scale

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        slope = self.scale if isinstance(self.scale, Tensor) else x.new_full((), self.scale)
        return slope.abs().log().expand(x.shape)


class ComposeTransform(Transform):
    """Several transforms, in order.

    Args:
        parts: transforms.
        cache_size: as in `genesis.distributions.Transform`.

    Example:
        >>> from genesis.distributions import AffineTransform, ComposeTransform, ExpTransform
        >>> ComposeTransform([ExpTransform(), AffineTransform(0.0, 2.0)])(genesis.tensor(0.0)).item()
        2.0
    """

    def __init__(self, parts: Sequence[Transform], cache_size: int = 0) -> None:
        self.parts = list(parts)
        for part in self.parts:
            self.sign = self.sign * part.sign

    def __call__(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x

    def inv(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.inv(y)
        return y

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        total = x.new_zeros(x.shape)
        for part in self.parts:
            after = part(x)
            total, x = total + part.log_abs_det_jacobian(x, after), after
        return total
