"""How far results may be deferred: not beyond an autograd function's forward, nor beyond hooks of saved tensors."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from genesis.torch.modes import Modes, current_modes, saved_tensors_hooks
from genesis.torch.pending import Pending, materialized


class _Place(threading.local):
    """Per thread: the number of the autograd function whose forward runs, where the innermost fused model began, and
    whether its layers are left to PyTorch."""

    function = 0
    calls = 0
    model: tuple[int, object] | None = None
    left = False


place = _Place()


def _here() -> tuple[int, object]:
    hooks = saved_tensors_hooks(True)
    return place.function, None if hooks is None else hooks[0]


@contextmanager
def inside_model() -> Iterator[None]:
    """Mark the call of a fused model, which returns nothing that is pending."""
    outside = place.model
    place.model = _here()
    try:
        yield
    finally:
        place.model = outside


def modes_to_defer() -> Modes | None:
    """Return the current modes, or None if no result may be deferred beyond the code that runs now.

    It may not leave the forward of an autograd function, whose results get that function's graph, nor code under hooks
    of saved tensors, such as a checkpoint. A fused model that is called there may defer: it returns nothing pending.
    """
    modes = current_modes()
    return modes if (modes[2] is None and place.function == 0) or place.model == _here() else None


@functools.cache
def install() -> None:
    """Make autograd.Function.apply compute pending arguments: it reads their graph without __torch_function__."""
    apply = torch.autograd.Function.__dict__["apply"].__func__

    @functools.wraps(apply)
    def apply_to_values(cls: type[torch.autograd.Function], /, *args: object, **kwargs: object) -> object:
        for each in args:
            if type(each) is Pending:
                args = materialized(args)
                break
        outside = place.function
        place.calls += 1
        place.function = place.calls
        try:
            return apply(cls, *args, **kwargs)
        finally:
            place.function = outside

    torch.autograd.Function.apply = classmethod(apply_to_values)
