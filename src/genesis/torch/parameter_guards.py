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

_WHAT = "parameters and buffers are of the kinds that they were of"
_Kind = tuple[bool, torch.dtype, torch.device, torch.Size, tuple[int, ...]]
_logger = logging.getLogger("genesis.torch")


class Guards(Protocol):
    """Dynamo's, as far as they are used here."""

    def add_lambda_guard(self, check: Callable[[object], bool], told: list[str], stack: None, /) -> None: ...


class GuardManager(Protocol):
    root: Guards


class GuardBuilder(Protocol):
    guard_manager: GuardManager


def guard_kinds(inputs: Sequence[object]) -> bool:
    """Have the graph that is being compiled guarded by the kinds of its parameters and buffers.

    To be called by a backend.

    Args:
        inputs: examples of the graph's inputs.
    Returns: whether it could be done.
    """
    try:
        from torch._dynamo.source import GlobalStateSource
        from torch._guards import TracingContext

        guards = TracingContext.get().guards_context.dynamo_guards
        guards.add(GlobalStateSource().make_guard(Kinds([x for x in inputs if _is_of_module(x)]).install))
    except (AttributeError, ImportError, RuntimeError, TypeError) as error:  # PyTorch's interior is another
        _logger.debug("parameters are guarded one by one: %r", error)
        return False
    return True


def _is_of_module(x: object) -> TypeGuard[Tensor]:
    return isinstance(x, nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


class Kinds:
    """requires_grad, dtype, device, shape and strides of some tensors, which they do not keep alive."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [weakref.ref(x) for x in tensors]
        self._known = self._told()
        self._packed: bytes | None = None  # the same, by native_steps

    def install(self, builder: GuardBuilder, _: object) -> None:
        builder.guard_manager.root.add_lambda_guard(self.hold, [_WHAT], None)

    def hold(self, _: object = None) -> bool:
        """Are they what they were?"""
        if self._packed is not None:
            return native_steps.kinds(self._tensors) == self._packed
        told = self._told()
        if told is None or told != self._known:
            return False
        self._packed = native_steps.kinds(self._tensors)
        return True

    def _told(self) -> list[_Kind] | None:
        """None: one is gone."""
        tensors = [reference() for reference in self._tensors]
        if any(x is None for x in tensors):
            return None
        return [_kind(x) for x in tensors if x is not None]


def _kind(x: Tensor) -> _Kind:
    return x.requires_grad, x.dtype, x.device, x.shape, x.stride() if x.layout is torch.strided else ()
