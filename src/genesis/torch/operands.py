"""Inputs of convolutions whose class has a forward of its own: its call of F.conv2d is seen, and may be deferred.

An `Operand` is the input under another type. Padding gives another one; any other function gets the plain tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from genesis.torch.activations import Function
from genesis.torch.pending import NOT_HERE
from genesis.torch.shapes import Pair
from genesis.torch.tensor_guards import Settings

# (input, weight, bias, settings) → the deferred result, or NOT_HERE.
Defer = Callable[[Tensor, Tensor, Tensor | None, Settings], object]
# What becomes of F.conv2d, as above; or of F.batch_norm, with its own arguments.
Deferring = Mapping[Function, Function]


@final
class Operand(Tensor):
    """A layer's input. plain: the tensor itself. defer: what becomes of which function."""

    plain: Tensor
    defer: Deferring

    @classmethod
    def __torch_function__(
        cls, func: Function, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        first = args[0] if args else None
        given = [plain(each) for each in args]
        options = {key: plain(each) for key, each in (kwargs or {}).items()}
        if type(first) is Operand:
            if func in _CONVOLUTIONS:
                result = _convolve(first.__dict__["defer"].get(F.conv2d), *given, **options)
                if result is not NOT_HERE:
                    return result
            elif func is F.batch_norm and func in first.__dict__["defer"]:
                result = first.__dict__["defer"][func](*given, **options)
                if result is not NOT_HERE:
                    return result
            elif func is F.pad:
                result = func(*given, **options)
                return operand(result, first.__dict__["defer"]) if type(result) is Tensor else result
        return func(*given, **options)


def operand(x: Tensor, defer: Deferring) -> Operand:
    """x as an Operand."""
    result = x.as_subclass(Operand)
    result.__dict__.update(plain=x, defer=defer)
    return result


def plain(value: object) -> object:
    """A value with the tensors themselves for all Operands in it, lists and tuples included."""
    if type(value) is Operand:
        return value.__dict__["plain"]
    if type(value) is tuple:
        return tuple(plain(each) for each in value)
    if type(value) is list:
        return [plain(each) for each in value]
    return {key: plain(each) for key, each in value.items()} if type(value) is dict else value


_CONVOLUTIONS = frozenset((F.conv2d, torch.conv2d))


def _convolve(
    defer: Defer | None, input: Tensor, weight: object = None, bias: Tensor | None = None, stride: object = 1,
    padding: object = 0, dilation: object = 1, groups: object = 1,
) -> object:  # fmt: skip
    pairs = [_pair(each) for each in (stride, dilation)]
    around = padding if type(padding) is str else _pair(padding)
    if defer is None or None in pairs or around is None or type(groups) is not int or not isinstance(weight, Tensor):
        return NOT_HERE
    return defer(input, weight, bias, (pairs[0], around, pairs[1], groups, "zeros"))  # type: ignore[arg-type]


def _pair(value: object) -> Pair | None:
    if type(value) is int:
        return value, value
    if not (isinstance(value, tuple | list) and {type(each) for each in value} == {int} and len(value) in (1, 2)):
        return None
    return value[0], value[-1]
