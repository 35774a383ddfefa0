"""Folds of compiled graphs on the CPU, found again in a few lines: with one image, looking took as long as convolving.

A graph's op is called with the same parameters each time. What folds.py asks of tensors, in whatever form they come, is
asked here of the memory that they were last seen in; anything else is left to it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from genesis.precision import get_float32_precision
from genesis.torch.bridge import call
from genesis.torch.folds import Fold, are_same
from genesis.torch.signatures import InferenceArguments

_MAX_SHAPES = 4


class _Memory(NamedTuple):
    """The memory of an operand, and its form."""

    pointer: int
    dtype: torch.dtype
    shape: torch.Size
    strides: tuple[int, ...]

    def is_of(self, x: Tensor) -> bool:
        return (
            x.data_ptr() == self.pointer
            and x.shape == self.shape
            and x.stride() == self.strides
            and x.dtype is self.dtype
        )


class KnownFold:
    """A fold, and the arguments that it was used with.

    Args:
        args: of a call.
    """

    __slots__ = ("_constants", "_dtype", "_fold", "_memory", "_packed", "_precision")

    def __init__(self, fold: Fold, args: InferenceArguments) -> None:
        self._fold = fold
        self._constants, self._dtype, self._precision = args[8:], args[0].dtype, get_float32_precision()
        self._memory = [None if x is None else _Memory(x.data_ptr(), x.dtype, x.shape, x.stride()) for x in args[1:7]]
        self._packed: dict[torch.Size, tuple[object, tuple[int, ...]]] = {}

    def add(self, fold: Fold, args: InferenceArguments, packed: object, result: Tensor) -> KnownFold:
        """Take in another shape of the input.

        Args:
            packed: the weight that fits it.
            result: of the call, with the strides that the compiler was told.
        Returns: self, or another if the call differs in more.
        """
        known = self if fold is self._fold and self._is_of(args) else KnownFold(fold, args)
        if len(known._packed) >= _MAX_SHAPES:
            known._packed.clear()
        known._packed[args[0].shape] = packed, result.stride()
        return known

    def run(self, args: InferenceArguments) -> Tensor | None:
        """The result; None where the call is another one, or an operand no longer what it was, bit for bit."""
        found = self._packed.get(args[0].shape)
        if found is None or not self._is_of(args) or not are_same(self._fold.kept, args[1:7]):
            return None
        packed, strides = found
        y: Tensor = call("conv_prepacked", args[0], packed, args[7], args[13])
        return y if y.stride() == strides else torch.empty_strided(y.shape, strides, dtype=y.dtype).copy_(y)

    def _is_of(self, args: InferenceArguments) -> bool:
        """Are these the arguments, but for the shape of the input and the values?"""
        if args[8:] != self._constants or args[0].dtype is not self._dtype:
            return False
        for known, x in zip(self._memory, args[1:7], strict=True):
            if known is None or x is None:
                if known is not x:
                    return False
            elif not known.is_of(x):
                return False
        return get_float32_precision() == self._precision
