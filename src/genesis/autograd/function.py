"""Function: an op with its gradient; Node: one call of it in the graph."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, final

from genesis import callsite
from genesis.autograd.modes import no_grad, state
from genesis.autograd.variable import Variable
from genesis.errors import DTypeError, GraphError
from genesis.ndarray import NDArray
from genesis.settings import settings


class Context:
    """What a Function's forward leaves for its backward: saved values, and any attribute it sets."""

    needs_input_grad: tuple[bool, ...] = ()  # by positional argument of apply
    non_differentiable: tuple[Any, ...] = ()
    owns_grad = False  # in backward of an op with one output: nobody else holds its gradient, which may be overwritten
    addend: NDArray | None = None  # in backward of an op that adds_up: what its first argument's gradient is so far
    _saved: tuple[Any, ...] = ()
    _arrays: Sequence[NDArray] = ()  # those among the saved
    _counts: Sequence[int] = ()  # how often each of these had been changed

    def save(self, *values: Any) -> None:
        """Keep arrays or tensors (or numbers, or None) for backward; it is an error to change them in place before."""
        if True not in self.needs_input_grad:
            return  # nothing is recorded
        self._saved = values
        self._arrays = arrays = []
        for value in values:
            if type(value) is NDArray:
                arrays.append(value)
            elif value is not None and isinstance(value, Variable):
                arrays.append(value.array)
        self._counts = [array.changes.count for array in arrays]

    @property
    def saved(self) -> tuple[Any, ...]:
        counts = [array.changes.count for array in self._arrays]
        if counts != self._counts:
            for array, now, before in zip(self._arrays, counts, self._counts, strict=True):
                if now != before:
                    raise GraphError(
                        f"backward: a value of shape {array.shape} that was saved for the gradient has been "
                        f"changed in place {now - before} time(s) since; change a copy (.clone()) instead"
                    )
        return self._saved

    save_for_backward = save  # PyTorch's names, for users' functions
    saved_tensors = saved

    def mark_non_differentiable(self, *outputs: Any) -> None:
        self.non_differentiable = outputs


class Unrecorded:
    """The ctx of calls of which nothing is recorded. It takes nothing, so that one serves them all."""

    __slots__ = ("needs_input_grad",)

    def __init__(self, num_args: int) -> None:
        self.needs_input_grad = (False,) * num_args

    def save(self, *values: Any) -> None:
        pass


