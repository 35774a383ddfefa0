"""A base of all callables that stand for a layer's forward, as an attribute of it."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Generic, Self, TypeVar

from torch import nn

FORWARD = "forward"  # the attribute
ASIDE = "_genesis_forward"  # the attribute instead, while PyTorch's forward runs in its place

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


def entry_of(layer: nn.Module) -> Entry[nn.Module] | None:
    """The entry of a layer, set aside or not; None where it has none."""
    state = layer.__dict__
    entry = state.get(ASIDE, state.get(FORWARD))
    return entry if isinstance(entry, Entry) else None


class Layers:
    """The layers of a model, whose entries are set aside while it runs plain: the host takes 2 to 4 µs for each.

    A thread that runs the model fused meanwhile gets the same results: only less is fused in that call.
    """

    moves = 0  # of entries, in any model: models may share layers

    def __init__(self) -> None:
        self._known: tuple[bool, int] | None = None  # whether they are set aside, and the number of moves then
        self._was_plain = False

    def prepare(self, model: nn.Module, plain: bool) -> None:
        """Prepare a call: the second plain one in a row sets the entries aside, a fused one puts them back."""
        in_a_row, self._was_plain = self._was_plain == plain, plain
        if (plain and not in_a_row) or self._known == (plain, Layers.moves):
            return
        move = set_aside if plain else put_back
        for layer in model.modules():
            move(layer)
        self._known = plain, Layers.moves


def set_aside(layer: nn.Module) -> None:
    """Have PyTorch's forward of a layer run instead of its entry."""
    state = layer.__dict__
    entry = state.get(FORWARD)
    if isinstance(entry, Entry) and entry.may_be_set_aside:
        state[ASIDE] = entry
        state.pop(FORWARD, None)  # unless another thread has
        Layers.moves += 1


def put_back(layer: nn.Module) -> None:
    """Have the layer's entry run again, unless someone else's forward has taken its place."""
    entry = layer.__dict__.pop(ASIDE, None)
    if entry is not None:
        layer.__dict__.setdefault(FORWARD, entry)
        Layers.moves += 1


_count = sys.getrefcount  # of a container that every module has of its own
_layer = nn.Identity()
_ALONE = _count(_layer.__dict__["_non_persistent_buffers_set"])
