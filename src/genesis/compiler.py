"""PyTorch's torch.compiler as far as models ask it: no model of Genesis is ever traced by PyTorch's compiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F")


def is_compiling() -> bool:
    """False: Genesis runs a model's Python as it is; `genesis.compile` records the calls that it makes.

    Example:
        >>> genesis.compiler.is_compiling()
        False
    """
    return False


def is_dynamo_compiling() -> bool:
    """Return False. See `genesis.compiler.is_compiling`."""
    return False


def is_exporting() -> bool:
    """Return False. See `genesis.compiler.is_compiling`."""
    return False


def disable(fn: F | None = None, recursive: bool = True, *, reason: str | None = None) -> F | Callable[[F], F]:
    """Return the function itself: nothing compiles it. A decorator, with parentheses or without.

    Args:
        fn: a function or module; None where only options are given.
        recursive, reason: accepted for PyTorch's sake.
    Returns: fn, or a decorator that returns its function.

    Example:
        >>> genesis.compiler.disable(len) is len
        True
    """
    return (lambda function: function) if fn is None else fn


def allow_in_graph(fn: F) -> F:
    """Return the function itself. See `genesis.compiler.disable`."""
    return fn


def assume_constant_result(fn: F) -> F:
    """Return the function itself. See `genesis.compiler.disable`."""
    return fn


def cudagraph_mark_step_begin() -> None:
    """Do nothing: Genesis' CUDA graphs own their memory.

    Example:
        >>> genesis.compiler.cudagraph_mark_step_begin() is None
        True
    """


def reset() -> None:
    """Do nothing: there are no caches of a compiler. See `genesis.compiler.cudagraph_mark_step_begin`."""
