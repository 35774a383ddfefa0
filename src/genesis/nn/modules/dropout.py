"""Dropout: in training, zero elements at random and scale the others up."""

from __future__ import annotations

from genesis import functional as F
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class _Dropout(Module):
    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(describe(type(self).__name__, "p", "a probability from 0 to 1", p))
        self.p = p
        self.inplace = inplace

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """Zero each element with probability p and divide the others by 1 − p; in eval mode, do nothing.

    Args:
        p: probability, in [0, 1].
        inplace: overwrite the input.
    Shape: any, of a floating dtype; the output has the same.
    Raises: ValueError: p is not in [0, 1].
    Source: Srivastava et al. 2014, JMLR 15:1929.

    Example:
        >>> nn.Dropout(0.5).eval()(genesis.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """Zero whole channels with probability p and divide the others by 1 − p; in eval mode, do nothing.

    Args:
        p: probability, in [0, 1].
        inplace: overwrite the input.
    Shape: (N, C, H, W), of a floating dtype; the output has the same.
    Raises: ValueError: p is not in [0, 1].
    Source: Tompson et al. 2014, arXiv:1411.4280.

    Example:
        >>> nn.Dropout2d(1.0)(genesis.ones(1, 2, 1, 1)).flatten().tolist()
        [0.0, 0.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout1d(_Dropout):
    """Zero whole channels of signals with probability p and divide the others by 1 − p; in eval mode, do nothing.

    Args:
        p: probability, in [0, 1].
        inplace: overwrite the input.
    Shape: (N, C, L) or (C, L), of a floating dtype; the output has the same.
    Raises: ValueError: p is not in [0, 1].

    Example:
        >>> nn.Dropout1d(1.0)(genesis.ones(1, 2, 1)).flatten().tolist()
        [0.0, 0.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout3d(_Dropout):
    """Zero whole channels of volumes with probability p and divide the others by 1 − p; in eval mode, do nothing.

    Args:
        p: probability, in [0, 1].
        inplace: overwrite the input.
    Shape: (N, C, D, H, W) or (C, D, H, W), of a floating dtype; the output has the same.
    Raises: ValueError: p is not in [0, 1].

    Example:
        >>> nn.Dropout3d(1.0)(genesis.ones(1, 2, 1, 1, 1)).flatten().tolist()
        [0.0, 0.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(_Dropout):
    """Dropout for networks of SELU: elements take its negative limit, and mean and variance are kept.

    Args:
        p: probability, in [0, 1].
        inplace: overwrite the input.
    Shape: any, of a floating dtype; the output has the same.
    Raises: ValueError: p is not in [0, 1].
    Source: Klambauer et al. 2017, arXiv:1706.02515.

    Example:
        >>> nn.AlphaDropout(0.5).eval()(genesis.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.alpha_dropout(input, self.p, self.training, self.inplace)


class FeatureAlphaDropout(_Dropout):
    """AlphaDropout of whole channels.

    Args:
        p: probability, in [0, 1].
        inplace: overwrite the input.
    Shape: (N, C, …), of a floating dtype; the output has the same.
    Raises: ValueError: p is not in [0, 1].

    Example:
        >>> nn.FeatureAlphaDropout(0.5).eval()(genesis.ones(1, 2, 1)).flatten().tolist()
        [1.0, 1.0]
    """

    def forward(self, input: Tensor) -> Tensor:
        return F.feature_alpha_dropout(input, self.p, self.training, self.inplace)
