"""Batch norm in inference on the CPU by a scale and a shift of each channel, which are kept for later calls.

PyTorch's own finds both at each call, and an activation after it is a pass of its own; here one pass does both. The
factors are used again only while the norm's tensors are bit for bit what they were (folds.py says why).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from genesis.torch.deferring import norm_of
from genesis.torch.folds import Kept, are_same, form
from genesis.torch.modes import is_plain, nothing_intercepts

Normalized: TypeAlias = "Callable[[str | None], Tensor]"
ACTIVATIONS = (None, "relu", "relu6")  # that the kernel has
_LEAST_NUMBERS = 1 << 17  # of fewer, a norm alone takes PyTorch no longer

_any_autocast = torch._C._is_any_autocast_enabled


class _Factors(NamedTuple):
    """factors: (2, C), scale and shift; kept: the gamma, beta, mean and variance that they were computed from."""

    factors: Tensor
    kept: tuple[Kept | None, ...]
    forms: tuple[object, ...]
    eps: float


class NormFactors:
    """The factors of one norm. Threads may share it: they are replaced as a whole."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: _Factors | None = None

    def run(self, x: object, layer: nn.BatchNorm2d, activation: str | None) -> Tensor | None:
        """activation(layer(x)) of a channels-last image; None: ask the layer itself."""
        normalized = self.prepared(x, layer, _LEAST_NUMBERS if activation is None else 1)
        return None if normalized is None else normalized(activation)

    def prepared(self, x: object, layer: nn.BatchNorm2d, least: int) -> Normalized | None:
        """Return the function of an activation that gives activation(layer(x)), now or later, while x is what it is.

        Args:
            least: numbers that x must have.
        """
        if torch.is_grad_enabled() or layer.training or not isinstance(x, Tensor) or type(x) is not Tensor:
            return None
        if not x.is_cpu or x.dtype is not torch.float32 or _any_autocast() or not nothing_intercepts():
            return None  # before its sizes are looked at: to a tracer they are tensors
        if x.ndim != 4 or x.shape[1] % 8 or x.numel() < least:
            return None
        if x.is_neg() or not x.is_contiguous(memory_format=torch.channels_last):
            return None
        kernel, found = _kernel(), norm_of(layer)
        if kernel is None or found is None or found[1]:
            return None
        gamma, beta, mean, var, _ = found[0]
        last, tensors, eps = self._last, (gamma, beta, mean, var), layer.eps
        forms = tuple(map(form, tensors))
        if last is None or last.eps != eps or last.forms != forms or not are_same(last.kept, tensors):
            number = (torch.float32, True, x.shape[1:2], (1,))
            if not all(each is None or (is_plain(each) and form(each) == number) for each in tensors):
                return None
            kept = tuple([None if each is None else Kept.of(each) for each in tensors])
            last = self._last = _Factors(_factors(tensors, eps), kept, forms, eps)
        elif last.factors.shape[1] != x.shape[1]:
            return None  # the layer says so
        return functools.partial(kernel, x, last.factors, None)


def _factors(tensors: tuple[Tensor | None, ...], eps: float) -> Tensor:
    gamma, beta, mean, var = tensors
    assert mean is not None
    assert var is not None
    with torch.inference_mode(False):
        scale = (var.double() + eps).rsqrt()
        scale = scale if gamma is None else scale * gamma
        shift = -mean * scale if beta is None else beta - mean * scale
        return torch.stack([scale, shift]).float()


@functools.cache
def _kernel() -> Callable[[Tensor, Tensor, Tensor | None, str | None], Tensor] | None:
    """Return the pass over an image; None where this processor has none."""
    from genesis.backends.cpu.x86 import channels, machine  # the CPU's backend: not before a tensor is there

    return None if machine.vectors() is None else channels.normalized
