"""A base of all callables that stand for a layer's forward, as an attribute of it."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Generic, Self, TypeVar

from torch import nn

FORWARD = "forward"  # the attribute

Layer = TypeVar("Layer", bound=nn.Module)


class Entry(Generic[Layer]):
    """A callable in place of a layer's forward; it doesn't keep the layer alive. Copies of the layer have their own."""

    layer: weakref.ref[Layer]
    may_be_set_aside = True

    _is_original = True  # False: copied by itself, perhaps into a copy of the layer

    def __init__(self, layer: Layer, name: str) -> None:
        self.layer, self.name = weakref.ref(layer), name
        self.begin()

    def original(self) -> Layer:
        """The layer that fuse() was given."""
        layer = self.layer()
        assert layer is not None
        return layer

    def owner(self) -> Layer:
        """The layer that is called: a shallow copy (a replica of DataParallel) has the attributes of the original.

        A copy shares the original's containers. Without one, the caller's frame need not be searched.
        """
        layer = self.layer()
        if layer is not None and self._is_original and _count(layer.__dict__["_non_persistent_buffers_set"]) == _ALONE:
            return layer
        caller = sys._getframe(2).f_locals.get("self")  # of Module.__call__, or of the layer's forward
        if caller is layer or not isinstance(caller, nn.Module) or caller.__dict__.get(FORWARD) is not self:
            assert layer is not None
            return layer
        return caller

    def begin(self) -> None:
        raise NotImplementedError

    def __copy__(self) -> Self:
        kind, args, *state = self.__reduce__()
        other = kind(*args)
        other.__dict__.update(*state, _is_original=False)
        return other

    def __deepcopy__(self, memo: dict[int, Layer]) -> Self:
        layer = self.original()
        return type(self)(memo.get(id(layer), layer), self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.layer(), self.name)


_count = sys.getrefcount  # of a container that every module has of its own
_layer = nn.Identity()
_ALONE = _count(_layer.__dict__["_non_persistent_buffers_set"])
