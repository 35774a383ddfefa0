"""Results that a backward reads, and that may be changed in place all the same: they can be computed again."""

from __future__ import annotations

import functools
from typing import final

import torch
from torch import Tensor

from genesis import activations
from genesis.records import SavedConvNorm


@final
class Version:
    """A tensor's count of changes in place, those of its views too; it keeps neither the tensor nor its memory."""

    __slots__ = ("_alias", "_then")

    def __init__(self, tensor: Tensor) -> None:
        self._alias = tensor.detach()  # which shares the count of changes
        self._then = tensor._version
        self._alias.data = _empty(tensor.dtype)  # but no longer the memory

    def has_changed(self) -> bool:
        return self._alias._version != self._then


@functools.cache
def _empty(dtype: torch.dtype) -> Tensor:
    return torch.empty(0, dtype=dtype)


def kept_result(y: Tensor, passed: Tensor | None, activation: str | None) -> tuple[Tensor | None, Version | None]:
    """Return what the backward keeps of conv_bn_relu's result, and its version if that may change.

    Of an activation whose layer would save its input (ReLU6, leaky ReLU), y is kept without PyTorch's check.
    """
    if passed is None or passed is not y or activation is None or activations.keeps_result(activation):
        return passed, None
    return y.data, Version(y)


def current(saved: SavedConvNorm[Tensor], version: Version | None) -> SavedConvNorm[Tensor]:
    """Drop the result from what was saved, if it has changed: the backward computes the norm again."""
    return saved if version is None or not version.has_changed() else saved._replace(passed=None)
