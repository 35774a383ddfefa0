"""Hooks of optimizers: around each step, and around the saving and loading of their states."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self, cast

from genesis.autograd import HookHandle
from genesis.errors import DTypeError, describe
from genesis.optim.options import Entries

if TYPE_CHECKING:
    from genesis.optim.optimizer import Optimizer

Args = tuple[object, ...]
Kwargs = dict[str, object]
Hook = Callable[..., object]  # of any of the kinds below
Method = Callable[..., object]
Around = Callable[[Method, "Hooked", Args, Kwargs], object]


class Hooked:
    """Base of Optimizer: the methods step, state_dict and load_state_dict of each subclass call the hooks."""

    _everywhere: ClassVar[dict[str, list[Hook]]] = {"step_pre": [], "step_post": []}
    _own_hooks: dict[str, list[Hook]]  # there is none until the first is registered

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name, around in (("step", _step), ("state_dict", _state_dict), ("load_state_dict", _load_state_dict)):
            if name in cls.__dict__:
                setattr(cls, name, _hooked(cls.__dict__[name], around))

    @property
    def has_step_hooks(self) -> bool:
        """Whether step() calls hooks. See `optim.Optimizer.register_step_pre_hook`."""
        kinds = ("step_pre", "step_post")
        return any(self._everywhere[kind] or _hooks(self, kind) for kind in kinds)

    def register_step_pre_hook(self, hook: Callable[[Self, Args, Kwargs], object]) -> HookHandle:
        """Call hook(optimizer, args, kwargs) before each step.

        Args:
            hook: returns None, or the arguments of step as (args, kwargs); as in PyTorch, args[0] is the optimizer.
        Returns: a handle; handle.remove() removes the hook.
        Raises: DTypeError: at the step, where the hook returns something else.

        Example:
            >>> optimizer = genesis.optim.SGD([genesis.ones(1, requires_grad=True)], lr=0.1)
            >>> handle = optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: print("before"))
            >>> optimizer.step()
            before
        """
        return self._registered("step_pre", hook, False)

    def register_step_post_hook(self, hook: Callable[[Self, Args, Kwargs], object]) -> HookHandle:
        """Call hook(optimizer, args, kwargs) after each step. See `optim.Optimizer.register_step_pre_hook`."""
        return self._registered("step_post", hook, False)

    def register_state_dict_pre_hook(self, hook: Callable[[Self], object], prepend: bool = False) -> HookHandle:
        """Call hook(optimizer) before state_dict() collects the state.

        Args:
            hook: its result is not used.
            prepend: call it before the hooks that there are, instead of after them.
        Returns: a handle; handle.remove() removes the hook.

        Example:
            >>> optimizer, calls = genesis.optim.SGD([genesis.ones(1, requires_grad=True)], lr=0.1), []
            >>> handle = optimizer.register_state_dict_pre_hook(calls.append)
            >>> state = optimizer.state_dict()
            >>> len(calls)
            1
        """
        return self._registered("state_pre", hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[[Self, Entries], object], prepend: bool = False
    ) -> HookHandle:
        """Call hook(optimizer, state_dict) with what state_dict() is to return; a result other than None replaces it.

        Args:
            hook: returns None or another state_dict.
            prepend: as in `optim.Optimizer.register_state_dict_pre_hook`.
        Returns: a handle; handle.remove() removes the hook.

        Example:
            >>> optimizer = genesis.optim.SGD([genesis.ones(1, requires_grad=True)], lr=0.1)
            >>> handle = optimizer.register_state_dict_post_hook(lambda optimizer, state: {**state, "note": "mine"})
            >>> optimizer.state_dict()["note"]
            'mine'
        """
        return self._registered("state_post", hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[[Self, Entries], object], prepend: bool = False
    ) -> HookHandle:
        """Call hook(optimizer, state_dict) before it is loaded; a result other than None is loaded instead.

        Args:
            hook: gets a shallow copy of what load_state_dict was given.
            prepend: as in `optim.Optimizer.register_state_dict_pre_hook`.
        Returns: a handle; handle.remove() removes the hook.

        Example:
            >>> optimizer, seen = genesis.optim.SGD([genesis.ones(1, requires_grad=True)], lr=0.1), []
            >>> handle = optimizer.register_load_state_dict_pre_hook(lambda optimizer, state: seen.append(list(state)))
            >>> optimizer.load_state_dict(optimizer.state_dict())
            >>> seen
            [['state', 'param_groups']]
        """
        return self._registered("load_pre", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Callable[[Self], object], prepend: bool = False) -> HookHandle:
        """Call hook(optimizer) after a state was loaded. See `optim.Optimizer.register_state_dict_pre_hook`."""
        return self._registered("load_post", hook, prepend)

    def _registered(self, kind: str, hook: Hook, prepend: bool) -> HookHandle:
        hooks = self.__dict__.setdefault("_own_hooks", {}).setdefault(kind, [])
        handle = HookHandle(hooks, hook)
        if prepend:
            hooks.insert(0, hooks.pop())
        return handle


def register_optimizer_step_pre_hook(hook: Callable[[Optimizer, Args, Kwargs], object]) -> HookHandle:
    """Call hook(optimizer, args, kwargs) before each step of every optimizer.

    Args:
        hook: as in `optim.Optimizer.register_step_pre_hook`.
    Returns: a handle; handle.remove() removes the hook.

    Example:
        >>> from genesis.optim.optimizer import register_optimizer_step_pre_hook
        >>> handle = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: print(type(optimizer).__name__))
        >>> genesis.optim.Adam([genesis.ones(1, requires_grad=True)]).step()
        Adam
        >>> handle.remove()
    """
    return HookHandle(Hooked._everywhere["step_pre"], hook)


def register_optimizer_step_post_hook(hook: Callable[[Optimizer, Args, Kwargs], object]) -> HookHandle:
    """Call hook(optimizer, args, kwargs) after each step of every optimizer.

    Args:
        hook: its result is not used.
    Returns: a handle; handle.remove() removes the hook.

    Example:
        >>> from genesis.optim.optimizer import register_optimizer_step_post_hook
        >>> handle = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: print("done"))
        >>> genesis.optim.Adam([genesis.ones(1, requires_grad=True)]).step()
        done
        >>> handle.remove()
    """
    return HookHandle(Hooked._everywhere["step_post"], hook)


def _hooks(optimizer: Hooked, kind: str) -> list[Hook]:
    own = optimizer.__dict__.get("_own_hooks")
    return list(own.get(kind, ())) if own else []


def _hooked(method: Method, around: Around) -> Method:
    """The method with hooks around its outermost call: a subclass's may call that of its base."""
    everywhere = Hooked._everywhere

    @functools.wraps(method)
    def call(self: Hooked, *args: object, **kwargs: object) -> object:
        own = self.__dict__
        if "_own_hooks" not in own and not everywhere["step_pre"] and not everywhere["step_post"]:
            return method(self, *args, **kwargs)
        if method.__name__ in own.get("_inside", ()):
            return method(self, *args, **kwargs)
        own["_inside"] = (*own.get("_inside", ()), method.__name__)
        try:
            return around(method, self, args, kwargs)
        finally:
            own["_inside"] = tuple(name for name in own["_inside"] if name != method.__name__)
            if not own["_inside"]:
                del own["_inside"]

    return call


