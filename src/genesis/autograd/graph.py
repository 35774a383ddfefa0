"""The graph: a Variable is an array with its place in it, a Node one call of an op."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Self, TypeAlias, TypeVar, cast, final

from genesis import callsite
from genesis.autograd.complex_forms import require_form
from genesis.autograd.context import Context, Differentiable
from genesis.autograd.modes import no_grad, state
from genesis.autograd.views import AsStrided, Region, ViewKind
from genesis.errors import DTypeError, GraphError, describe
from genesis.ndarray import NDArray
from genesis.settings import settings

if TYPE_CHECKING:
    from genesis.tensor import Tensor

GradHook: TypeAlias = "Callable[[Tensor], Tensor | None]"
LeafHook: TypeAlias = "Callable[[Tensor], None]"
Hook = TypeVar("Hook")


class RepeatableHook:
    """A post-accumulate hook of which all that it does is recorded: calls of a backend, and `modes.repeated`."""

    def __call__(self, leaf: Tensor) -> None:
        raise NotImplementedError

    def place(self) -> NDArray | None:
        """Give the memory that the leaf's gradient should lie in, of its shape and dtype; None: it may lie anywhere."""
        return None


new = object.__new__  # a variable that has only its array to be told; __init__ takes five times as long


class Variable:
    """An array with its place in the graph: what Tensor is made of.

    A leaf (no node) collects its gradient in `grad`; every other variable knows the node that made it.
    """

    _result_class: ClassVar[type[Tensor]]  # what functions return when this is their input; set by tensor.py

    # What every variable has until it is told otherwise stands here once: making one sets only its array.
    _requires_grad: bool = False
    grad: Tensor | None = None
    _node: Node | None = None
    _output_index: int = 0
    _base: Variable | None = None  # of a view: what it was taken from, which is no view itself
    _viewed_at: int | None = None  # of a view: how often the storage had been changed when _node was made
    _view_kind: ViewKind = ViewKind.PLAIN
    _hooks: Sequence[GradHook] = ()
    _post_accumulate_hooks: Sequence[LeafHook] = ()

    def __init__(self, array: NDArray, requires_grad: bool = False) -> None:
        self.array = array
        if requires_grad:
            if not array.dtype.is_differentiable:
                raise DTypeError(describe("Tensor", "requires_grad", "a floating or complex dtype", array.dtype))
            self._requires_grad = True

    def __init_subclass__(cls, result_class: type[Tensor] | None = None) -> None:
        cls._result_class = result_class or cast("type[Tensor]", cls)

    def _like(self, array: NDArray) -> Tensor:
        """A variable of the result class, outside the graph."""
        made = new(self._result_class)
        made.array = array
        return made

    @property
    def requires_grad(self) -> bool:
        """Whether ops on it are recorded; that of a leaf can be set, see `genesis.Tensor.requires_grad_`."""
        if self._requires_grad:
            return True
        base = self._base
        return base is not None and base._requires_grad and self._view_kind is not ViewKind.UNRECORDED

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        self.requires_grad_(requires_grad)

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded op made it: gradients accumulate in the `grad` of leaves."""
        return (self._node if self._base is None else self.grad_fn) is None

    @property
    def grad_fn(self) -> Node | None:
        """The node that made it; None for a leaf."""
        if self._base is not None:
            self._refresh()
        return self._node

    def detach(self) -> Tensor:
        """Leave the graph: the same memory in a tensor that requires no grad.

        Returns: shape and dtype of self, a view.

        Example:
            >>> x = genesis.ones(2, requires_grad=True)
            >>> (x * 2).detach().requires_grad
            False
        """
        return self._like(self.array)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether this leaf collects a gradient; returns self.

        Args:
            requires_grad: False stops it.
        Raises: GraphError: self is no leaf. DTypeError: its dtype is not floating.

        Example:
            >>> genesis.ones(2).requires_grad_().requires_grad
            True
        """
        if not requires_grad and not self.is_leaf:
            raise GraphError("requires_grad_: only leaves can stop requiring grad; use .detach()")
        if requires_grad and not self.array.dtype.is_differentiable:
            raise DTypeError(describe("requires_grad_", "self", "a floating or complex dtype", self.array.dtype))
        self._requires_grad = requires_grad
        return self

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf in `grad` too.

        Example:
            >>> x = genesis.tensor(3.0, requires_grad=True)
            >>> y = x * x
            >>> y.retain_grad()
            >>> (y * 2).backward()
            >>> y.grad.item()
            2.0
        """
        if not self.is_leaf and self._node is not None:
            self._node.retained[self._output_index] = weakref.ref(self)

    def register_hook(self, hook: GradHook) -> HookHandle:
        """Call hook(grad) when the gradient of self is known; a result other than None replaces it.

        Args:
            hook: takes the gradient, in the shape and dtype of self.
        Returns: a handle; handle.remove() removes the hook.
        Raises: GraphError: self does not require grad.

        Example:
            >>> x = genesis.tensor(3.0, requires_grad=True)
            >>> handle = x.register_hook(lambda grad: grad * 10)
            >>> (x * x).backward()
            >>> x.grad.item()
            60.0
        """
        if not self.requires_grad:
            raise GraphError("register_hook: the tensor does not require grad")
        node = self.grad_fn
        hooks = vars(self).setdefault("_hooks", []) if node is None else node.hooks.setdefault(self._output_index, [])
        return HookHandle(hooks, hook)

    def register_post_accumulate_grad_hook(self, hook: LeafHook) -> HookHandle:
        """Call hook(self) each time a backward pass has accumulated into self.grad.

        Args:
            hook: takes the leaf.
        Returns: a handle; handle.remove() removes the hook.
        Raises: GraphError: self is no leaf that requires grad.

        Example:
            >>> x, seen = genesis.tensor(3.0, requires_grad=True), []
            >>> handle = x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.item()))
            >>> (x * x).backward()
            >>> seen
            [6.0]
        """
        if not (self.is_leaf and self.requires_grad):
            raise GraphError("register_post_accumulate_grad_hook: expected a leaf that requires grad")
        return HookHandle(vars(self).setdefault("_post_accumulate_hooks", []), hook)

    # --- changes in place: see genesis.autograd.in_place --------------------------------------------------------------

    def _refresh(self) -> None:
        """If this is a view whose base has changed since, its node is made again, from the base as it is now."""
        base = self._base
        if base is None:
            return
        count = self.array.changes.count
        is_old = count != self._viewed_at
        if not is_old and base._requires_grad is self._requires_grad:
            return
        if not base._requires_grad or base.array.changes is not self.array.changes:
            return  # the base is in no graph, or has been given other memory
        if self._view_kind is ViewKind.PARTS or (self._view_kind is not ViewKind.PLAIN and is_old):
            reason = self._view_kind.value
            raise GraphError(f"a view whose memory has been changed in place cannot be used here: it {reason}")
        if self._view_kind is ViewKind.UNRECORDED:
            return
        before = self.detach()
        before._take_place_of(self)
        self._take_from(base, self)
        self._viewed_at = count
        self._keep_retaining(before)

    def _take_from(self, base: Variable, view: Variable) -> None:
        """Stand in the graph as what view shows of base."""
        ctx, origin, made = Context(), cast("Tensor", base), cast("Tensor", self)
        ctx.needs_input_grad, ctx.region = (True,), Region.of(base.array, view.array)
        self._requires_grad, self._node, self._output_index = True, Node(AsStrided, ctx, (origin,), (made,)), 0
        if state.observer is not None:
            state.observer(AsStrided, (origin,), {}, [made])

    def _take_place_of(self, other: Variable) -> None:
        """Stand where other stands in the graph."""
        self._requires_grad, self._node, self._output_index = other._requires_grad, other._node, other._output_index

    def _keep_retaining(self, before: Variable) -> None:
        """If the gradient of self was retained where before stands in the graph, it is where self stands now."""
        old, new = before._node, self._node
        if old is not None and new is not None and old is not new:
            reference = old.retained.get(before._output_index)
            if reference is not None and reference() is self:
                del old.retained[before._output_index]
                new.retained[self._output_index] = reference


class HookHandle:
    """A handle that removes a hook. Made by `genesis.Tensor.register_hook`."""

    def __init__(self, hooks: list[Hook], hook: Hook) -> None:
        self._hooks, self._hook = cast("list[object]", hooks), hook
        hooks.append(hook)

    def remove(self) -> None:
        """Remove the hook. See `genesis.Tensor.register_hook`."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


