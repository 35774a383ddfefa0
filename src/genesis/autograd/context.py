"""The parts of a node beside its edges: the Context of its call, and the Differentiable function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from genesis.errors import GraphError
from genesis.ndarray import NDArray

if TYPE_CHECKING:
    from genesis.tensor import Tensor


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
    roles: Sequence[int | None] = ()
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

    def note_roles(self, args: Sequence[object], made: Sequence[Tensor]) -> None:
        """Note which saved tensors are arguments or outputs. See `genesis.autograd.Context.save`."""
        places = {id(tensor.array): -1 - place for place, tensor in enumerate(made)}
        for place, arg in enumerate(args):
            if (array := getattr(arg, "array", None)) is not None:
                places[id(array)] = place
        self.roles = [places.get(id(getattr(value, "array", None))) for value in self._saved]

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

    if TYPE_CHECKING:  # any other attribute is the Function's own

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: object) -> None: ...


class Differentiable:
    """The interface that a node needs of its function; Function implements it."""

    on_arrays: ClassVar[bool] = False
    adds_up: ClassVar[bool] = False  # its backward adds ctx.addend to the gradient of its first argument

    @staticmethod
    def backward(*args: Any, **kwargs: Any) -> Any:
        """Return the gradient of each positional argument of forward. See `genesis.autograd.Function`."""
        raise NotImplementedError("a Function needs a static method backward(ctx, ...) to be differentiated")
