"""A log that comes from a file: checked before anything is done.

Who writes the file decides what is in the log. So it can name known operations only, with plain arguments, and the
inputs on which the network is run are of a bounded size. room.py says how large a network it may ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from genesis import dtypes
from genesis.errors import GrowthError, describe
from genesis.growth import structure, width
from genesis.growth.history import Record, Step

OPERATIONS: dict[str, Callable[..., Step]] = {
    operation.__name__: operation
    for operation in (
        width.grow_width, width.prune_width, structure.grow_depth, structure.grow_branches, structure.prune_branches,
    )
}  # fmt: skip
MAX_EXAMPLE = 2**27  # elements of an input
_LARGEST = 2**31

_MEASURED = ("deviation", "training_deviation")  # a log of 0.1.0 has the first only

Steps = list[Record]


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 < value < _LARGEST


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) in (int, float) and math.isfinite(value)


_ARGUMENTS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "where": ("a name", lambda value: isinstance(value, str)),
    "channels": ("a number of channels", lambda value: value is None or _is_count(value)),
    "kernel_size": ("a size", _is_count),
    "noise": ("a number", _is_number),
    "new": ("a name", lambda value: isinstance(value, str)),
    "by": ("a name", lambda value: isinstance(value, str)),
    "which": ("numbers", lambda value: isinstance(value, list | tuple) and all(type(each) is int for each in value)),
}


def checked(log: object) -> Steps:
    """The steps of a log, if it is one.

    Raises: GrowthError: it is none, or has an operation, an argument or an input that no log has.
    """
    steps = log.get("steps") if isinstance(log, Mapping) else None
    if not isinstance(steps, list | tuple):
        raise GrowthError(describe("replay", "log", "what history(model).state_dict() gave", type(log).__name__))
    for number, step in enumerate(steps):
        where = f"log, step {number}"
        kinds = {
            "operations": list | tuple,
            "example": list | tuple | None,
            **dict.fromkeys(_MEASURED, int | float | None),
        }
        given = {**dict.fromkeys(_MEASURED), **(step if isinstance(step, Mapping) else {})}
        for operation in given["operations"] if isinstance(given.get("operations"), list | tuple) else ():
            _check_operation(where, operation)
        wrong = [name for name, kind in kinds.items() if name not in given or not isinstance(given[name], kind)]
        if wrong:
            raise GrowthError(describe("replay", where, "operations, an example and a deviation", f"no {wrong[0]}"))
        for each in given["example"] or ():
            _check_input(where, each)
    return list(steps)


def _check_operation(where: str, operation: object) -> None:
    arguments: Mapping[object, object] = operation if isinstance(operation, Mapping) else {}
    name = arguments.get("operation")
    if not isinstance(name, str) or name not in OPERATIONS:
        shown = repr(name)[:80]
        raise GrowthError(describe("replay", where, f"operations among {', '.join(OPERATIONS)}", shown))
    for argument, value in arguments.items():
        if argument == "operation":
            continue
        expected, fits = _ARGUMENTS.get(str(argument), ("no such argument", lambda value: False))
        if not fits(value):
            raise GrowthError(describe("replay", f"{where}, {name}, {argument}"[:200], expected, repr(value)[:80]))


def _check_input(where: str, given: object) -> None:
    if not is_recorded_input(given):
        return
    shape, _ = given
    if not all(type(size) is int and 0 <= size < _LARGEST for size in shape) or math.prod(shape) > MAX_EXAMPLE:
        expected = f"the shape of an input of at most {MAX_EXAMPLE:,} elements"
        raise GrowthError(describe("replay", where, expected, repr(shape)[:80]))


def is_recorded_input(given: object) -> TypeGuard[tuple[Sequence[int], str]]:
    """Whether it stands for a tensor: its shape, and its dtype's name."""
    return (
        isinstance(given, list | tuple)
        and len(given) == 2
        and isinstance(given[0], list | tuple)
        and isinstance(given[1], str)
        and given[1] in dtypes.BY_NAME
    )
