"""custom_fwd and custom_bwd: autocast in the forward and backward of a Function of users."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from genesis import dtypes
from genesis.amp.casting import autocast, is_autocast_enabled
from genesis.autograd import Context
from genesis.autograd.modes import state as thread
from genesis.autograd.modes import with_autocast
from genesis.dtypes import DType
from genesis.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate[Context, P], R]


def custom_fwd(*, device_type: str, cast_inputs: DType | None = None) -> Callable[[Method[P, R]], Method[P, R]]:
    """Decorate the forward of a Function: its backward, decorated by custom_bwd, runs under the same autocast.

    Args:
        device_type: "cpu" or "cuda".
        cast_inputs: under autocast, cast floating tensors of the device (float64 stays) to this dtype, and run forward
            without autocast.
    Returns: the decorator.

    Example:
        >>> class Product(genesis.autograd.Function):
        ...     @staticmethod
        ...     @genesis.amp.custom_fwd(device_type="cpu", cast_inputs=genesis.float32)
        ...     def forward(ctx, x, y):
        ...         ctx.save_for_backward(x, y)
        ...         return x @ y
        ...     @staticmethod
        ...     @genesis.amp.custom_bwd(device_type="cpu")
        ...     def backward(ctx, grad):
        ...         x, y = ctx.saved_tensors
        ...         return grad @ y.t(), x.t() @ grad
        >>> with genesis.autocast("cpu"):
        ...     Product.apply(genesis.ones(2, 2), genesis.ones(2, 2)).dtype
        genesis.float32
    """

    def decorate(forward: Method[P, R]) -> Method[P, R]:
        @functools.wraps(forward)
        def cast_forward(ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
            casts = cast_inputs is not None and is_autocast_enabled(device_type)
            vars(ctx)["_autocast"] = None if casts else thread.autocast
            if cast_inputs is None or not casts:
                return forward(ctx, *args, **kwargs)
            with autocast(device_type, enabled=False):
                given = [_cast(arg, device_type, cast_inputs) for arg in args]
                named = {name: _cast(arg, device_type, cast_inputs) for name, arg in kwargs.items()}
                return forward(ctx, *given, **named)  # type: ignore[arg-type]

        return cast_forward

    return decorate


def custom_bwd(*, device_type: str) -> Callable[[Method[P, R]], Method[P, R]]:
    """Decorate the backward of a Function whose forward has custom_fwd. See `genesis.amp.custom_fwd`."""

    def decorate(backward: Method[P, R]) -> Method[P, R]:
        @functools.wraps(backward)
        def as_forward(ctx: Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
            with with_autocast(vars(ctx)["_autocast"]):
                return backward(ctx, *args, **kwargs)

        return as_forward

    return decorate


def _cast(value: object, device_type: str, dtype: DType) -> object:
    if isinstance(value, Tensor):
        eligible = value.dtype.is_floating_point and value.dtype is not dtypes.float64
        return value.to(dtype) if eligible and value.device.type == device_type else value
    if isinstance(value, list | tuple):
        return type(value)([_cast(each, device_type, dtype) for each in value])
    return value
