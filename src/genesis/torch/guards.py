"""Who watches: modes and transforms of PyTorch that must see the plain functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack
_transforms = torch._C._are_functorch_transforms_active
_tracing = torch._C._get_tracing_state
_is_grad_enabled, _is_inference = torch.is_grad_enabled, torch.is_inference_mode_enabled


def nothing_watches() -> bool:
    """No mode of dispatch or functions, no transform (vmap, grad, jvp), no forward AD, no TorchScript tracer.

    Dynamo sees to itself: who is called under it asks torch.compiler.is_compiling() first.
    """
    return not (
        _dispatch_modes()
        or (_function_modes() and not _only_devices())
        or _transforms()
        or forward_ad._current_level >= 0
        or _tracing() is not None
    )


def nothing_else_watches() -> bool:
    """nothing_watches(), where tensors are as they were seen before: what works by dispatch keys shows in them."""
    return not (_function_modes() and not _only_devices()) and forward_ad._current_level < 0


def watching() -> tuple[Any, ...]:
    """What works by dispatch keys."""
    return _dispatch_modes(), _transforms(), _tracing() is not None


def _only_devices() -> bool:
    """torch.set_default_device is a mode too, which changes nothing but where tensors are made."""
    return all(type(mode) is DeviceContext for mode in _get_current_function_mode_stack())


class Modes(NamedTuple):
    """The modes by which operations are recorded and tensors saved."""

    grad: bool
    inference: bool
    saving: object  # the innermost hooks of saved tensors, as a checkpoint has them; None: none


def modes() -> Modes:
    hooks = saved_tensors_hooks(True)
    return Modes(_is_grad_enabled(), _is_inference(), None if hooks is None else hooks[0])


def is_same(then: Modes) -> bool:
    """Are these the modes, and nothing watches?"""
    return _are_modes(then) and nothing_watches()


def is_same_else(then: Modes) -> bool:
    """is_same(), where tensors are as they were seen before."""
    return _are_modes(then) and nothing_else_watches()


def _are_modes(then: Modes) -> bool:
    hooks = saved_tensors_hooks(True)
    saving = None if hooks is None else hooks[0]
    return _is_grad_enabled() is then[0] and _is_inference() is then[1] and saving is then[2]


@contextmanager
def without_newer_hooks(saving: object) -> Iterator[None]:
    """Save tensors by these hooks and none that came later: a checkpoint inside must not see what began outside."""
    newer = []
    while (hooks := saved_tensors_hooks(True)) is not None and hooks[0] is not saving:
        newer.append(hooks)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(newer):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def is_plain(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