@final
class Node:
    """One call of a Function in the graph.

    Final, so that `type(target) is Node` tells it from a leaf: isinstance() takes its time where the answer is no.
    """

    __slots__ = (
        "__weakref__", "ctx", "edges", "function", "hooks", "line", "number", "outputs", "result_class", "retained",
    )  # fmt: skip

    _numbers = itertools.count()

    def __init__(
        self, function: type[Differentiable], ctx: Context, args: Iterable[Tensor], outputs: Sequence[Tensor]
    ) -> None:
        self.number = next(self._numbers)
        self.function = function
        self.ctx: Context | None = ctx
        self.result_class = outputs[0]._result_class
        arrays = [output.array for output in outputs]
        self.outputs = tuple([(array.shape, array.dtype, array.device) for array in arrays])
        self.edges = tuple(
            [edge_to(arg) if needed else None for arg, needed in zip(args, ctx.needs_input_grad, strict=True)]
        )
        self.hooks: dict[int, list[GradHook]] = {}
        self.retained: dict[int, weakref.ref[Variable]] = {}
        self.line = callsite.user_line() if settings.check or settings.debug >= 2 or callsite.anomaly[0] else None

    @classmethod
    def next_number(cls) -> int:
        """A number above those of all nodes so far, and below those of all that follow."""
        return next(cls._numbers)

    def __repr__(self) -> str:
        return f"<{self.function.__name__}Backward>"

    def input_grads(
        self,
        grads: Sequence[NDArray | None],
        retain_graph: bool,
        owns_grad: bool = False,
        addend: NDArray | None = None,
        place: Callable[[Tensor], NDArray | None] | None = None,
    ) -> list[tuple[NDArray | None, bool]]:
        """The gradient of each input, from those of the outputs, and whether nobody else holds its memory.

        owns_grad: nobody else holds the memory of the first output's gradient.
        addend: of a function that adds_up, what the gradient of its first argument is so far.
        place: where a copy of a leaf's gradient should lie, if one has to be made.
        """
        ctx = self.ctx
        if ctx is None:
            raise GraphError(
                f"backward: the graph was freed when it ran the first time (at {self.function.__name__}); "
                "pass retain_graph=True there to run it again"
            )
        if len(grads) > 1 and ctx._materializes_grads:
            grads = [
                NDArray.full(shape, 0, dtype, device) if grad is None and dtype.is_differentiable else grad
                for grad, (shape, dtype, device) in zip(grads, self.outputs, strict=True)
            ]
        if self.function.backward is Differentiable.backward:
            raise NotImplementedError(f"{self.function.__name__}: it has no backward, and cannot be differentiated")
        on_arrays = self.function.on_arrays
        if on_arrays:
            ctx.owns_grad, ctx.addend = owns_grad and len(grads) == 1, addend
            results = self.function.backward(ctx, *grads)
            ctx.addend = None  # which nobody is to hold longer
        else:
            with no_grad():
                handed = ctx._by_output([None if grad is None else self.result_class(grad) for grad in grads])
                results = self.function.backward(ctx, *handed)
        results = results if isinstance(results, tuple) else (results,)
        num_edges = len(self.edges)
        if len(results) > num_edges and all(result is None for result in results[num_edges:]):
            results = results[:num_edges]  # None for arguments that were left to their defaults
        if len(results) != num_edges:
            raise GraphError(
                f"{self.function.__name__}.backward: expected {num_edges} gradients, one for each argument of "
                f"apply (None where there is none), got {len(results)}"
            )
        # What also lives elsewhere must not be changed in place, nor become the grad of a leaf.
        elsewhere = {id(array.changes) for array in ctx._arrays}
        elsewhere.update([id(grad.changes) for grad in grads if grad is not None])
        if ctx._saved and not retain_graph:
            self.ctx = None
        if not on_arrays:
            name = f"{self.function.__name__}.backward"
            results = tuple([None if result is None else array_from(name, result) for result in results])
        return [
            _NO_GRAD if result is None or edge is None else self._delivered(result, edge, elsewhere, place)
            for result, edge in zip(results, self.edges, strict=True)
        ]

    def _delivered(
        self, grad: NDArray, edge: Edge, elsewhere: set[int], place: Callable[[Tensor], NDArray | None] | None
    ) -> tuple[NDArray | None, bool]:
        """A gradient in the shape and dtype that edge wants, and whether nobody else holds its memory."""
        target, index = edge
        if type(target) is Node:
            shape, dtype, _ = target.outputs[index]
        else:
            shape, dtype = target.array.shape, target.array.dtype
        if grad.shape != shape:
            fits = all(size in (1, its) for size, its in zip(reversed(shape), reversed(grad.shape), strict=False))
            if type(target) is not Node and not target._requires_grad:
                return _NO_GRAD  # no longer; it may have another shape since
            if grad.ndim < len(shape) or not fits:
                problem = f"{self.function.__name__}.backward: expected a gradient of {shape}, got {grad.shape}"
                if self.function.on_arrays and isinstance(target, Variable):  # our own are right
                    problem += "; the tensor was given another shape after the forward pass, which is to be run again"
                raise GraphError(problem)
            grad = grad.sum_to(shape)
        if grad.dtype is not dtype:
            if dtype.is_complex:
                require_form(self.function)
            elif grad.dtype.is_complex:
                grad = grad.part(0)
            there = None if place is None or type(target) is Node else place(target)
            if there is not None:
                there.copy_into(grad)
                return there, True
            grad = grad.to(dtype)
        # A Function of users may keep what it returns.
        repeats = 0 in grad.strides and grad.is_expanded
        shared = repeats or id(grad.changes) in elsewhere or not self.function.on_arrays
        if shared and type(target) is not Node:
            grad, shared = grad.clone(), False
        elsewhere.add(id(grad.changes))
        return grad, not shared


Edge: TypeAlias = "tuple[Node | Tensor, int]"
Gradients = tuple[NDArray | None, ...]  # of an ArrayFunction's arguments, by position
_NO_GRAD = (None, False)


def edge_to(variable: Tensor) -> Edge:
    """Return where the gradient of variable goes: to itself if it is a leaf, else to the node that made it."""
    return (variable, 0) if variable._node is None else (variable._node, variable._output_index)


def as_array(value: NDArray | Variable) -> NDArray:
    return value.array if isinstance(value, Variable) else value


def array_from(op: str, given: object) -> NDArray:
    """The array of what a Function of a user's returned."""
    if not isinstance(given, Variable | NDArray):
        kind = type(given)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise DTypeError(f"{op}: expected to be given back a Tensor, or a tuple of them, got a {name}")
    return as_array(given)
