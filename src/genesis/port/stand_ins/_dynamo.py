"""torch._dynamo: nothing is compiled from its source here."""

from __future__ import annotations

from genesis.compiler import allow_in_graph as allow_in_graph
from genesis.compiler import disable as disable
from genesis.compiler import is_compiling as is_compiling

assume_constant_result = allow_in_graph


def mark_dynamic(*args: object, **kwargs: object) -> None:
    """Do nothing: shapes are always dynamic."""


maybe_mark_dynamic = mark_static = mark_dynamic


def reset() -> None:
    """Do nothing: nothing was compiled."""
