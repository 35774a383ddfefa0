"""A convolution that is called again with tensors that look the same: deferred in one step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module

from genesis.torch.autograd_functions import place
from genesis.torch.links import Link
from genesis.torch.modes import current_modes, function_modes
from genesis.torch.pending import Pending, pending
from genesis.torch.tensor_guards import autocast_dtype

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry

_before_backward, _at_backward = torch_module._global_backward_pre_hooks, torch_module._global_backward_hooks
_before_forward, _at_forward = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks


def has_hooks(state: dict[str, Any]) -> bool:
    """Does anybody watch the calls of a layer with these attributes?"""
    return bool(
        state["_forward_hooks"] or state["_backward_hooks"] or state["_backward_pre_hooks"]
        or _before_backward or _at_backward or _before_forward or _at_forward
    )  # fmt: skip


def defer_again(
    entry: ConvEntry, state: dict[str, Any], input: Tensor, weight: Tensor, bias: Tensor | None
) -> Pending | None:
    """Defer the convolution of a tensor like the last one; None: ask ConvEntry._link(), which also says why not.

    Its checks are those of _link() for a known convolution, written out: every step of this costs a chain its share.
    state: the layer's attributes.
    """
    known = entry.guarded
    if known is None or known.strides is not None:
        return None
    if bias is None:
        if known.number != 2 or not known.same(input, weight):
            return None
    elif known.number != 3 or not known.same(input, weight, bias):
        return None
    settings = (state["stride"], state["padding"], state["dilation"], state["groups"], state["padding_mode"])
    if known.settings != settings or has_hooks(state):
        return None
    if known.autocast is not None and known.autocast is not autocast_dtype(input):
        return None
    modes = current_modes()
    if modes[2] is not None or place.function or function_modes() or forward_ad._current_level >= 0:
        return None
    try:
        versions = (input._version, weight._version, 0 if bias is None else bias._version)
    except RuntimeError:  # an inference tensor
        return None
    return pending(Link(entry, known, input, weight, bias, modes, versions), 0)