class Function:
    """An op with its gradient. Subclass it with two static methods:

        forward(ctx, *args, **kwargs) -> a tensor or a tuple of tensors
        backward(ctx, *grad_outputs) -> the gradient of each positional argument, by position; None for the others

    and call it by `apply`. Tensors are handed in without graph, and nothing inside is recorded.

    Example:
        >>> class Cube(genesis.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x * x
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         (x,) = ctx.saved_tensors
        ...         return grad * 3 * x * x  # d/dx x³ = 3x²
        >>> x = genesis.tensor(2.0, requires_grad=True)
        >>> Cube.apply(x).backward()
        >>> x.grad.item()
        12.0
    """

    on_arrays: ClassVar[bool] = False
    differentiable: ClassVar[bool] = True
    autocast: ClassVar[str | None] = (
        None  # under amp.autocast: "lower" precision, "float32", "widest" input, or as it comes
    )
    adds_up: ClassVar[bool] = False  # its backward adds ctx.addend to the gradient of its first argument
    elementwise: ClassVar[bool] = False  # each element of a result depends on one of each operand, which broadcast
    # The ctx where nothing is recorded; of an ArrayFunction whose result is one new array, and which leaves nothing in
    # ctx but by save().
    unrecorded: ClassVar[Unrecorded | None] = None

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a Function needs a static method forward(ctx, ...)")

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise NotImplementedError("a Function needs a static method backward(ctx, ...) to be differentiated")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run forward and, if an input requires grad, record a node."""
        # On the way of every op: the common case, no graph and one output, does as little as it can.
        modes = state.__dict__
        alone = cls.unrecorded
        if alone is not None and not modes["recording"] and modes["autocast"] is modes["observer"] is None:
            first_arg = args[0]
            if isinstance(first_arg, Variable):  # nothing is to be done but to compute: that takes half the time
                arrays = [arg.array if isinstance(arg, Variable) else arg for arg in args]
                result = cls.forward(alone, *arrays, **kwargs) if kwargs else cls.forward(alone, *arrays)
                return first_arg._result_class(result)
        if modes["autocast"] is not None:
            args = modes["autocast"](cls, args)
        recording, on_arrays = modes["recording"], cls.on_arrays
        first: Variable | None = None
        inputs: list[Any] = []
        recorded = False
        for arg in args:
            if arg is not None and isinstance(arg, Variable):
                if first is None:
                    first = arg
                if recording:
                    if arg._viewed_at is not None:
                        _refuse_stale_view(cls.__name__, arg)
                    if arg.requires_grad:
                        recorded = cls.differentiable
                inputs.append(arg.array if on_arrays else arg.detach())
            else:
                inputs.append(arg)
        if first is None:
            kinds = ", ".join(type(arg).__name__ for arg in args)
            raise DTypeError(f"{cls.__name__}: expected a Tensor among the arguments, got ({kinds})")
        ctx = Context()
        if recorded:
            ctx.needs_input_grad = tuple(
                [arg is not None and isinstance(arg, Variable) and arg.requires_grad for arg in args]
            )
        else:
            ctx.needs_input_grad = (False,) * len(args)
        if on_arrays:  # handing on no keywords takes its time too
            result = cls.forward(ctx, *inputs, **kwargs) if kwargs else cls.forward(ctx, *inputs)
        else:
            with no_grad():
                result = cls.forward(ctx, *inputs, **kwargs)
        make, origin = first._result_class, first.array
        if type(result) is NDArray and not recorded and modes["observer"] is None:
            variable = make(result)
            if result.is_view_of(origin):
                variable._viewed_at = origin.changes.count
            return variable
        outputs = result if isinstance(result, tuple) else (result,)
        variables: list[Any] = []
        for output in outputs:
            array = output if on_arrays else _array_from(f"{cls.__name__}.forward", output)
            variables.append(variable := make(array))
            if array.is_view_of(origin):
                variable._viewed_at = origin.changes.count
        if recorded:
            node = Node(cls, ctx, args, variables)
            for index, (variable, output) in enumerate(zip(variables, outputs, strict=True)):
                unwanted = ctx.non_differentiable and any(output is each for each in ctx.non_differentiable)
                if variable.array.dtype.is_floating_point and not unwanted:
                    variable.requires_grad, variable._node, variable._output_index = True, node, index
        if modes["observer"] is not None:
            modes["observer"](cls, args, kwargs, variables)
        return tuple(variables) if outputs is result else variables[0]


class ArrayFunction(Function):
    """A Function whose forward and backward work on NDArrays: what the functional layer is written in.

    Its backward may return a gradient that is still broadcast or in another dtype: the walk sums and casts it to fit.
    """

    on_arrays = True


class ElementwiseFunction(ArrayFunction):
    """An ArrayFunction whose results depend, element by element, on operands that broadcast."""

    elementwise = True


class BinaryFunction(ElementwiseFunction):
    """An ElementwiseFunction of two operands, whose result is new memory; it leaves nothing in ctx but by save()."""

    unrecorded = Unrecorded(2)


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
        self, function: type[Function], ctx: Context, args: Iterable[Any], outputs: Sequence[Variable]
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
        self.hooks: dict[int, list[Callable[[Any], Any]]] = {}
        self.retained: dict[int, weakref.ref[Variable]] = {}
        self.line = callsite.user_line() if settings.check or settings.debug >= 2 else None

    def __repr__(self) -> str:
        return f"<{self.function.__name__}Backward>"

    def input_grads(
        self,
        grads: Sequence[NDArray | None],
        retain_graph: bool,
        owns_grad: bool = False,
        addend: NDArray | None = None,
    ) -> list[tuple[NDArray | None, bool]]:
        """The gradient of each input, from those of the outputs, and whether nobody else holds its memory.

        owns_grad: nobody else holds the memory of the first output's gradient.
        addend: of a function that adds_up, what the gradient of its first argument is so far.
        """
        ctx = self.ctx
        if ctx is None:
            raise GraphError(
                f"backward: the graph was freed when it ran the first time (at {self.function.__name__}); "
                "pass retain_graph=True there to run it again"
            )
        if len(grads) > 1:
            grads = [
                NDArray.full(shape, 0, dtype, device) if grad is None and dtype.is_floating_point else grad
                for grad, (shape, dtype, device) in zip(grads, self.outputs, strict=True)
            ]
        if self.function.backward is Function.backward:
            raise NotImplementedError(f"{self.function.__name__}: it has no backward, and cannot be differentiated")
        ctx.owns_grad, ctx.addend = owns_grad and len(grads) == 1, addend
        on_arrays = self.function.on_arrays
        if on_arrays:
            results = self.function.backward(ctx, *grads)
        else:
            with no_grad():
                results = self.function.backward(
                    ctx, *[None if grad is None else self.result_class(grad) for grad in grads]
                )
        ctx.addend = None  # which nobody is to hold longer
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
            results = tuple([None if result is None else _array_from(name, result) for result in results])
        return [
            _NO_GRAD if result is None or edge is None else self._delivered(result, edge, elsewhere)
            for result, edge in zip(results, self.edges, strict=True)
        ]

    def _delivered(self, grad: NDArray, edge: Edge, elsewhere: set[int]) -> tuple[NDArray, bool]:
        """A gradient in the shape and dtype that edge wants, and whether nobody else holds its memory."""
        target, index = edge
        if type(target) is Node:
            shape, dtype, _ = target.outputs[index]
        else:
            shape, dtype = target.array.shape, target.array.dtype
        if grad.shape != shape:
            fits = all(size in (1, its) for size, its in zip(reversed(shape), reversed(grad.shape), strict=False))
            if grad.ndim < len(shape) or not fits:
                problem = f"{self.function.__name__}.backward: expected a gradient of {shape}, got {grad.shape}"
                if self.function.on_arrays and isinstance(target, Variable):  # our own are right
                    problem += "; the tensor was given another shape after the forward pass, which is to be run again"
                raise GraphError(problem)
            grad = grad.sum_to(shape)
        if grad.dtype is not dtype:
            grad = grad.to(dtype)
        # A Function of users may keep what it returns.
        repeats = 0 in grad.strides and grad.is_expanded
        shared = repeats or id(grad.changes) in elsewhere or not self.function.on_arrays
        if shared and type(target) is not Node:
            grad, shared = grad.clone(), False
        elsewhere.add(id(grad.changes))
        return grad, not shared


Edge = tuple[Node | Variable, int]
_NO_GRAD = (None, False)


def edge_to(variable: Variable) -> Edge:
    """Where the gradient of variable goes: to itself if it is a leaf, else to the node that made it."""
    return (variable, 0) if variable._node is None else (variable._node, variable._output_index)


def as_array(value: Any) -> NDArray:
    return value.array if isinstance(value, Variable) else value


def _array_from(op: str, given: Any) -> NDArray:
    """The array of what a Function of a user's returned."""
    if not isinstance(given, Variable | NDArray):
        kind = type(given)
        name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
        raise DTypeError(f"{op}: expected to be given back a Tensor, or a tuple of them, got a {name}")
    return as_array(given)


def _refuse_stale_view(op: str, view: Variable) -> None:
    assert view._viewed_at is not None
    if view.array.changes.last_recorded > view._viewed_at:
        raise GraphError(
            f"{op}: the base of this view was changed in place after the view was taken; take the view again"
        )
