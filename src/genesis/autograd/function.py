"""Function: an op with its gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Never, ParamSpec, Protocol, TypeVar, overload

from genesis.autograd.context import Context, Differentiable
from genesis.autograd.custom import SetupContext, apply_to_tensors
from genesis.autograd.graph import Variable, new
from genesis.autograd.modes import state
from genesis.autograd.recording import needs, note_view, record
from genesis.autograd.views import ViewKind
from genesis.dtypes import Number, of_scalar
from genesis.errors import DTypeError
from genesis.ndarray import Device, NDArray

if TYPE_CHECKING:
    from genesis.tensor import Tensor


class Unrecorded:
    """The context of calls that record nothing; it keeps nothing, so one serves all. Made by
    `genesis.autograd.Function`.
    """

    __slots__ = ("needs_input_grad",)

    def __init__(self, num_args: int) -> None:
        self.needs_input_grad = (False,) * num_args

    def save(self, *values: object) -> None:
        """Keep nothing. See `genesis.autograd.Context.save`."""

    save_layouts = save


Ctx = TypeVar("Ctx", contravariant=True)
P = ParamSpec("P")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)


class Forward(Protocol[Ctx, P, Result]):
    """A function by its forward: on arrays, apply gives tensors for them; on tensors, it takes and returns the same."""

    @staticmethod
    def forward(ctx: Ctx, /, *args: P.args, **kwargs: P.kwargs) -> Result: ...


class ForwardAlone(Protocol[P, Result]):
    """A function by a forward without ctx, whose setup_context keeps what backward needs."""

    @staticmethod
    def forward(*args: P.args, **kwargs: P.kwargs) -> Result: ...

    @staticmethod
    def setup_context(ctx: Never, inputs: Never, output: Never) -> object: ...


class Function(Differentiable):
    """An op with its gradient. Subclass it with two static methods:

        forward(ctx, *args, **kwargs) -> a tensor or a tuple of tensors
        backward(ctx, *grad_outputs) -> the gradient of each positional argument, by position; None for the others

    and call it by `apply`. Tensors are handed in without graph, and nothing inside is recorded. What backward needs may
    be kept by a third one instead: then forward(*args) has no ctx, and is followed by

        setup_context(ctx, inputs, output) with the tuple of its arguments, and what it returned

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

    differentiable: ClassVar[bool] = True
    autocast: ClassVar[str | None] = (
        None  # under amp.autocast: "lower" precision, "float32", "widest" input, or as it comes
    )
    takes_numbers: ClassVar[bool] = False  # computes two Python numbers too, as PyTorch's op does
    elementwise: ClassVar[bool] = False  # each element of a result depends on one of each operand, which broadcast
    # The ctx where nothing is recorded; of an ArrayFunction whose result is one new array, and which leaves nothing in
    # ctx but by save().
    unrecorded: ClassVar[Unrecorded | None] = None
    setup_context: ClassVar[SetupContext | None] = None  # of Functions on tensors

    @staticmethod
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a Function needs a static method forward(ctx, ...)")

    @overload
    @classmethod
    def apply(cls: type[ForwardAlone[P, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    @classmethod
    def apply(cls: type[Forward[Ctx, P, NDArray]], *args: object, **kwargs: object) -> Tensor: ...
    @overload
    @classmethod
    def apply(
        cls: type[Forward[Ctx, P, tuple[NDArray, NDArray]]], *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    @classmethod
    def apply(
        cls: type[Forward[Ctx, P, tuple[NDArray, ...]]], *args: object, **kwargs: object
    ) -> tuple[Tensor, ...]: ...
    @overload
    @classmethod
    def apply(cls: type[Forward[Ctx, P, R]], *args: P.args, **kwargs: P.kwargs) -> R: ...
    @classmethod
    def apply(cls, *args: object, **kwargs: object) -> object:
        """Run forward and, if an input requires grad, record a node."""
        # On the way of every op: the common case, no graph and one output, does as little as it can.
        modes = state.__dict__
        alone = cls.unrecorded
        if alone is not None and not modes["recording"] and modes["autocast"] is modes["observer"] is None:
            first_arg = args[0]
            if isinstance(first_arg, Variable):  # nothing is to be done but to compute: that takes half the time
                arrays = [arg.array if isinstance(arg, Variable) else arg for arg in args]
                result = cls.forward(alone, *arrays, **kwargs) if kwargs else cls.forward(alone, *arrays)
                variable = new(first_arg._result_class)
                variable.array = result
                return variable
        if modes["autocast"] is not None:
            args = modes["autocast"](cls, args)
        if not cls.on_arrays:
            return apply_to_tensors(cls, args, kwargs)
        recording = modes["recording"]
        first: Variable | None = None
        inputs: list[object] = []
        recorded = False
        for arg in args:
            if arg is not None and isinstance(arg, Variable):
                if first is None:
                    first = arg
                if recording:
                    if arg._base is not None and cls.differentiable:
                        arg._refresh()
                    if arg._requires_grad:
                        recorded = cls.differentiable
                inputs.append(arg.array)
            else:
                inputs.append(arg)
        if first is None:
            return cls.apply(_as_tensor(cls, args), *args[1:], **kwargs)
        ctx = Context()
        ctx.needs_input_grad = needs(args) if recorded else (False,) * len(args)
        # Handing on no keywords takes its time too.
        result = cls.forward(ctx, *inputs, **kwargs) if kwargs else cls.forward(ctx, *inputs)
        make, origin = first._result_class, first.array
        if type(result) is NDArray and not recorded and modes["observer"] is None:
            variable = new(make)
            variable.array = result
            if result.is_view_of(origin):
                note_view(variable, first, recording)
            return variable
        outputs = result if isinstance(result, tuple) else (result,)
        variables: list[Tensor] = []
        for output in outputs:
            variables.append(variable := new(make))
            variable.array = output
            if output.is_view_of(origin):
                note_view(variable, first, recording, ViewKind.SEVERAL if outputs is result else None)
        if recorded:
            record(cls, ctx, args, kwargs, outputs, variables)
        if modes["observer"] is not None:
            modes["observer"](cls, args, kwargs, variables)
        return tuple(variables) if outputs is result else variables[0]


class ArrayFunction(Function):
    """A Function whose forward and backward work on NDArrays: what the functional layer is written in.

    Its backward may return a gradient that is still broadcast or in another dtype: the walk sums and casts it to fit.

    Example:
        >>> class Sum(genesis.autograd.ArrayFunction):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.shape = x.shape
        ...         return genesis.ndarray.ops.sum(x, (0,))
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         return grad.expand(ctx.shape)  # each element counts once
        >>> x = genesis.ones(3, requires_grad=True)
        >>> Sum.apply(x).backward()
        >>> x.grad.tolist()
        [1.0, 1.0, 1.0]
    """

    on_arrays = True


class ElementwiseFunction(ArrayFunction):
    """An ArrayFunction whose results depend, element by element, on operands that broadcast.

    Example:
        >>> class Double(genesis.autograd.ElementwiseFunction):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x.mul(2)
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         return grad.mul(2)
        >>> Double.apply(genesis.ones(2)).tolist()
        [2.0, 2.0]
    """

    elementwise = True


class BinaryFunction(ElementwiseFunction):
    """An ElementwiseFunction of two operands, whose result is new memory; it leaves nothing in ctx but by save().

    Example:
        >>> class Product(genesis.autograd.BinaryFunction):
        ...     @staticmethod
        ...     def forward(ctx, x, y):
        ...         ctx.save(x, y)
        ...         return x.mul(y)
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         x, y = ctx.saved
        ...         return grad.mul(y), grad.mul(x)
        >>> Product.apply(genesis.full((2,), 3.0), genesis.ones(1)).tolist()
        [3.0, 3.0]
    """

    unrecorded = Unrecorded(2)


def _as_tensor(function: type[Function], args: tuple[object, ...]) -> Tensor:
    """The first of several numbers as a tensor on the CPU, if the function takes them."""
    number = args[0]
    if not (function.takes_numbers and isinstance(number, Number) and all(isinstance(arg, Number) for arg in args)):
        kinds = ", ".join(type(arg).__name__ for arg in args)
        raise DTypeError(f"{function.__name__}: expected a Tensor among the arguments, got ({kinds})")
    return Variable._result_class(NDArray.full((), number, of_scalar(number), Device("cpu")))
