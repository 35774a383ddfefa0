"""Results of contiguous models in the order of memory that chains compute in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, final

import torch
from torch import Tensor

from genesis.torch.modes import Modes, restored
from genesis.torch.shapes import Plan

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry
    from genesis.torch.norm_entries import BareNorm
    from genesis.torch.tensor_guards import GuardedConv, Look


class Origin(Protocol):
    """The facts that a result keeps of the computation behind it."""

    @property
    def entry(self) -> ConvEntry | BareNorm: ...
    @property
    def guarded(self) -> GuardedConv | Look: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def modes(self) -> Modes: ...


class Part(Protocol):
    """The values of a result that are found when they are asked for, such as those of a slice.

    Attributes:
        whole: the result in whose memory other code expects them; None: they are no slice.
    """

    @property
    def whole(self) -> Tensor | None: ...

    def values(self) -> Tensor | None:
        """Return them in channels-last; None once what they are a part of has the memory that PyTorch gives it."""

    def tensor(self) -> Tensor:
        """Return them as PyTorch's layers give them."""


@final
class Computed:
    """The result of a chain of contiguous tensors: contiguous to other code, channels-last to the next chain.

    It takes the place of a Link, at stage 3.
    """

    __slots__ = ("dtype", "entry", "guarded", "inner", "modes", "part", "plan", "source", "taken", "value")

    def __init__(
        self, link: Origin, inner: Tensor, value: Tensor | None, source: Tensor | None, part: Part | None = None
    ) -> None:
        """link: what it is the result of; inner: the values; value: the contiguous tensor, created at once if it is a
        node of a graph, and source the node before it, whose values are inner; part: what has the values instead."""
        self.entry, self.guarded, self.plan, self.dtype, self.modes = (
            link.entry, link.guarded, link.plan, link.dtype, link.modes
        )  # fmt: skip
        self.inner, self.value, self.source, self.part = inner, value, source, part
        self.taken = False  # other code has the value

    def needs_gradients(self, stage: int) -> bool:
        return self.value is not None and self.value.requires_grad

    def compute(self, stage: int) -> Tensor:
        if self.value is not None:
            return self.value
        with restored(self.modes):
            return ordered(self.inner, self.plan) if self.part is None else self.part.tensor()

    def values(self) -> Tensor | None:
        """The values in channels-last; None on a GPU, where a graph records their use, and where they may be old."""
        if self.part is not None:
            return self.part.values()
        return None if self.value is not None or self.inner.is_cuda else self.inner

    def is_current(self) -> bool:
        """False for a slice, once what it is a part of has the memory that PyTorch gives it."""
        return self.part is None or self.part.whole is None or self.part.values() is not None

    def take(self) -> tuple[Tensor, Tensor | None]:
        """A tensor for the next chain, and its values if they are not its own."""
        if self.part is not None:
            values = self.part.values()
            assert values is not None  # computed() has asked
            return values.contiguous(memory_format=torch.channels_last), None
        if self.value is None:
            return self.inner, None
        self.taken = True
        return self.value, self.inner


def ordered(y: Tensor, plan: Plan) -> Tensor:
    """A copy in the order of memory that PyTorch's layers give."""
    is_channels_last = plan.is_ambiguous or not (plan.contiguous or plan.fits_both)
    return y.clone(memory_format=torch.channels_last if is_channels_last else torch.contiguous_format)
