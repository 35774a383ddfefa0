"""torch.compiler: nothing is compiled from its source here."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def is_compiling() -> bool:
    """Say that no source is being compiled."""
    return False


is_dynamo_compiling = is_exporting = is_compiling


def disable(fn: Any = None, recursive: bool = True, **kwargs: object) -> Any:
    """Return the function itself, as a decorator with or without arguments."""
    return fn if fn is not None else _itself


def allow_in_graph(fn: T) -> T:
    """Return the function itself."""
    return fn


def _itself(obj: T) -> T:
    return obj


assume_constant_result = allow_in_graph
