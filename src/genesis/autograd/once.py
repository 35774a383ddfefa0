"""once_differentiable: a backward of users that cannot be differentiated itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, TypeVar

from genesis.autograd.context import Context
from genesis.autograd.function import Function
from genesis.autograd.graph import Variable
from genesis.autograd.modes import is_grad_enabled, no_grad
from genesis.errors import GraphError

if TYPE_CHECKING:
    from genesis.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def once_differentiable(backward: Callable[Concatenate[Context, P], R]) -> Callable[Concatenate[Context, P], R]:
    """Decorate the backward of a Function: it is not recorded, and a gradient of its gradients is an error.

    Args:
        backward: the static method of a `genesis.autograd.Function`, below @staticmethod.
    Returns: the backward.
    Raises: GraphError: when its gradients are differentiated.

    Example:
        >>> class Double(genesis.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x * 2
        ...     @staticmethod
        ...     @genesis.autograd.once_differentiable
        ...     def backward(ctx, grad):
        ...         return grad * 2
        >>> x = genesis.ones(1, requires_grad=True)
        >>> Double.apply(x).backward()
        >>> x.grad.item()
        2.0
    """

    @functools.wraps(backward)
    def unrecorded(ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with no_grad():
            results = backward(ctx, *args, **kwargs)
        if not is_grad_enabled() or not any(isinstance(arg, Variable) and arg.requires_grad for arg in args):
            return results
        if not isinstance(results, tuple):
            return _last(results)
        return type(results)(map(_last, results))

    return unrecorded


def _last(result: R) -> R:
    if not isinstance(result, Variable) or not result.array.dtype.is_differentiable:
        return result
    made: R = _Last.apply(result.detach().requires_grad_())  # type: ignore[assignment]
    return made


class _Last(Function):
    """The end of what can be differentiated."""

    @staticmethod
    def forward(ctx: Context, grad: Tensor) -> Tensor:
        return grad

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> NoReturn:
        raise GraphError("backward: a gradient by a function marked @once_differentiable cannot be differentiated")
