"""What uses a chain's input later takes a view of it from the chain, so that gradients are added in its backward.

The view is an output of the chain's op. It is kept by the op's other output and found by the input, and given to
Genesis' ops only: everybody else has the input itself.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor

_MOST = 256
_views: dict[int, tuple[weakref.ref[Tensor], weakref.ref[Tensor], int, Any]] = {}  # by id: input, view, version, giver
enabled = True


class _Keeps:
    """What keeps a view as long as the tensor that it is an attribute of, and goes into no copy or file with it."""

    __slots__ = ("view",)

    def __init__(self, view: Tensor | None = None) -> None:
        self.view = view

    def __reduce__(self) -> Any:
        return _Keeps, ()


def taken(link: Any, input: Tensor) -> tuple[Tensor, bool]:
    """The input or its view, and whether the op that takes it should hand it on: unless nobody took it before."""
    if input is not link.input or not enabled:  # a copy in another dtype
        return input, False
    hands_on = input.requires_grad and link.entry.hands_on is not False
    return view_of(input), hands_on


def view_of(tensor: Tensor) -> Tensor:
    """What a chain handed on of this tensor, if it has not changed since; else the tensor."""
    found = _views.get(id(tensor))
    if found is None or not enabled:
        return tensor
    owner, kept, version, entry = found
    view, is_it = kept(), owner() is tensor
    if view is None or not is_it or tensor._version != version:
        return tensor
    entry.hands_on = True  # it is of use
    return view


def note(entry: Any, input: Tensor, y: Tensor, view: Tensor) -> Tensor:
    """y, which keeps the view."""
    if len(_views) >= _MOST:
        for key in [key for key, (owner, kept, *_) in list(_views.items()) if owner() is None or kept() is None]:
            _views.pop(key, None)
        if len(_views) >= _MOST:
            _views.clear()
    if entry.hands_on is None:
        entry.hands_on = False  # until somebody takes it
    keep(y, view)
    _views[id(input)] = weakref.ref(input), weakref.ref(view), view._version, entry
    return y


def keep(y: Tensor, view: Tensor) -> None:
    """The view, as long as y."""
    y._genesis_input = _Keeps(view)
