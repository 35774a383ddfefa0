"""Dropout: in training, zero elements at random and scale the others up."""

from __future__ import annotations

from typing import Any

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
    """Zero each element with probability p in training, and divide the others by 1 − p.

    Example:
        >>> nn.Dropout(0.5).eval()(genesis.ones(3)).tolist()
        [1.0, 1.0, 1.0]
    """

    def forward(self, input: Tensor) -> Any:
        return F.dropout(input, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """Zero whole channels of (N, C, H, W) with probability p in training, and divide the others by 1 − p."""

    def forward(self, input: Tensor) -> Any:
        return F.dropout2d(input, self.p, self.training, self.inplace)
