"""The channel map that a growth leaves for the next one, and how to tell that it still is that of the network.

A pass that follows channels costs twice what a plain one does, and a growth knows what it did to the map.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from genesis.growth.channel_map import ChannelMap
from genesis.growth.rules import RULES
from genesis.nn.module import Module
from genesis.tensor import Tensor


class Look:
    """All that can be seen of a network, and of what it is run on, without running it.

    Two looks are equal where they met the very same modules, with the very same attributes (a number that has been set
    anew is another one: better a pass too many), registries and hooks, and tensors of the same shapes, dtypes and
    devices. Values do not matter. What cannot be seen: changes inside of attributes other than lists, and outside of
    the network.
    """

    def __init__(self, model: Module, example: Sequence[object]) -> None:
        given = [arg for arg in example if isinstance(arg, Tensor)]
        objects = [model, *RULES.values(), *[Tensor if isinstance(arg, Tensor) else arg for arg in example]]
        tensors: list[Tensor | None] = []
        for module in model.modules():
            attributes = vars(module)
            objects.append(type(module))
            objects += attributes
            objects += attributes.values()
            for value in attributes.values():
                if type(value) is list:
                    objects += value
            below, parameters, buffers = attributes["_modules"], attributes["_parameters"], attributes["_buffers"]
            if below:
                objects += below
                objects += below.values()
            if parameters:
                objects += parameters
                tensors += parameters.values()
            if buffers:
                objects += buffers
                tensors += buffers.values()
        objects += tensors
        arrays = [tensor.array for tensor in (*given, *tensors) if tensor is not None]
        self._objects = objects  # the very objects: ids alone could be given to new ones
        self._facts = [(array.shape, array.dtype, array.device) for array in arrays]

    def is_of_the_same_as(self, other: Look) -> bool:
        return (
            self._facts == other._facts
            and len(self._objects) == len(other._objects)
            and all(map(operator.is_, self._objects, other._objects))
        )


class KnownMap:
    """A channel map with the look of the network then; or none."""

    def __init__(self, mapped: ChannelMap | None = None, look: Look | None = None) -> None:
        self._mapped, self._look = None if mapped is None else mapped.giving([]), look

    def of(self, look: Look) -> ChannelMap | None:
        """The map, if it is that of what looks like this."""
        return self._mapped if self._look is not None and self._look.is_of_the_same_as(look) else None

    def __reduce__(self) -> tuple[type[KnownMap], tuple[()]]:
        return KnownMap, ()  # copies and pickles of a network know none
