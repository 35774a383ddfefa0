"""The parts of a node beside its edges: the Context of its call, and the Differentiable function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from genesis.errors import GraphError
from genesis.ndarray import NDArray

if TYPE_CHECKING:
    from genesis.tensor import Tensor

Grad = TypeVar("Grad")


class Context:
    """Carries values from a Function's forward to its backward: saved ones, and any attribute. Made by
    `genesis.autograd.Function`.
    """

    needs_input_grad: tuple[bool, ...] = ()  # by positional argument of apply
    non_differentiable: tuple[NDArray | Tensor, ...] = ()
    owns_grad = False  # in backward of an op with one output: nobody else holds its gradient, which may be overwritten
    addend: NDArray | None = None  # in backward of an op that adds_up: what its first argument's gradient is so far
    kwargs: Mapping[str, Any] = MappingProxyType({})  # of the call that was recorded
    # Of a Function on tensors, for each saved value: the argument that it is, or −1 − the output; else None.
    _roles: Sequence[int | None] = ()
    _dirty: tuple[NDArray | Tensor, ...] = ()  # of a Function on tensors: the arguments that forward changed in place
    _materializes_grads = True  # in backward: gradients of outputs without a part in the loss are zeros, not None
    # Of a Function on tensors that also gave other objects: where the tensors are among its outputs.
    _places: Sequence[int] | None = None
    _num_outputs = 1
    _saved: tuple[object, ...] = ()
    _arrays: Sequence[NDArray] = ()  # those among the saved
    _counts: Sequence[int] = ()  # how often each of these had been changed

    def save(self, *values: object) -> None:
        """Save arrays, tensors, numbers or None for backward; changing them in place before it is an error.

        Args:
            values: NDArrays in an ArrayFunction, tensors in a Function, of any shape; numbers, None.

        Example:
            >>> class Exp(genesis.autograd.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         y = x.exp()
            ...         ctx.save(y)
            ...         return y
            ...     @staticmethod
            ...     def backward(ctx, grad):
            ...         return grad * ctx.saved[0]  # d/dx eˣ = eˣ
            >>> x = genesis.tensor(0.0, requires_grad=True)
            >>> Exp.apply(x).backward()
            >>> x.grad.item()
            1.0
        """
        if True not in self.needs_input_grad:
            return  # nothing is recorded
        self._saved = values
        self._arrays = arrays = []
        for value in values:
            if type(value) is NDArray:
                arrays.append(value)
            elif value is not None and (array := getattr(value, "array", None)) is not None:  # of a tensor
                arrays.append(array)
        self._counts = [array.changes.count for array in arrays]

    def save_layouts(self, *arrays: NDArray) -> None:
        """Save arrays of which backward reads shape, strides and dtype alone; changing them in place is no error.

        Args:
            arrays: NDArrays of any shape and dtype.

        Example:
            >>> x = genesis.ones(1, 1, 2, 2, requires_grad=True)
            >>> y = x * 1
            >>> y *= nn.functional.adaptive_avg_pool2d(y, 1)
            >>> y.sum().backward()
            >>> x.grad.flatten().tolist()
            [2.0, 2.0, 2.0, 2.0]
        """
        if True in self.needs_input_grad:
            self._saved = arrays

    @property
    def saved(self) -> tuple[Any, ...]:
        """The values given to save(), in this order. See `genesis.autograd.Context.save`."""
        counts = [array.changes.count for array in self._arrays]
        if counts != self._counts:
            for array, now, before in zip(self._arrays, counts, self._counts, strict=True):
                if now != before:
                    raise GraphError(
                        f"backward: a value of shape {array.shape} that was saved for the gradient has been "
                        f"changed in place {now - before} time(s) since; change a copy (.clone()) instead"
                    )
        return self._saved

    def _note_roles(self, args: Sequence[object], made: Sequence[Tensor]) -> None:
        """Note which saved tensors are arguments or outputs. See `genesis.autograd.Context.save`."""
        places = {id(tensor.array): -1 - place for place, tensor in enumerate(made)}
        for place, arg in enumerate(args):
            if (array := getattr(arg, "array", None)) is not None:
                places[id(array)] = place
        self._roles = [places.get(id(getattr(value, "array", None))) for value in self._saved]

    def _replace_saved(self, array: NDArray, by: NDArray) -> None:
        """Save by, which now has the values of array, in its place: as PyTorch does with what an op wrote in place."""
        if any(each is array for each in self._arrays):
            self.save(*[by if each is array else each for each in self._saved])

    save_for_backward = save  # PyTorch's names, for users' functions on tensors

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """The tensors given to save_for_backward(), in this order. See `genesis.autograd.Function`."""
        return self.saved

    def mark_non_differentiable(self, *outputs: NDArray | Tensor) -> None:
        """Name outputs without a gradient.

        Args:
            outputs: tensors that forward returns, of any shape.

        Example:
            >>> class Rank(genesis.autograd.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         order = x.argsort()
            ...         ctx.mark_non_differentiable(order)
            ...         return order
            >>> Rank.apply(genesis.tensor([2.0, 1.0], requires_grad=True)).requires_grad
            False
        """
        self.non_differentiable = outputs

    def mark_dirty(self, *args: NDArray | Tensor) -> None:
        """Name arguments that forward changes in place, and returns.

        Args:
            args: arguments of forward, of any shape.

        Example:
            >>> class Double(genesis.autograd.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         ctx.mark_dirty(x)
            ...         return x.mul_(2)
            ...     @staticmethod
            ...     def backward(ctx, grad):
            ...         return grad * 2
            >>> x = genesis.ones(2, requires_grad=True)
            >>> y = x + 1
            >>> Double.apply(y) is y
            True
            >>> y.sum().backward()
            >>> x.grad.tolist()
            [2.0, 2.0]
        """
        self._dirty = args

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether backward gets zeros for outputs that have no part in the loss, beside others that have.

        Args:
            value: False: backward gets None for them.

        Example:
            >>> class Both(genesis.autograd.Function):
            ...     @staticmethod
            ...     def forward(ctx, x):
            ...         ctx.set_materialize_grads(False)
            ...         return x + 1, x + 2
            ...     @staticmethod
            ...     def backward(ctx, first, second):
            ...         return first if second is None else first + second
            >>> x = genesis.ones(1, requires_grad=True)
            >>> Both.apply(x)[0].backward()
            >>> x.grad.item()
            1.0
        """
        self._materializes_grads = value

    def save_for_forward(self, *tensors: NDArray | Tensor | None) -> None:
        """Do nothing: there is no forward-mode differentiation, for which PyTorch keeps them.

        Args:
            tensors: of any shape.

        Example:
            >>> print(genesis.autograd.Context().save_for_forward(genesis.ones(1)))
            None
        """

    def _by_output(self, grads: Sequence[Grad]) -> list[Grad | None]:
        """The gradients as backward takes them, with None in the places of outputs that are no tensors.

        Args:
            grads: of the tensors among the outputs.

        Example:
            >>> genesis.autograd.Context()._by_output([1.0])
            [1.0]
        """
        if self._places is None:
            return list(grads)
        handed: list[Grad | None] = [None] * self._num_outputs
        for place, grad in zip(self._places, grads, strict=True):
            handed[place] = grad
        return handed

    if TYPE_CHECKING:  # any other attribute is the Function's own

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: object) -> None: ...


class _Read:
    """A property that an attribute of an instance may hide."""

    def __init__(self, read: Callable[[Context], object]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, instance: Context | None, owner: type) -> object:
        return self if instance is None else self._read(instance)


class UserContext(Context):
    """The Context of a Function on tensors: its `saved` may be an attribute of the user's. Made by
    `genesis.autograd.Function`.
    """

    saved_tensors = property(vars(Context)["saved"].fget)
    saved = cast("property", _Read(vars(Context)["saved"].fget))


class Differentiable:
    """The interface that a node needs of its function; Function implements it."""

    on_arrays: ClassVar[bool] = False
    adds_up: ClassVar[bool] = False  # its backward adds ctx.addend to the gradient of its first argument

    @staticmethod
    def backward(*args: Any, **kwargs: Any) -> Any:
        """Return the gradient of each positional argument of forward. See `genesis.autograd.Function`."""
        raise NotImplementedError("a Function needs a static method backward(ctx, ...) to be differentiated")
