"""Hooks of a module's call and of its backward pass: they see and may replace arguments, output and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol, TypeVar

from genesis.autograd import HookHandle
from genesis.nn.backward_hooks import After, BackwardHooks, Before

P = ParamSpec("P")
T = TypeVar("T")
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

    def __init__(self, function: Hook, with_kwargs: bool, always: bool = False) -> None:
        self.function, self.with_kwargs, self.always = function, with_kwargs, always

    def __call__(self, module: object, args: Args, kwargs: Kwargs, output: Result) -> Result:
        extra = (kwargs,) if self.with_kwargs else ()
        new: Result | None = self.function(module, args, *extra, output)
        return output if new is None else new


class Everywhere:
    """The hooks of all modules: see global_hooks.py, which has modules look here as long as there are any."""

    def __init__(self) -> None:
        self.before: list[ForwardPreHook] = []
        self.after: list[ForwardHook] = []
        self.backward = BackwardHooks()

    @property
    def lists(self) -> tuple[list[ForwardPreHook], list[ForwardHook], list[Before], list[After]]:
        return self.before, self.after, self.backward.before, self.backward.after


everywhere = Everywhere()


class Hookable:
    """Base of Module, which calls forward: what registers its hooks."""

    # The BackwardHooks too, if there are: to all who look at the list, the module is hooked.
    _forward_pre_hooks: list[ForwardPreHook | BackwardHooks]
    _forward_hooks: list[ForwardHook]

    def register_forward_pre_hook(self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False) -> HookHandle:
        """Call hook(module, args) before each forward; a result other than None replaces the arguments.

        Args:
            hook: returns None, the new arguments as a tuple, or a single new argument.
            prepend: call it before the hooks that there are, instead of after them.
            with_kwargs: call hook(module, args, kwargs) instead, which returns None or (args, kwargs).
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer = nn.Identity()
            >>> handle = layer.register_forward_pre_hook(lambda module, args: args[0] + 1)
            >>> layer(genesis.zeros(2)).tolist()
            [1.0, 1.0]
        """
        return _registered(self._forward_pre_hooks, ForwardPreHook(hook, with_kwargs), prepend)

    def register_forward_hook(
        self, hook: Hook, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> HookHandle:
        """Call hook(module, args, output) after each forward; a result other than None replaces the output.

        Args:
            hook: returns None or the new output.
            prepend: call it before the hooks that there are, instead of after them.
            with_kwargs: call hook(module, args, kwargs, output) instead.
            always_call: also where forward or a hook raises; output is None then.
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer, seen = nn.ReLU(), []
            >>> handle = layer.register_forward_hook(lambda module, args, output: seen.append(output.shape))
            >>> y = layer(genesis.zeros(2, 3))
            >>> seen
            [(2, 3)]
        """
        return _registered(self._forward_hooks, ForwardHook(hook, with_kwargs, always_call), prepend)

    def register_full_backward_pre_hook(self, hook: Hook, prepend: bool = False) -> HookHandle:
        """Call hook(module, grad_output) when the gradients of the outputs are known, before the module's own backward.

        Args:
            hook: takes a tuple, with None for outputs that are no tensors; returns None or other gradients.
            prepend: call it before the hooks that there are, instead of after them.
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer = nn.Identity()
            >>> handle = layer.register_full_backward_pre_hook(lambda module, grad: (grad[0] * 2,))
            >>> x = genesis.ones(2, requires_grad=True)
            >>> layer(x).sum().backward()
            >>> x.grad.tolist()
            [2.0, 2.0]
        """
        return _registered(self._backward_hooks().before, hook, prepend)

    def register_full_backward_hook(self, hook: Hook, prepend: bool = False) -> HookHandle:
        """Call hook(module, grad_input, grad_output) when the gradients of the inputs are known.

        Args:
            hook: takes two tuples, with None for what is no tensor or needs no gradient, without keyword arguments;
                returns None or other gradients of the inputs.
            prepend: call it before the hooks that there are, instead of after them.
        Returns: a handle; handle.remove() removes the hook.
        Example:
            >>> layer, seen = nn.Linear(2, 3), []
            >>> handle = layer.register_full_backward_hook(
            ...     lambda module, grad_input, grad_output: seen.append((grad_input[0].shape, grad_output[0].shape))
            ... )
            >>> layer(genesis.ones(4, 2, requires_grad=True)).sum().backward()
            >>> seen
            [((4, 2), (4, 3))]
        """
        return _registered(self._backward_hooks().after, hook, prepend)

    def register_backward_hook(self, hook: Hook) -> HookHandle:
        """Deprecated name of register_full_backward_hook, which gives the gradients of the module's inputs.
        See `nn.Module.register_full_backward_hook`.
        """
        return self.register_full_backward_hook(hook)

    def _backward_hooks(self) -> BackwardHooks:
        for hook in self._forward_pre_hooks:
            if isinstance(hook, BackwardHooks):
                return hook
        hooks = BackwardHooks()
        self._forward_pre_hooks.append(hooks)
        return hooks


class HasForward(Protocol[P, Result_co]):
    """A module as a call sees it: its hooks and parts, and forward, whose signature is the call's."""

    _forward_pre_hooks: list[ForwardPreHook | BackwardHooks]
    _forward_hooks: list[ForwardHook]

    @property
    def _modules(self) -> Mapping[str, object]: ...

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> Result_co: ...


def call_with_hooks(module: HasForward[P, Result_co], args: Args, kwargs: Kwargs) -> Result_co:
    """forward's result for these arguments, with the hooks of module around it."""
    done: list[ForwardHook] = []
    try:
        return _hooked(module, args, kwargs, done)
    except BaseException:
        for hook in (*everywhere.after, *module._forward_hooks):
            if hook.always and hook not in done:
                hook(module, args, kwargs, None)
        raise


def _hooked(module: HasForward[P, Result_co], args: Args, kwargs: Kwargs, done: list[ForwardHook]) -> Result_co:
    backward = everywhere.backward
    for hook in (*everywhere.before, *module._forward_pre_hooks):
        if isinstance(hook, BackwardHooks):
            backward = backward.and_then(hook)
        else:
            args, kwargs = hook(module, args, kwargs)
    around = backward.of_call(module)
    if around is not None:
        args = around.inputs(args)
    forward: Callable[..., Result_co] = module.forward  # a hook may have replaced the arguments
    output = forward(*args, **kwargs)
    for after in (*everywhere.after, *module._forward_hooks):
        done.append(after)
        output = after(module, args, kwargs, output)
    return around.outputs(output) if around is not None else output


def _registered(hooks: list[T], hook: T, prepend: bool) -> HookHandle:
    handle = HookHandle(hooks, hook)
    if prepend:
        hooks.insert(0, hooks.pop())
    return handle
