"""Changes in place: a tensor takes the values of a function of it, and the graph follows.

A tensor that shows its own memory takes over the place of the result in the graph. If it is a view, its base does: a
node CopySlices says that the base is what it was but for the region that the view shows. The other views of the base
find when they are used next that their node is out of date, and have a new one made from the base (Variable._refresh).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeAlias, TypeVar, cast

from genesis.autograd.context import Context, Differentiable
from genesis.autograd.graph import Node, Variable
from genesis.autograd.modes import state
from genesis.autograd.views import CopySlices, Overwrite, Region, ViewKind
from genesis.errors import DTypeError, GraphError, ShapeError
from genesis.ndarray import NDArray

if TYPE_CHECKING:
    from types import FunctionType

    from genesis.tensor import Tensor

P = ParamSpec("P")
T = TypeVar("T", bound=Variable)
F = TypeVar("F")
Op: TypeAlias = "Callable[..., Tensor]"

_OVERWRITING: set[object] = set()


def overwrites(name: str) -> Callable[[F], F]:
    """Declare that the result of function(tensor, ...) does not depend on the tensor's values; errors call it name."""

    def declare(function: F) -> F:
        cast("FunctionType", function).__name__ = name
        _OVERWRITING.add(function)
        return function

    return declare


def change(self: T, function: Callable[Concatenate[Tensor, P], Tensor], *args: P.args, **kwargs: P.kwargs) -> T:
    """In place: self becomes function(self, *args), and the graph follows.

    Raises: GraphError: self is a leaf that requires grad, a view of one, or a view that cannot change.
    """
    name = getattr(function, "__name__", "in-place op")
    if state.recording and (self._requires_grad or _any_requires_grad((self, *args, *kwargs.values()))):
        _change_recorded(name, self, function, args, kwargs)
        return self
    _write(name, self.array, function(self.detach(), *args, **kwargs).array)
    return self


def require_changeable(op: str, variable: Variable) -> None:
    """Refuse a recorded change of a leaf that requires grad, of a view of one, and of views of some kinds."""
    base = variable._base
    if base is not None:
        if variable._view_kind is not ViewKind.PLAIN:
            raise GraphError(f"{op}: a view cannot be changed in place here: it {variable._view_kind.value}")
        if base.array.is_expanded:
            raise GraphError(f"{op}: a view cannot be changed in place here: elements of its base share memory")
        if variable.requires_grad and base.is_leaf:
            raise GraphError(f"{op}: a view of a leaf that requires grad can only be changed in place under no_grad()")
    elif variable.requires_grad and variable.is_leaf:
        raise GraphError(f"{op}: a leaf that requires grad can only be changed in place under no_grad()")


def _any_requires_grad(values: Sequence[object]) -> bool:
    for value in values:  # noqa: SIM110  (a generator in any() takes its time)
        if isinstance(value, Variable) and value.requires_grad:
            return True
    return False


def _write(op: str, target: NDArray, values: NDArray) -> None:
    if values.shape != target.shape:
        raise ShapeError(f"{op}: in place, the result's shape {values.shape} must be the tensor's {target.shape}")
    if values.dtype.category > target.dtype.category:
        raise DTypeError(f"{op}: in place, a result of {values.dtype} cannot be cast to the tensor's {target.dtype}")
    target.copy_into(values)


def _change_recorded(op: str, self: Variable, function: Op, args: Sequence[object], kwargs: dict[str, object]) -> None:
    """Change self, and put the change into the graph."""
    require_changeable(op, self)
    self._refresh()
    before, mine = self.detach(), self.array
    before.array = mine.clone()  # the graph goes on from the old values
    before._take_place_of(self)
    other = before  # where self is among the other operands
    if self._base is not None and before._requires_grad:
        other = before.detach()
        other._take_place_of(self)
        before._take_from(self._base, self)  # past the hooks of views between, as in PyTorch
    others = [other if arg is self else arg for arg in args]
    result = function(before, *others, **{key: other if arg is self else arg for key, arg in kwargs.items()})
    _write(op, mine, result.array)
    node = result._node
    if node is not None and node.ctx is not None and result.array.dtype is mine.dtype:
        node.ctx._replace_saved(result.array, by=mine)
    if before._requires_grad and (function in _OVERWRITING or not result._requires_grad):
        result = _overwritten(before, result, (*args, *kwargs.values()))
    if not result._requires_grad:
        return  # of a dtype without gradients
    take_over(self, result)


def take_over(self: Variable, result: Tensor) -> None:
    """Self, which has the values of result in its memory by now, stands where result stands in the graph.

    Args:
        self: a tensor that may change in place, any shape.
        result: what it became, of its shape.
    """
    if self._base is None:
        before = self.detach()
        before._take_place_of(self)
        self._take_place_of(result)
        self._keep_retaining(before)
    else:
        _rebase(self._base, self, result)
        self._refresh()


def _overwritten(before: Tensor, result: Tensor, others: Sequence[object]) -> Tensor:
    """The result as one that gives the former tensor, and what it was computed from, a gradient: zero."""
    deciding = [each for each in others if isinstance(each, Variable) and each.requires_grad]
    args: tuple[Variable, ...] = (before, result) if result._requires_grad else (before, *deciding)
    made = result.detach()
    ctx = _record(Overwrite, args, made)
    ctx.shapes, ctx.passes = [arg.array.shape for arg in args], result._requires_grad
    return made


def _rebase(base: Variable, view: Variable, values: Tensor) -> None:
    """The base becomes what it was, with values in the place of view."""
    former = base.detach()
    former._take_place_of(base)
    _record(CopySlices, (former, values), base).save(Region.of(base.array, view.array))
    base._keep_retaining(former)


def _record(function: type[Differentiable], args: Sequence[Variable], made: Variable) -> Context:
    """made is the function of args from now on; its array has the values already."""
    ctx, operands, output = Context(), cast("Sequence[Tensor]", args), cast("Tensor", made)
    ctx.needs_input_grad = tuple([arg._requires_grad for arg in args])
    made._requires_grad, made._node, made._output_index = True, Node(function, ctx, operands, (output,)), 0
    if state.observer is not None:
        state.observer(function, tuple(args), {}, [output])
    return ctx
