"""What the tools ask about the arguments and results of an op: which are arrays, and how to write them down."""

from __future__ import annotations

import math
from typing import Any

from genesis.backends.backend import Backend

NO_WORK = frozenset(
    (
        "dtype",
        "strides",
        "offset",
        "data_pointer",
        "view",
        "synchronize",
        "empty_pinned",
        "is_pinned",
        "current_stream",
        "record_stream",
        "time_mark",
        "seconds_between",
        "manual_seed",
        "get_rng_state",
        "set_rng_state",
    )
)  # ops that ask or arrange; no element is read or written
FOREIGN_ARGUMENTS = frozenset(("from_cpu", "from_dlpack"))  # arrays that are no handles of the backend
FOREIGN_RESULTS = frozenset(("to_cpu",))


def arguments(op: str, args: tuple[Any, ...]) -> list[Any]:
    """The handles among the arguments, those in lists included."""
    return [] if op in FOREIGN_ARGUMENTS else _handles(args)


def results(op: str, result: Any) -> list[Any]:
    """The handles among the results."""
    return [] if op in FOREIGN_RESULTS else _handles((result,))


def _handles(values: Any) -> list[Any]:
    found = []
    for value in values:
        if isinstance(value, list | tuple):
            found += _handles(value)
        elif hasattr(value, "shape"):
            found.append(value)
    return found


def num_bytes(backend: Backend, handles: list[Any]) -> int:
    return sum([math.prod(x.shape) * backend.dtype(x).itemsize for x in handles])


def describe(backend: Backend, handles: list[Any]) -> str:
    """`float32 (4, 3, 8, 8), int64 ()`; of a long list the first ones and how many there are."""
    shown = [f"{backend.dtype(x).name} {tuple(x.shape)}" for x in handles[:4]]
    more = [f"… {len(handles)} in all"] if len(handles) > 4 else []
    return ", ".join(shown + more) or "nothing"
