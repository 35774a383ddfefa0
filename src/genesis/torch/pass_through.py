"""Gradient pass-through: later uses of a chain's input take a view of it from the chain, whose backward then adds their
gradients to its own without a pass over memory.

The view is an output of the chain's op. The op's other output keeps it alive, and it is looked up by the input. Only
Genesis' ops get it; all other code has the input itself.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from genesis.torch.entries import ConvEntry
    from genesis.torch.links import Link
    from genesis.torch.norm_entries import BareNorm

_MAX_VIEWS = 256


# By the id of the input: the input, its view, the view's version, and the convolution that it comes from.
_views: dict[int, tuple[weakref.ref[Tensor], weakref.ref[Tensor], int, ConvEntry | BareNorm]] = {}
enabled = True


class _Keeper:
    """A reference to a view that lives as long as the tensor whose attribute it is; copies and pickles drop it."""

    __slots__ = ("view",)

    def __init__(self, view: Tensor | None = None) -> None:
        self.view = view

    def __reduce__(self) -> tuple[type[_Keeper], tuple[()]]:
        return _Keeper, ()


def input_of(link: Link, input: Tensor) -> tuple[Tensor, bool]:
    """Return the input or its view, and whether the op should return a view too: not if nobody took the last one."""
    if input is not link.input or not enabled:  # a copy in another dtype
        return input, False
    passes_through = input.requires_grad and link.entry.passes_through is not False
    return view_of(input), passes_through


def view_of(tensor: Tensor) -> Tensor:
    """Return the view of this tensor that a chain registered, if it has not changed since; else the tensor."""
    found = _views.get(id(tensor))
    if found is None or not enabled:
        return tensor
    owner, kept, version, entry = found
    view, is_it = kept(), owner() is tensor
    if view is None or not is_it or tensor._version != version:
        return tensor
    entry.passes_through = True  # it is of use
    return view


def register(entry: ConvEntry | BareNorm, input: Tensor, y: Tensor, view: Tensor) -> Tensor:
    """Register a view of input, which lives as long as y; return y."""
    if len(_views) >= _MAX_VIEWS:
        for key in [key for key, (owner, kept, *_) in list(_views.items()) if owner() is None or kept() is None]:
            _views.pop(key, None)
        if len(_views) >= _MAX_VIEWS:
            _views.clear()
    if entry.passes_through is None:
        entry.passes_through = False  # until somebody takes it
    keep(y, view)
    _views[id(input)] = weakref.ref(input), weakref.ref(view), view._version, entry
    return y


def keep(y: Tensor, view: Tensor) -> None:
    """Keep the view alive as long as y."""
    y._genesis_input = _Keeper(view)
