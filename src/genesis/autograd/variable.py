"""Variable: an array with its place in the graph. Tensor is made of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from genesis.autograd.modes import state
from genesis.errors import DTypeError, GraphError, ShapeError, describe
from genesis.ndarray import NDArray

if TYPE_CHECKING:
    from genesis.autograd.function import Node


class Variable:
    """An array with its place in the graph: what Tensor is made of.

    A leaf (no node) collects its gradient in `grad`; every other variable knows the node that made it.
    """

    _result_class: ClassVar[type[Variable]]  # what functions return when this is their input
    grad: Any

    def __init__(self, array: NDArray, requires_grad: bool = False) -> None:
        if requires_grad and not array.dtype.is_floating_point:
            raise DTypeError(describe("Tensor", "requires_grad", "a floating dtype", array.dtype))
        self.array = array
        self.requires_grad = requires_grad
        self.grad = None
        self._node: Node | None = None
        self._output_index = 0
        self._viewed_at: int | None = None  # for views: how often the storage had been changed when it was taken
        self._hooks: list[Callable[[Any], Any]] = []
        self._post_accumulate_hooks: list[Callable[[Any], None]] = []

    def __init_subclass__(cls, result_class: type[Variable] | None = None) -> None:
        cls._result_class = result_class or cls

    def _like(self, array: NDArray) -> Any:
        """A variable of the result class, outside the graph."""
        return self._result_class(array)

    @property
    def is_leaf(self) -> bool:
        return self._node is None

    @property
    def grad_fn(self) -> Node | None:
        return self._node

    def detach(self) -> Any:
        """The same values outside the graph; memory is shared."""
        return self._like(self.array)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        if not self.is_leaf and not requires_grad:
            raise GraphError("requires_grad_: only leaves can stop requiring grad; use .detach()")
        if requires_grad and not self.array.dtype.is_floating_point:
            raise DTypeError(describe("requires_grad_", "self", "a floating dtype", self.array.dtype))
        self.requires_grad = requires_grad
        return self

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf in `grad` too."""
        if self._node is not None:
            self._node.retained[self._output_index] = weakref.ref(self)

    def register_hook(self, hook: Callable[[Any], Any]) -> HookHandle:
        """Call hook(grad) when the gradient of self is known; what it returns, if not None, replaces it."""
        if not self.requires_grad:
            raise GraphError("register_hook: the tensor does not require grad")
        hooks = self._hooks if self._node is None else self._node.hooks.setdefault(self._output_index, [])
        return HookHandle(hooks, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable[[Any], None]) -> HookHandle:
        """Call hook(self) each time a backward pass has put its part into self.grad."""
        if not (self.is_leaf and self.requires_grad):
            raise GraphError("register_post_accumulate_grad_hook: expected a leaf that requires grad")
        return HookHandle(self._post_accumulate_hooks, hook)

    def _change(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """In place: self becomes function(self, *args). The graph follows; a leaf or a view in the graph is refused."""
        name = getattr(function, "__name__", "in-place op")
        recorded = state.recording and any(isinstance(a, Variable) and a.requires_grad for a in (self, *args))
        before: Any = self.detach()
        if recorded:
            if self.is_leaf and self.requires_grad:
                raise GraphError(f"{name}: a leaf that requires grad can only be changed in place under no_grad()")
            if self._viewed_at is not None:
                raise GraphError(
                    f"{name}: a view cannot be changed in place where gradients are recorded; "
                    "assign to the tensor it was taken from: base[index] = ..."
                )
            before.array = self.array.clone()  # the graph goes on from the old values
            before.requires_grad, before._node, before._output_index = (
                self.requires_grad,
                self._node,
                self._output_index,
            )
        result = function(before, *[before if arg is self else arg for arg in args], **kwargs)
        mine, new = self.array, result.array
        if new.shape != mine.shape:
            raise ShapeError(f"{name}: in place, the result's shape {new.shape} must be the tensor's {mine.shape}")
        if new.dtype.category > mine.dtype.category:
            raise DTypeError(f"{name}: in place, a result of {new.dtype} cannot be cast to the tensor's {mine.dtype}")
        mine.copy_into(new)
        if recorded:
            mine.changes.last_recorded = mine.changes.count
            self.requires_grad, self._node, self._output_index = (
                result.requires_grad,
                result._node,
                result._output_index,
            )
        return self


Variable._result_class = Variable


class HookHandle:
    """Takes a hook away again."""

    def __init__(self, hooks: list[Callable[..., Any]], hook: Callable[..., Any]) -> None:
        self._hooks, self._hook = hooks, hook
        hooks.append(hook)

    def remove(self) -> None:
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)
