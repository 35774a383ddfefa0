"""Layers that are in no chain, on the channels-last values of chains, in a contiguous model on the CPU.

A convolution without a norm, a norm without a convolution, an activation, and the mean: what they take and give needs
no copy (reordering.py). What works in place computes new values, which its operand has from then on. After a norm the
activation that followed it the last time is computed in the same pass.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genesis.torch import activations
from genesis.torch.activations import Function
from genesis.torch.modes import is_plain
from genesis.torch.norm_factors import ACTIVATIONS
from genesis.torch.norm_factors import Normalized as Factored
from genesis.torch.pending import HANDLERS, NOT_HERE, Pending
from genesis.torch.reordering import after_chains, chain_of, computed_by, put_in, reordered, values_of
from genesis.torch.shapes import order_of

if TYPE_CHECKING:
    from genesis.torch.norm_entries import BareNorm

_MOST_IN_VAIN = 3


class _Normalized:
    """The values of a norm: those alone, or what an activation makes of them, computed in the same pass."""

    whole = None

    def __init__(self, norm: BareNorm, normalized: Factored, activation: str | None) -> None:
        self._norm, self._normalized, self._activation = norm, normalized, activation
        self._y = normalized(activation)

    def values(self) -> Tensor:
        if self._activation is not None:
            self._norm.in_vain += 1
            self._y, self._activation = self._normalized(None), None
        return self._y

    def tensor(self) -> Tensor:
        return self.values().contiguous()

    def activated(self, activation: str) -> Tensor:
        if activation in ACTIVATIONS and self._norm.in_vain < _MOST_IN_VAIN:
            self._norm.follows = activation
        if activation == self._activation:
            return self._y
        has_kernel = activation in ACTIVATIONS
        return self._normalized(activation) if has_kernel else activations.apply(self.values(), activation)


def normalize(bare: BareNorm, x: object, norm: nn.BatchNorm2d, activation: str | None) -> Tensor | None:
    """activation(norm(x)) of a chain's result in inference; None: ask the layer."""
    operand = values_of(x)
    if operand is None:
        return None
    chain, values = operand
    normalized = bare.factors.prepared(values, norm, 1)
    if normalized is None:
        return None
    if activation is not None or values.is_contiguous():  # of one pixel or channel, whose order is the same
        return reordered(chain, normalized(activation))
    part = _Normalized(bare, normalized, bare.follows if bare.in_vain < _MOST_IN_VAIN else None)
    return reordered(chain, values, part=part)


def activate(p: object, activation: str, in_place: bool) -> object:
    """activation(p), NOT_HERE where it is left to PyTorch."""
    chain = chain_of(p)
    if chain is None:
        return NOT_HERE
    part = chain.part
    if type(part) is _Normalized:
        y = part.activated(activation)
    else:
        values = chain.values()
        if values is None:
            return NOT_HERE
        y = activations.apply(values, activation)
    return put_in(p, chain, y) if in_place else reordered(chain, y)


def convolve(input: object, weight: object, bias: object = None, *args: object, **kwargs: object) -> object:
    """F.conv2d of a chain's result, NOT_HERE where it is left to PyTorch."""
    operand = values_of(input)
    if operand is None or not _is_constant(weight) or not (bias is None or _is_constant(bias)):
        return NOT_HERE
    if weight.dim() == 4 and order_of(weight) is torch.channels_last:  # of one tap it is contiguous too
        return NOT_HERE
    return reordered(operand[0], F.conv2d(operand[1], weight, bias, *args, **kwargs))


def _is_constant(x: object) -> TypeGuard[Tensor]:
    """A contiguous tensor of no graph: the result has the input's order of memory."""
    if not isinstance(x, Tensor) or not is_plain(x) or not x.is_cpu or not x.is_contiguous():
        return False
    return not (x.requires_grad and torch.is_grad_enabled())


def _normalize(
    input: object, mean: object, var: object, weight: object = None, bias: object = None, training: object = False,
    momentum: object = 0.1, eps: object = 1e-5,
) -> object:  # fmt: skip
    operand = values_of(input)
    tensors = (mean, var, weight, bias)
    if operand is None or training is not False or not all(each is None or _is_constant(each) for each in tensors):
        return NOT_HERE
    return reordered(operand[0], F.batch_norm(operand[1], *tensors, False, momentum, eps))  # type: ignore[arg-type]


def _activate(func: Function, input: object, *args: object, **kwargs: object) -> object:
    found = activations.read(activations.READERS[func], args, kwargs)
    return NOT_HERE if found is None else activate(input, *found)


def _average(func: Function, input: object, *args: object, **kwargs: object) -> object:
    operand = None if "out" in kwargs else values_of(input)
    if operand is None:
        return NOT_HERE
    y = func(operand[1], *args, **kwargs)
    assert isinstance(y, Tensor)
    return reordered(operand[0], y) if y.dim() == 4 else y.contiguous()


def _work_in_place(out_of_place: Function, input: object, *args: object, **kwargs: object) -> object:
    found = computed_by(out_of_place, input, *args, **kwargs) if type(input) is Pending else None
    return NOT_HERE if found is None else put_in(input, *found[:2])


_IN_PLACE: dict[Function, Function] = {
    **dict.fromkeys((Tensor.add_, Tensor.__iadd__), torch.add),
    **dict.fromkeys((Tensor.mul_, Tensor.__imul__, Tensor.multiply_), torch.mul),
}
HANDLERS.update(
    {
        **{func: after_chains(func, functools.partial(_activate, func)) for func in activations.READERS},
        **{func: after_chains(func, functools.partial(_work_in_place, other)) for func, other in _IN_PLACE.items()},
        F.batch_norm: after_chains(F.batch_norm, _normalize),
        F.conv2d: convolve,
        Tensor.mean: functools.partial(_average, Tensor.mean),
        torch.mean: functools.partial(_average, torch.mean),
    }
)
