"""Who watches: modes and transforms of PyTorch that must see the plain functions."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

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


def modes() -> tuple[bool, bool]:
    return _is_grad_enabled(), _is_inference()


def is_same(then: tuple[bool, bool]) -> bool:
    """Are these the modes, and nothing watches?"""
    return _is_grad_enabled() is then[0] and _is_inference() is then[1] and nothing_watches()


def is_same_else(then: tuple[bool, bool]) -> bool:
    """is_same(), where tensors are as they were seen before."""
    return _is_grad_enabled() is then[0] and _is_inference() is then[1] and nothing_else_watches()


def is_plain(tensor: Any) -> bool:
    return type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
