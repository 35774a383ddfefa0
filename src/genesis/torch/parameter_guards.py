"""A guard of what a model's tensors are, in place of PyTorch's own: one look at all of them.

Before PyTorch 2.13 Dynamo passes over tensors of a module that holds the very same ones as before: a parameter that was
unfrozen got no gradient, without a word. Told not to, it looks at each tensor at each call, along the attributes that
lead there, which takes the host longer than anything else in a short step. Here one function compares what it knows
of all tensors, in native_steps.cpp.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

from genesis.torch import native_steps
from genesis.torch.replaying import pick

_WHAT = "requires_grad, dtype, device, shape and strides of all parameters and buffers are what they were"
_Kind = tuple[bool, torch.dtype, torch.device, torch.Size, tuple[int, ...]]
_logger = logging.getLogger("genesis.torch")


class Compiled(Protocol):
    """A compiled graph: called with the graph's inputs, it returns its outputs."""

    def __call__(self, *inputs: object) -> object: ...


class Guards(Protocol):
    """Dynamo's, as far as they are used here."""

    def add_lambda_guard(self, check: Callable[[object], bool], told: list[str], stack: None, /) -> None: ...


class GuardManager(Protocol):
    root: Guards


class GuardBuilder(Protocol):
    guard_manager: GuardManager


def guard_kinds(inputs: Sequence[object]) -> Kinds | None:
    """Have the graph that is being compiled guarded by the kinds of its parameters and buffers.

    To be called by a backend, which lets the result follow what it returns.

    Args:
        inputs: examples of the graph's inputs.
    Returns: None: it could not be done.
    """
    kinds = Kinds(inputs)
    try:
        from torch._dynamo.source import GlobalStateSource
        from torch._guards import TracingContext

        guards = TracingContext.get().guards_context.dynamo_guards
        guards.add(GlobalStateSource().make_guard(kinds.install))
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:  # PyTorch's interior is another
        _logger.debug("parameters are guarded one by one: %r", error)
        return None
    return kinds


def _is_of_module(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


class Kinds:
    """requires_grad, dtype, device, shape and strides of the parameters and buffers that a graph has been called with.

    Those of a module whose tensors are others than before, such as the next block with the same code, Dynamo looks at
    itself; then the graph is called with them, and they are known here too. None of them is kept alive.
    """

    def __init__(self, inputs: Sequence[object]) -> None:
        self._pick = pick([place for place, x in enumerate(inputs) if _is_of_module(x)])
        self._known: dict[int, tuple[weakref.ref[Tensor], _Kind]] = {}
        self._last: list[int] = []  # the ids in the last call
        self._references: list[weakref.ref[Tensor]] = []
        self._packed: bytes | None = None  # their kinds by native_steps; None: to be found again
        self.see(inputs)

    def follow(self, compiled: Compiled) -> Compiled:
        """Return the compiled graph, whose calls are seen."""

        def call(*inputs: object) -> object:
            self.see(inputs)
            return compiled(*inputs)

        return call

    def see(self, inputs: Sequence[object]) -> None:
        """Remember the kinds of tensors that the graph has not been called with before."""
        tensors = self._pick(inputs)
        ids = list(map(id, tensors))
        if ids == self._last:
            return
        self._last = ids
        for x in tensors:
            assert isinstance(x, Tensor)
            known = self._known.get(id(x))
            if known is None or known[0]() is not x:
                self._known[id(x)] = weakref.ref(x), _kind(x)
                self._packed = None

    def install(self, builder: GuardBuilder, _: object) -> None:
        builder.guard_manager.root.add_lambda_guard(self.hold, [_WHAT], None)

    def hold(self, _: object = None) -> bool:
        """Are all that are still alive what they were?"""
        packed = None if self._packed is None else native_steps.kinds(self._references)
        return self._hold_one_by_one() if packed is None else packed == self._packed

    def _hold_one_by_one(self) -> bool:
        alive = {}
        for key, (reference, kind) in self._known.items():
            x = reference()
            if x is None:
                self._last = []  # another tensor may get its id
            elif _kind(x) != kind:
                return False
            else:
                alive[key] = reference, kind
        self._known = alive
        self._references = [reference for reference, _ in alive.values()]
        self._packed = native_steps.kinds(self._references)
        return True


def _kind(x: Tensor) -> _Kind:
    return x.requires_grad, x.dtype, x.device, x.shape, x.stride() if x.layout is torch.strided else ()
