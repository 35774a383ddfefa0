"""The layers of a Sequential: convolution, batch norm and activation in a row run as one call.

Between them no code but PyTorch's own would see the results, which so need not exist: no deferred tensor is made, and
no layer is called. Where something might watch or change a layer, each is called as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from genesis.records import NormState
from genesis.torch.activations import of_layer
from genesis.torch.computed import Computed
from genesis.torch.deferring import has_hooks, link_again, norm_of
from genesis.torch.links import Link
from genesis.torch.pending import Pending, computed, given, is_autocast_to, pending

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry

_call = nn.Module._wrapped_call_impl


def is_sequential(kind: type[nn.Module]) -> bool:
    """Does a class run its layers as Sequential does?"""
    return issubclass(kind, nn.Sequential) and (kind.forward, kind.__iter__) == _PLAIN


_PLAIN = (nn.Sequential.forward, nn.Sequential.__iter__)


def run(model: nn.Module, input: object, entries: tuple[type, type, type]) -> object:
    """Sequential.forward(model, input). entries: what stands for the forward of the three layers of a chain."""
    assert isinstance(model, nn.Sequential)
    layers = [*model, _END, _END]
    of_conv, of_norm, of_activation = entries
    x, place = input, 0
    while place < len(layers) - 2:
        layer, norm, y = layers[place], layers[place + 1], None
        are_plain = type(layer) is nn.Conv2d and type(norm) is nn.BatchNorm2d
        if are_plain and _is_only(layer, of_conv) and _is_only(norm, of_norm):
            act = layers[place + 2] if _is_only(layers[place + 2], of_activation) else None
            y, number = _chain(layer, norm, act, x), 2 if act is None else 3
        if y is None:
            y, number = layer(x), 1
        x, place = y, place + number
    return x


_END = nn.Module()  # stands for what comes after the last layer


def _is_only(layer: object, entry: type) -> bool:
    """Would a call of this layer be a call of the entry, and nothing else?"""
    if not isinstance(layer, nn.Module):
        return False
    state = layer.__dict__
    return (
        type(state.get("forward")) is entry
        and not has_hooks(state)
        and not state["_forward_pre_hooks"]
        and state.get("_compiled_call_impl") is None
        and type(layer).__call__ is _call
    )


def _chain(conv: nn.Conv2d, norm: nn.BatchNorm2d, act: nn.Module | None, input: object) -> Tensor | None:
    """act(norm(conv(input))); None where the convolution is not to be deferred.

    Without an activation, only under inference_mode: elsewhere the norm's result waits for what follows the Sequential.
    """
    state = conv.__dict__
    entry: ConvEntry | None = state.get("forward")  # another thread may have set it aside
    if entry is None or not entry.active or "weight" in state or "bias" in state or "_conv_forward" in state:
        return None
    parameters = state["_parameters"]
    if "weight" not in parameters or "bias" not in parameters:
        return None
    weight, bias = parameters["weight"], parameters["bias"]
    link: Link | None = None
    settings = (conv.stride, conv.padding, conv.dilation, conv.groups, conv.padding_mode)
    if type(input) is Tensor:
        if torch.is_inference(input):  # no version counter is needed where no other code runs between the layers
            link = entry.link(conv, input, weight, bias, settings, at_once=True)
        elif act is not None:
            link = link_again(entry, state, input, weight, bias)
    elif act is None and not torch.is_inference_mode_enabled():
        return None
    elif type(input) is Pending and type(input.link) is Computed and input.value is None:
        link = entry.link(conv, computed(input), weight, bias, settings, at_once=True)
    if link is None:
        return None
    found = norm_of(norm)
    is_uncounted = link.input.is_inference()
    if is_uncounted and (found is None or found[1]):  # training is PyTorch's there
        return None
    if act is None:
        return _normalized(link, norm, found) if is_uncounted else None
    activation = of_layer(act)
    if activation is not None and found is not None and _take(link, norm, *found):
        y = link.whole(activation[0])
        entry.fused(1, activation[0], True)
        if link.plan.fits_both:
            y = link.in_order(y, None if activation[1] else activation[0])
        return given(y)
    result: Tensor = act(norm(pending(link, 0)))
    return result


def _normalized(link: Link, norm: nn.BatchNorm2d, state: tuple[NormState[Tensor], bool] | None) -> Tensor:
    """norm(conv), computed now."""
    if state is None or not _take(link, norm, *state):
        y: Tensor = norm(pending(link, 0))  # which looks at the norm more closely, for the calls to come
        if type(y) is not Pending or type(y.link) is Computed:
            return y
        link = y.link
    values = link.whole(None)
    return given(link.in_order(values) if link.plan.fits_both else values)


def _take(link: Link, layer: nn.BatchNorm2d, norm: NormState[Tensor], training: bool) -> bool:
    """Let the link take a batch norm that looks like the last one; False: batch_norm() may know better."""
    gamma, beta, mean, var, count = norm
    known, momentum, eps = link.guarded.norm, layer.momentum, layer.eps
    if known is None or link.output is not None or type(momentum) is not float or not eps > 0.0:
        return False
    if gamma is None or beta is None or mean is None or var is None:
        return False
    if not known.fits(norm[:4] if count is None else norm, training) or not is_autocast_to(link):
        return False
    link.known, link.norm, link.training, link.momentum, link.eps = known, norm, training, momentum, eps
    link.entry.norm = id(gamma)
    return True
