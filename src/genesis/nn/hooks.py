"""Forward hooks, and what a call of a module reads: they see and may replace its arguments and its output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from genesis.autograd import HookHandle

P = ParamSpec("P")
Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

Args = tuple[object, ...]
Kwargs = dict[str, object]
Hook = Callable[..., Any]  # with_kwargs decides what it is called with


class ForwardPreHook:
    """A forward pre-hook: gives the arguments that forward is called with."""

    def __init__(self, function: Hook, with_kwargs: bool) -> None:
        self.function, self.with_kwargs = function, with_kwargs

    def __call__(self, module: object, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        new = self.function(module, args, kwargs) if self.with_kwargs else self.function(module, args)
        if new is None:
            return args, kwargs
        if self.with_kwargs:
            new_args, new_kwargs = new
            return new_args, new_kwargs
        return new if isinstance(new, tuple) else (new,), kwargs


class ForwardHook:
    """A forward hook: gives the output that the caller sees."""

    def __init__(self, function: Hook, with_kwargs: bool) -> None:
        self.function, self.with_kwargs = function, with_kwargs

    def __call__(self, module: object, args: Args, kwargs: Kwargs, output: Result) -> Result:
        extra = (kwargs,) if self.with_kwargs else ()
        new: Result | None = self.function(module, args, *extra, output)
        return output if new is None else new


class Hookable:
    """Base of Module, which calls forward: what registers its hooks."""

    _forward_pre_hooks: list[Hook]
    _forward_hooks: list[Hook]

    def register_forward_pre_hook(self, hook: Hook, *, with_kwargs: bool = False) -> HookHandle:
        """Call hook(module, args) before each forward; a result other than None replaces the arguments.

        Args:
            hook: returns None, the new arguments as a tuple, or a single new argument.
            with_kwargs: call hook(module, args, kwargs) instead, which returns None or (args, kwargs).
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer = nn.Identity()
            >>> handle = layer.register_forward_pre_hook(lambda module, args: args[0] + 1)
            >>> layer(genesis.zeros(2)).tolist()
            [1.0, 1.0]
        """
        return HookHandle(self._forward_pre_hooks, ForwardPreHook(hook, with_kwargs))

    def register_forward_hook(self, hook: Hook, *, with_kwargs: bool = False) -> HookHandle:
        """Call hook(module, args, output) after each forward; a result other than None replaces the output.

        Args:
            hook: returns None or the new output.
            with_kwargs: call hook(module, args, kwargs, output) instead.
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer, seen = nn.ReLU(), []
            >>> handle = layer.register_forward_hook(lambda module, args, output: seen.append(output.shape))
            >>> y = layer(genesis.zeros(2, 3))
            >>> seen
            [(2, 3)]
        """
        return HookHandle(self._forward_hooks, ForwardHook(hook, with_kwargs))


class HasForward(Protocol[P, Result_co]):
    """A module as a call sees it: its hooks, and forward, whose signature is the call's."""

    _forward_pre_hooks: list[Hook]
    _forward_hooks: list[Hook]

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> Result_co: ...


def call_with_hooks(module: HasForward[P, Result_co], args: Args, kwargs: Kwargs) -> Result_co:
    """forward's result for these arguments, with the hooks of module around it."""
    for hook in tuple(module._forward_pre_hooks):
        args, kwargs = hook(module, args, kwargs)
    forward: Callable[..., Result_co] = module.forward  # a hook may have replaced the arguments
    output = forward(*args, **kwargs)
    for hook in tuple(module._forward_hooks):
        output = hook(module, args, kwargs, output)
    return output
