"""The quick way for a convolution that is called again, and the operands that a norm gives to its chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module

from genesis.records import NormState, record
from genesis.torch.autograd_functions import place
from genesis.torch.links import Link
from genesis.torch.modes import current_modes, function_modes
from genesis.torch.tensor_guards import autocast_dtype

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry

Attributes: TypeAlias = "dict[str, Any]"
"""Those of a layer, its __dict__."""

_before_backward, _at_backward = torch_module._global_backward_pre_hooks, torch_module._global_backward_hooks
_before_forward, _at_forward = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks


def has_hooks(state: Attributes) -> bool:
    """Does anybody watch the calls of a layer?"""
    return bool(
        state["_forward_hooks"] or state["_backward_hooks"] or state["_backward_pre_hooks"]
        or _before_backward or _at_backward or _before_forward or _at_forward
    )  # fmt: skip


def link_again(entry: ConvEntry, state: Attributes, input: Tensor, weight: Tensor, bias: Tensor | None) -> Link | None:
    """The deferred convolution of a tensor like the last one; None: ask ConvEntry.link(), which also says why not.

    Its checks are those of link() for a known convolution, written out: every step of this costs a chain its share.
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
    if input.is_inference() or (modes[0] and not known.trains):
        return None
    try:
        versions = (input._version, weight._version, 0 if bias is None else bias._version)
    except RuntimeError:  # parameters made under inference_mode
        return None
    return Link(entry, known, input, weight, bias, modes, versions)


def norm_of(layer: nn.BatchNorm2d) -> tuple[NormState[Tensor], bool] | None:
    """The tensors that a batch norm works with, and whether it normalizes by the batch; None: ask the layer itself.

    With the count of batches where that is to grow.
    """
    training, tracks, buffers, parameters = layer.training, layer.track_running_stats, layer._buffers, layer._parameters
    count = buffers.get("num_batches_tracked") if training and tracks else None
    if layer.momentum is None or len(buffers) != 3 or not (count is None or type(count) is Tensor):
        return None
    if "weight" not in parameters or "bias" not in parameters:
        return None
    mean, var = buffers["running_mean"], buffers["running_var"]
    if training and not tracks:
        mean = var = None
    tensors = (parameters["weight"], parameters["bias"], mean, var, count)
    return record(NormState, tensors), training or mean is None
