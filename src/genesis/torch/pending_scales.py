"""Functions that scale a Pending, or hand it on as it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genesis.records import NormState
from genesis.torch import bridge, scales
from genesis.torch.activations import Function
from genesis.torch.links import NO_NORM, Link
from genesis.torch.modes import versions_of_three
from genesis.torch.pending import (
    HANDLERS,
    NOT_HERE,
    NotHere,
    Pending,
    batch_norm,
    become,
    can_extend,
    each,
    is_unused_convolution,
    pending,
)  # fmt: skip

LAYER_SCALE = -1  # in the place of a norm's id
_PLAIN = (Tensor, nn.Parameter, int, float)
_IN_PLACE = frozenset((Tensor.mul_, Tensor.__imul__, Tensor.multiply_))


def _scale(func: Function, input: object, other: object = None, *, out: object = None) -> Tensor | NotHere:
    p, factor = (input, other) if type(input) is Pending else (other, input)
    in_place = func in _IN_PLACE
    if type(p) is not Pending or type(factor) not in _PLAIN or out is not None or (in_place and p is not input):
        return NOT_HERE
    link = p.link
    if not is_unused_convolution(p) or type(link) is not Link or link.plan.is_ambiguous or not can_extend(p, link):
        return NOT_HERE
    if not bridge.activates(link.input):
        link.entry.leave_on_cpu()
        return NOT_HERE
    is_trained = isinstance(factor, Tensor) and factor.requires_grad and torch.is_grad_enabled()
    with torch._C.DisableTorchFunctionSubclass():
        fits = scales.scales(p, factor) if is_trained else scales.folds(p, link.weight, factor)
    if not fits:
        return NOT_HERE
    if isinstance(factor, Tensor) and is_trained:
        return _layer_scale(p, factor, in_place)
    assert isinstance(factor, Tensor | int | float)
    return _fold(p, factor, in_place)


def _layer_scale(p: Pending, factor: Tensor, in_place: bool) -> Tensor | NotHere:
    entry, channels = p.link.entry, p.link.plan.channels[0]
    gamma = factor.reshape(-1).expand(channels).contiguous()
    state = NormState(gamma, None, *scales.statistics(channels, gamma.dtype, gamma.device))
    result = batch_norm(p, state, False, 0.0, scales.EPS)
    if result is NOT_HERE:
        return NOT_HERE
    entry.norm = LAYER_SCALE
    if not in_place:
        return result
    if type(result) is not Pending:
        return become(p, result)
    p.link, p.stage = result.link, result.stage
    return p


def _fold(p: Pending, factor: Tensor | float, in_place: bool) -> Tensor | NotHere:
    link = p.link
    assert type(link) is Link
    link.check_convolution()
    scaled = link.copy(0)
    scaled.weight, scaled.bias = scales.folded(link.weight, link.bias, factor)
    assert scaled.weight is not None
    assert link.weight is not None
    if scaled.weight.stride() != link.weight.stride():  # prepared launches are of that one's
        return NOT_HERE
    scaled.cast = None
    scaled.before = link.before if "mul" in link.before else (*link.before, "mul")
    scaled.versions = versions_of_three(scaled.input, scaled.weight, scaled.bias)
    if in_place:
        p.link = scaled
        return p
    link.norm = NO_NORM  # any other use of it is a second one
    return pending(scaled, 0)


def _dropout(input: Tensor, p: object = 0.5, training: object = True, inplace: object = False) -> Tensor | NotHere:
    """The input itself, as PyTorch's, where nothing is dropped."""
    is_idle = type(input) is Pending and type(p) in (int, float) and 0 <= p <= 1 and (p == 0 or training is False)  # type: ignore[operator]
    return input if is_idle else NOT_HERE


HANDLERS.update(
    {
        **each(_scale, (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__)),
        **each(_scale, _IN_PLACE),
        F.dropout: _dropout,
        F.dropout2d: _dropout,
        torch.dropout: _dropout,
    }
)
