"""Hooks of all modules. A module's call looks for them only while there are any: without, they cost nothing."""

from __future__ import annotations

from typing import TypeVar

from genesis.autograd import HookHandle
from genesis.nn.hooks import ForwardHook, ForwardPreHook, HasForward, Hook, P, Result_co, call_with_hooks, everywhere
from genesis.nn.module import Module

__all__ = [
    "register_module_backward_hook", "register_module_forward_hook", "register_module_forward_pre_hook",
    "register_module_full_backward_hook", "register_module_full_backward_pre_hook",
]  # fmt: skip

T = TypeVar("T")


def register_module_forward_pre_hook(hook: Hook) -> HookHandle:
    """Call hook(module, args) before each forward of every module; a result other than None replaces the arguments.

    Args:
        hook: as in `nn.Module.register_forward_pre_hook`.
    Returns: a handle; handle.remove() removes the hook.

    Example:
        >>> from genesis.nn.global_hooks import register_module_forward_pre_hook
        >>> seen = []
        >>> handle = register_module_forward_pre_hook(lambda module, args: seen.append(type(module).__name__))
        >>> y = nn.Sequential(nn.ReLU())(genesis.zeros(2))
        >>> handle.remove()
        >>> seen
        ['Sequential', 'ReLU']
    """
    return _registered(everywhere.before, ForwardPreHook(hook, with_kwargs=False))


def register_module_forward_hook(hook: Hook, *, with_kwargs: bool = False, always_call: bool = False) -> HookHandle:
    """Call hook(module, args, output) after each forward of every module, before the module's own hooks.

    Args:
        hook: as in `nn.Module.register_forward_hook`.
        with_kwargs, always_call: as there.
    Returns: a handle; handle.remove() removes the hook.

    Example:
        >>> from genesis.nn.global_hooks import register_module_forward_hook
        >>> handle = register_module_forward_hook(lambda module, args, output: output + 1)
        >>> nn.Identity()(genesis.zeros(2)).tolist()
        [1.0, 1.0]
        >>> handle.remove()
    """
    return _registered(everywhere.after, ForwardHook(hook, with_kwargs, always_call))


def register_module_full_backward_pre_hook(hook: Hook) -> HookHandle:
    """Call hook(module, grad_output) for every module. See `nn.Module.register_full_backward_pre_hook`."""
    return _registered(everywhere.backward.before, hook)


def register_module_full_backward_hook(hook: Hook) -> HookHandle:
    """Call hook(module, grad_input, grad_output) for every module. See `nn.Module.register_full_backward_hook`."""
    return _registered(everywhere.backward.after, hook)


def register_module_backward_hook(hook: Hook) -> HookHandle:
    """Deprecated name of register_module_full_backward_hook. See `nn.Module.register_full_backward_hook`."""
    return register_module_full_backward_hook(hook)


class _Handle(HookHandle):
    def remove(self) -> None:
        super().remove()
        if not any(everywhere.lists):
            Module.__call__ = _own_call  # type: ignore[method-assign]


def _registered(hooks: list[T], hook: T) -> HookHandle:
    Module.__call__ = _call  # type: ignore[method-assign]
    return _Handle(hooks, hook)


_own_call = Module.__call__


def _call(self: HasForward[P, Result_co], *args: P.args, **kwargs: P.kwargs) -> Result_co:
    return call_with_hooks(self, args, kwargs)
