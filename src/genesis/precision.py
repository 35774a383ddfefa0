"""The precision of float32 convolutions and matrix products: "highest" by default, never lowered silently.

"highest": full float32; the error is no larger than that of float32 arithmetic.
"high":    operands may be rounded to TensorFloat-32 (11 bits) before multiplication.
"medium":  operands may be rounded to bfloat16 (8 bits).

Sums are float32 or better in all three. Other dtypes are not affected.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from genesis.errors import describe

G = TypeVar("G")
R = TypeVar("R")

PRECISIONS = ("highest", "high", "medium")


class _Thread(threading.local):
    precision: str | None = None  # None: that of the process


_process = "highest"
_thread = _Thread()


def set_float32_precision(precision: str) -> None:
    """Set the precision of float32 convolutions and matrix products in all threads; with blocks override it.

    Args:
        precision: "highest", "high" (TF32) or "medium" (bfloat16).
    Raises: ValueError: precision is none of "highest", "high", "medium".

    Example:
        >>> genesis.set_float32_precision("high")
        >>> genesis.get_float32_precision()
        'high'
        >>> genesis.set_float32_precision("highest")
    """
    global _process
    _process = _checked("set_float32_precision", precision)


def get_float32_precision() -> str:
    """Return the float32 precision of this thread, including its with blocks.

    Example:
        >>> genesis.get_float32_precision()
        'highest'
    """
    return _thread.precision or _process


@contextmanager
def float32_precision(precision: str | None) -> Iterator[None]:
    """Change the float32 precision inside the with block, in this thread; None changes nothing.

    Gradients of ops inside follow it, wherever backward() is called.

    Args:
        precision: "highest", "high" (TF32), "medium" (bfloat16) or None.
    Raises: ValueError: precision is none of "highest", "high", "medium".

    Example:
        >>> with genesis.float32_precision("high"):
        ...     genesis.get_float32_precision()
        'high'
    """
    before = _thread.precision
    _thread.precision = before if precision is None else _checked("float32_precision", precision)
    try:
        yield
    finally:
        _thread.precision = before


class HasPrecision(Protocol):
    """The context of a Function whose forward has set its precision."""

    precision: str


Context = TypeVar("Context", bound=HasPrecision)


def follows_forward(backward: Callable[[Context, G], R]) -> Callable[[Context, G], R]:
    """Decorate a Function's backward to compute in ctx.precision, which its forward has set."""

    @functools.wraps(backward)
    def in_precision(ctx: Context, grad: G) -> R:
        if ctx.precision == get_float32_precision():
            return backward(ctx, grad)
        with float32_precision(ctx.precision):
            return backward(ctx, grad)

    return in_precision


def _checked(op: str, precision: str) -> str:
    if precision not in PRECISIONS:
        raise ValueError(describe(op, "precision", f"one of {', '.join(PRECISIONS)}", repr(precision)))
    return precision
