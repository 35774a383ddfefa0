"""What a chain has computed: contiguous to other code, channels-last to the next chain."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from genesis.torch.modes import Modes, current_modes, nothing_intercepts, without_newer_hooks
from genesis.torch.shapes import Plan

if TYPE_CHECKING:
    from genesis.torch.links import Link

_any_autocast = torch._C._is_any_autocast_enabled


@final
class Computed:
    """The result of a chain of contiguous tensors: contiguous to other code, channels-last to the next chain.

    It takes the place of a Link, at stage 3.
    """

    __slots__ = ("dtype", "entry", "guarded", "inner", "modes", "plan", "source", "taken", "value")

    def __init__(self, link: Link, inner: Tensor, value: Tensor | None, source: Tensor | None) -> None:
        """inner: the values; value: the contiguous tensor, created at once if it is a node of a graph, and source the
        node before it, whose values are inner."""
        self.entry, self.guarded, self.plan, self.dtype, self.modes = (
            link.entry, link.guarded, link.plan, link.dtype, link.modes
        )  # fmt: skip
        self.inner, self.value, self.source = inner, value, source
        self.taken = False  # other code has the value

    def needs_gradients(self, stage: int) -> bool:
        return self.value is not None and self.value.requires_grad

    def compute(self, stage: int) -> Tensor:
        if self.value is not None:
            return self.value
        with restored(self.modes):
            return ordered(self.inner, self.plan)

    def values(self) -> Tensor | None:
        """The channels-last values; None on a GPU, and where a graph records their use."""
        return None if self.value is not None or self.inner.is_cuda else self.inner

    def take(self) -> tuple[Tensor, Tensor | None]:
        """A tensor for the next chain, and its values if they are not its own."""
        if self.value is None:
            return self.inner, None
        self.taken = True
        return self.value, self.inner


def ordered(y: Tensor, plan: Plan) -> Tensor:
    """A copy in the order of memory that PyTorch's layers give."""
    is_channels_last = plan.is_ambiguous or not (plan.contiguous or plan.fits_both)
    return y.clone(memory_format=torch.channels_last if is_channels_last else torch.contiguous_format)


def restored(then: Modes) -> ExitStack:
    """Restore modes of an earlier time, and disable modes that were entered since."""
    stack = ExitStack()
    grad, inference, saving = then
    if torch.is_inference_mode_enabled() is not inference:
        stack.enter_context(torch.inference_mode(inference))
    if torch.is_grad_enabled() is not grad:
        stack.enter_context(torch.set_grad_enabled(grad))
    if _any_autocast():
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
    if not nothing_intercepts():
        stack.enter_context(torch.utils._python_dispatch._disable_current_modes())
    if current_modes().saving is not saving:
        stack.enter_context(without_newer_hooks(saving))
    return stack
