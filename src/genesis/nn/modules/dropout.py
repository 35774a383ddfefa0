"""Dropout: in training, zero elements at random and scale the others up."""

from __future__ import annotations

from genesis import functional as F
from genesis.errors import describe
from genesis.nn.module import Module
from genesis.tensor import Tensor

__all__ = ["Dropout", "Dropout2d"]


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
