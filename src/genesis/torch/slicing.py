"""Slices of a chain's result in a contiguous model on the CPU, such as the halves that a block works on.

A slice shares the memory of what it is a part of, and other code may write into either. So it is pending too: a chain
takes the same part of the channels-last values, and other code the part of the memory that PyTorch's layers would give,
which the whole then has as well.
"""

from __future__ import annotations

import functools
import operator
from typing import NamedTuple, cast

import torch
from torch import Tensor

from genesis.torch.activations import Function
from genesis.torch.computed import Computed
from genesis.torch.modes import current_modes
from genesis.torch.pending import HANDLERS, NOT_HERE, Pending, each, materialize, pending
from genesis.torch.reordering import Origin, look_like, values_of
from genesis.torch.tensor_guards import Look


class _Call(NamedTuple):
    """A function that slices, and its arguments after the tensor; slice objects as tuples, which have a hash."""

    func: Function
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]

    def __call__(self, x: Tensor) -> list[Tensor]:
        found = self.func(x, *map(_sliced, self.args), **dict(self.kwargs))
        return [found] if isinstance(found, Tensor) else [*cast("tuple[Tensor, ...]", found)]


class _Slice(NamedTuple):
    start: int | None
    stop: int | None
    step: int | None


class _Place(NamedTuple):
    """The place of a part in a whole, its first number and the steps between numbers by dimension, and its look."""

    first: tuple[int, ...]
    steps: tuple[int, ...]
    look: Look


class _Part(NamedTuple):
    """One of the parts of a whole."""

    whole: Pending
    call: _Call
    number: int
    place: _Place

    def values(self) -> Tensor | None:
        whole = self.whole
        link = whole.link if type(whole) is Pending and whole.value is None else None
        values = link.values() if type(link) is Computed else None
        if values is None:
            return None
        first, steps, look = self.place
        strides = values.stride()
        offset = sum(map(operator.mul, first, strides)) + values.storage_offset()
        return values.as_strided(look.plan.output_shape, [*map(operator.mul, steps, strides)], offset)

    def tensor(self) -> Tensor:
        return self.call(materialize(self.whole) if type(self.whole) is Pending else self.whole)[self.number]


def _slice(func: Function, p: object, *args: object, **kwargs: object) -> object:
    operand = values_of(p)
    if operand is None or type(p) is not Pending:
        return NOT_HERE
    chain, values = operand
    try:
        if func is Tensor.__getitem__ and _has_list(args):
            return NOT_HERE  # it copies
        call = _Call(func, tuple(map(_hashable, args)), tuple((name, _hashable(x)) for name, x in kwargs.items()))
        places = _places(call, chain.plan.output_shape, chain.plan.strides, chain.dtype)
    except TypeError:  # an index that is no slice
        return NOT_HERE
    if places is None:
        return NOT_HERE
    modes = current_modes()
    parts = []
    for number, place in enumerate(places):
        look = place.look
        origin = Origin(chain.entry, look, look.plan, look.dtype, modes)
        parts.append(pending(Computed(origin, values, None, None, _Part(p, call, number, place)), 3))
    return parts[0] if func in _OF_ONE else tuple(parts)


def _has_list(arguments: tuple[object, ...]) -> bool:
    return any(type(x) is list or (type(x) is tuple and _has_list(x)) for x in arguments)


def _hashable(argument: object) -> object:
    """The argument, with a hash. Raises: TypeError: with it the function may do something else than to slice."""
    if type(argument) is tuple or type(argument) is list:
        return tuple(map(_hashable, argument))
    if type(argument) is slice:
        bounds = (argument.start, argument.stop, argument.step)
        if all(each is None or type(each) is int for each in bounds):
            return _Slice(*bounds)
    elif argument is Ellipsis or type(argument) is int:
        return argument
    raise TypeError


def _sliced(argument: object) -> object:
    if type(argument) is _Slice:
        return slice(*argument)
    return tuple(map(_sliced, argument)) if type(argument) is tuple else argument


@functools.lru_cache(1024)
def _places(call: _Call, shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype) -> tuple[_Place, ...] | None:
    """Find where the parts lie, and their looks in PyTorch; None where they are no images."""
    indices = [torch.arange(size, device="cpu") for size in shape]
    parts = call(torch.empty_strided(shape, strides, dtype=dtype, device="meta"))
    if not all(part.dim() == 4 and part.numel() for part in parts):
        return None
    places = []
    for number, part in enumerate(parts):
        found = []
        for dim, index in enumerate(indices):
            along = call(index.view([-1 if d == dim else 1 for d in range(4)]).expand(shape))[number].movedim(dim, 0)
            numbers = along.reshape(len(along), -1)[:, 0].tolist()
            found.append((numbers[0], numbers[1] - numbers[0] if len(numbers) > 1 else 1))
        first, steps = zip(*found, strict=True)
        places.append(_Place(first, steps, look_like(part)))
    return tuple(places)


_OF_ONE: tuple[Function, ...] = (Tensor.__getitem__, torch.narrow, Tensor.narrow)
_OF_SEVERAL: tuple[Function, ...] = (
    torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes, torch.chunk, Tensor.chunk,
)  # fmt: skip
HANDLERS.update(each(_slice, (*_OF_ONE, *_OF_SEVERAL)))
