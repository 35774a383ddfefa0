"""Calls of users' Functions, which compute with tensors: setup_context, arguments changed in place, any results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never, Protocol, cast

from genesis.autograd.context import Context, UserContext
from genesis.autograd.graph import Variable, array_from, new
from genesis.autograd.in_place import require_changeable, take_over
from genesis.autograd.modes import no_grad, state
from genesis.autograd.recording import needs, note_view, record
from genesis.autograd.views import ViewKind

if TYPE_CHECKING:
    from genesis.autograd.function import Function
    from genesis.tensor import Tensor


class Called(Protocol):
    """A function of whatever it is given."""

    def __call__(self, *args: object, **kwargs: object) -> object: ...


class SetupContext(Protocol):
    """The function that keeps what backward needs, where forward only computes."""

    def __call__(self, ctx: Never, inputs: Never, output: Never) -> object: ...


def apply_to_tensors(function: type[Function], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run forward on tensors without graph, with nothing recorded inside; then record the call.

    Args:
        function: a Function that is no ArrayFunction.
        args, kwargs: of apply.
    Returns: what forward returned, with its tensors in the graph.
    """
    tensors = [cast("Tensor", arg) for arg in args if isinstance(arg, Variable)]
    recorded = False
    if state.recording and function.differentiable:
        for tensor in tensors:
            tensor._refresh()
            recorded = recorded or tensor._requires_grad
    ctx = UserContext()
    ctx.needs_input_grad = needs(args) if recorded else (False,) * len(args)
    inputs = tuple([arg.detach() if isinstance(arg, Variable) else arg for arg in args])
    with no_grad():
        if function.setup_context is None:
            result = function.forward(ctx, *inputs, **kwargs)
        else:
            result = cast("Called", function.forward)(*inputs, **kwargs)
            cast("Called", function.setup_context)(ctx, inputs, result)
    if not tensors:
        return result
    return _Call(function, ctx, args, tensors).finish(result, recorded, kwargs)


class _Call:
    """A call whose forward has run."""

    def __init__(self, function: type[Function], ctx: Context, args: tuple[object, ...], tensors: list[Tensor]) -> None:
        self.function, self.ctx, self.args, self.tensors = function, ctx, args, tensors
        self.changed = [arg for arg in tensors if any(arg.array is getattr(each, "array", 0) for each in ctx._dirty)]

    def finish(self, result: object, recorded: bool, kwargs: dict[str, object]) -> object:
        """Give the result with its tensors in the graph."""
        several = isinstance(result, tuple)
        given: tuple[object, ...] = result if isinstance(result, tuple) else (result,)
        outputs = [each for each in given if not several or _is_tensor(each)]
        made = [self._made(output, several) for output in outputs]
        if recorded and made:
            if len(made) < len(given):
                self.ctx._places = [place for place, each in enumerate(given) if _is_tensor(each)]
                self.ctx._num_outputs = len(given)
            self.ctx._note_roles(
                [None if any(arg is each for each in self.changed) else arg for arg in self.args], made
            )
            record(self.function, self.ctx, self.args, kwargs, outputs, made)
        if state.observer is not None:
            state.observer(self.function, self.args, kwargs, made)
        made = [self._in_place(tensor) for tensor in made]
        if not several:
            return made[0]
        results = iter(made)
        return tuple([next(results) if _is_tensor(each) else each for each in given])

    def _made(self, output: object, several: bool) -> Tensor:
        """The tensor of an output, outside the graph."""
        first = self.tensors[0]
        variable = new(first._result_class)
        variable.array = array_from(f"{self.function.__name__}.forward", output)
        if variable.array.is_view_of(first.array):
            note_view(variable, first, state.recording, ViewKind.SEVERAL if several else ViewKind.CUSTOM)
        return variable

    def _in_place(self, tensor: Tensor) -> Tensor:
        """The argument whose memory the output has, if forward changed it: the argument goes on as the output."""
        for arg in self.changed:
            if arg.array is tensor.array:
                if tensor._requires_grad:
                    require_changeable(self.function.__name__, arg)
                    take_over(arg, tensor)
                return arg
        return tensor


def _is_tensor(value: object) -> bool:
    """Whether an output is to be in the graph; arrays of other libraries are mistakes, which array_from() names."""
    return isinstance(value, Variable) or hasattr(value, "__dlpack__") or hasattr(value, "changes")
