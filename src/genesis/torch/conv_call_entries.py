"""The attribute `forward` that fuse() sets on convolutions whose class has a forward of its own."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import functional as F

from genesis.torch.autograd_functions import place
from genesis.torch.entries import PATIENCE, ConvEntry
from genesis.torch.modes import nothing_intercepts
from genesis.torch.operands import operand, plain
from genesis.torch.pending import NOT_HERE, Pending, materialize, materialized, pending
from genesis.torch.tensor_guards import Settings


class ConvCallEntry(ConvEntry):
    """The forward of a subclass of Conv2d that has one of its own: it defers the F.conv2d that this calls.

    As of timm's StdConv2d and Conv2dSame.
    """

    def __call__(self, input: Tensor, *args: object, **kwargs: object) -> Tensor:
        is_left = is_compiling() or place.left
        conv = self.original() if is_compiling() else self.owner()
        forward = type(conv).forward
        if is_left or not self.active or type(input) not in (Tensor, Pending) or not nothing_intercepts():
            if self.left_on_cpu and isinstance(input, Tensor) and input.is_cuda:
                self.begin()
            waits = type(input) is Pending and input.stage and input.link.values() is not None and nothing_intercepts()
            return cast("Tensor", forward(conv, input if waits else materialized(input), *args, **kwargs))
        if type(input) is Pending and input.stage < 3:
            input.link.entry.taker = "conv2d"
        given, deferred = materialize(input) if type(input) is Pending else input, False

        def defer(x: Tensor, weight: Tensor, bias: Tensor | None, settings: Settings) -> object:
            nonlocal deferred
            link = None if deferred else self.link(conv, x, weight, bias, settings)  # one of the same forward
            if link is None:
                return NOT_HERE
            deferred = True
            return pending(link, 0)

        result = plain(forward(conv, operand(given, {F.conv2d: defer}), *args, **kwargs))
        if not deferred:
            self.unfused += 1
            what = f"{type(conv).__name__} is a subclass of Conv2d that computes something else"
            self.reason = self.reason or what
            self.active = self.unfused < PATIENCE
        return cast("Tensor", result)
