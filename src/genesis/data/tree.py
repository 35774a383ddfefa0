"""Batches are nested dictionaries, lists and tuples; tensors are their leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def map_tree(function: Callable[[Any], Any], value: Any) -> Any:
    """value with function applied to every leaf; tuples stay tuples, named ones too."""
    if isinstance(value, Mapping):
        return {key: map_tree(function, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[map_tree(function, item) for item in value])
    if isinstance(value, list | tuple):
        return type(value)([map_tree(function, item) for item in value])
    return function(value)
