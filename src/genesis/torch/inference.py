"""The batch norm of a deferred convolution in inference, called again with tensors that look the same.

Of the chain's three calls this is the one that computes. Nothing that was computed earlier is used again, only what
follows from the looks of its tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from genesis.records import NormState, record
from genesis.torch.modes import current_modes, function_modes
from genesis.torch.pending import NO_ACTIVATIONS, Pending, given, is_autocast_to, pending

_any_autocast = torch._C._is_any_autocast_enabled


def infer_norm(p: Pending, layer: nn.BatchNorm2d) -> Tensor | None:
    """batch_norm() of a layer in eval mode without gradients, called again; None: ask batch_norm().

    Its checks are those of batch_norm() for a known norm, written out: every step of this costs a chain its share.
    """
    if p.stage or p.value is not None:
        return None
    link: Any = p.link  # a Link, at stage 0
    known, modes, entry = link.guarded.norm, link.modes, link.entry
    if known is None or known.training or modes[0] or link.norm is not None:
        return None
    parameters, buffers, eps = layer._parameters, layer._buffers, layer.eps
    following = entry.next
    if not eps > 0.0 or link.output is not None or not following:
        return None
    try:
        gamma, beta = parameters["weight"], parameters["bias"]
        mean, var = buffers["running_mean"], buffers["running_var"]
        if not known.same(gamma, beta, mean, var):
            return None
        input, weight, bias = link.input, link.weight, link.bias
        if link.versions != (input._version, weight._version, 0 if bias is None else bias._version):
            return None
        link.norm_versions = (gamma._version, beta._version, mean._version, var._version)
    except (AttributeError, KeyError, RuntimeError):  # None, a parametrization's, an inference tensor
        return None
    if current_modes() is not modes or function_modes() or forward_ad._current_level >= 0:
        return None
    if _any_autocast() and not is_autocast_to(link):
        return None
    link.norm, link.eps, link.known = record(NormState, (gamma, beta, mean, var, None)), eps, known
    link.training, link.momentum = False, 0.0
    entry.norm = id(gamma)
    if following == "value":
        y = link.infer(None, None)
        return given(link.in_order(y) if link.plan.fits_both else y)
    if following not in NO_ACTIVATIONS:
        link.ready, link.ready_for = link.infer(following, None), following
    return pending(link, 1)