def _step(method: Method, self: Hooked, args: Args, kwargs: Kwargs) -> object:
    args = (self, *args)
    for hook in (*Hooked._everywhere["step_pre"], *_hooks(self, "step_pre")):
        new = hook(self, args, kwargs)
        if new is not None:
            if not isinstance(new, tuple) or len(new) != 2:
                raise DTypeError(describe(f"{type(self).__name__}.step", "hook", "None or (args, kwargs)", repr(new)))
            args, kwargs = new
    result = method(*args, **kwargs)
    for hook in (*_hooks(self, "step_post"), *Hooked._everywhere["step_post"]):
        hook(self, args, kwargs)
    return result


def _state_dict(method: Method, self: Hooked, args: Args, kwargs: Kwargs) -> object:
    for hook in _hooks(self, "state_pre"):
        hook(self)
    result = method(self, *args, **kwargs)
    for hook in _hooks(self, "state_post"):
        new = hook(self, result)
        result = result if new is None else new
    return result


def _load_state_dict(method: Method, self: Hooked, args: Args, kwargs: Kwargs) -> None:
    given = kwargs.pop("state_dict") if "state_dict" in kwargs else args[0]
    state: object = dict(cast("Entries", given))
    for hook in _hooks(self, "load_pre"):
        new = hook(self, state)
        state = state if new is None else new
    method(self, state, *args[1:], **kwargs)
    for hook in _hooks(self, "load_post"):
        hook(self)
