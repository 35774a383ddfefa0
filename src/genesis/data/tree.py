"""Batches are nested dictionaries, lists and tuples; tensors are their leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def map_tree(function: Callable[[object], object], value: object) -> object:
    """Apply function to every leaf; tuples stay tuples, named ones too."""
    if isinstance(value, Mapping):
        return {key: map_tree(function, item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make([map_tree(function, item) for item in value])
    if isinstance(value, list | tuple):
        return type(value)([map_tree(function, item) for item in value])
    return function(value)
