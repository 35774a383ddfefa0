"""PyTorch's other names of arguments: NumPy's axis and keepdims, and those of functions that it has under two names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from genesis.callsite import wrappers
from genesis.errors import DTypeError, describe

P = ParamSpec("P")
R = TypeVar("R")
Given = TypeVar("Given")


def also(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function take arguments by other names too: also(axis="dim") takes axis= for dim=.

    A call by the usual names costs less than 0.1 µs more. Functions that are called most take `axis` themselves.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if kwargs:
                for name in names:
                    if name in kwargs:
                        return function(*args, **_renamed(function.__name__, kwargs, names))  # type: ignore[arg-type]
            return function(*args, **kwargs)

        wrappers.add(call.__code__)  # type: ignore[attr-defined]
        vars(call)["also"] = names
        return call

    return decorate


def one_of(op: str, dim: int | None, axis: int | None) -> int:
    """The dimension that is given by one of its two names, in a function that takes `axis` itself."""
    if dim is None and axis is not None:
        return axis
    if dim is not None and axis is None:
        return dim
    raise DTypeError(describe(op, "dim", "one value", "none" if dim is None else "several"))


def names_of(function: object) -> Mapping[str, str]:
    """The other names that a function takes: which argument each stands for."""
    found: Mapping[str, str] = getattr(function, "also", {})
    return found


def _renamed(op: str, kwargs: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    renamed: dict[str, object] = {}
    for name, value in kwargs.items():
        usual = names.get(name, name)
        if usual in renamed:
            raise DTypeError(f"{op}: argument {usual!r}: expected one value, got several")
        renamed[usual] = value
    return renamed


def taking(arguments: Callable[P, Given]) -> Callable[[Callable[[Given], R]], Callable[P, R]]:
    """Make a function of one object a function of what that is made of.

    Args:
        arguments: the class of the object.
    """

    def decorate(function: Callable[[Given], R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(arguments(*args, **kwargs))

        return call

    return decorate
