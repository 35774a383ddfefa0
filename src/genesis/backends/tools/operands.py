"""Find the arrays among the arguments and results of an op, and write them down, for the tools."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeGuard

from genesis.backends.backend import Backend
from genesis.backends.contract import TRAITS


class Handle(Protocol):
    """A backend's own array."""

    @property
    def shape(self) -> Sequence[int]: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


def is_handle(value: object) -> TypeGuard[Handle]:
    return hasattr(value, "shape")


def arguments(op: str, args: Iterable[object]) -> list[Handle]:
    """The handles among the arguments, those in lists included."""
    return handles_in(args) if TRAITS[op].arrays else []


def results(op: str, result: object) -> list[Handle]:
    """The handles among the results."""
    return handles_in((result,)) if TRAITS[op].gives_arrays else []


def handles_in(values: Iterable[object]) -> list[Handle]:
    found: list[Handle] = []
    for value in values:
        if isinstance(value, list | tuple):
            found += handles_in(value)
        elif is_handle(value):
            found.append(value)
    return found


def num_bytes(backend: Backend, handles: list[Handle]) -> int:
    return sum([math.prod(x.shape) * backend.dtype(x).itemsize for x in handles])


def describe(backend: Backend, handles: list[Handle]) -> str:
    """`float32 (4, 3, 8, 8), int64 ()`; of a long list the first ones and how many there are."""
    shown = [f"{backend.dtype(x).name} {tuple(x.shape)}" for x in handles[:4]]
    more = [f"… {len(handles)} in all"] if len(handles) > 4 else []
    return ", ".join(shown + more) or "nothing"
