"""A log that comes from a file: checked before anything is done, and done only as far as there is room.

Who writes the file decides what is in the log. So it can name known operations only, with plain arguments; the inputs
on which the network is run are of a bounded size; and no operation may make the network hold more than it could need to
become what is in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from genesis import dtypes
from genesis.errors import GrowthError, describe
from genesis.growth.layers import channel_dim
from genesis.growth.transaction import Transaction, count
from genesis.tensor import Tensor

MAX_EXAMPLE = 2**27  # elements of an input
_PRUNED = 16  # how many times more a network may have held before it was pruned
_LARGEST = 2**31

Steps = list[dict[str, Any]]


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 < value < _LARGEST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_ARGUMENTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "where": ("a name", lambda value: isinstance(value, str)),
    "channels": ("a number of channels", lambda value: value is None or _is_count(value)),
    "kernel_size": ("a size", _is_count),
    "noise": ("a number", _is_number),
    "new": ("a name", lambda value: isinstance(value, str)),
    "by": ("a name", lambda value: isinstance(value, str)),
    "which": ("numbers", lambda value: isinstance(value, list | tuple) and all(type(each) is int for each in value)),
}


def checked(log: Any, operations: Mapping[str, Any]) -> Steps:
    """The steps of a log, if it is one.

    Raises: GrowthError: it is none, or has an operation, an argument or an input that no log has.
    """
    steps = log.get("steps") if isinstance(log, Mapping) else None
    if not isinstance(steps, list | tuple):
        raise GrowthError(describe("replay", "log", "what history(model).state_dict() gave", type(log).__name__))
    for number, step in enumerate(steps):
        where = f"log, step {number}"
        kinds = {"operations": list | tuple, "example": list | tuple | None, "deviation": int | float | None}
        given = step if isinstance(step, Mapping) else {}
        for operation in given["operations"] if isinstance(given.get("operations"), list | tuple) else ():
            _check_operation(where, operation, operations)
        wrong = [name for name, kind in kinds.items() if name not in given or not isinstance(given[name], kind)]
        if wrong:
            raise GrowthError(describe("replay", where, "operations, an example and a deviation", f"no {wrong[0]}"))
        for each in given["example"] or ():
            _check_input(where, each)
    return list(steps)


def _check_operation(where: str, operation: Any, operations: Mapping[str, Any]) -> None:
    name = operation.get("operation") if isinstance(operation, Mapping) else None
    if not isinstance(name, str) or name not in operations:
        shown = repr(name)[:80]
        raise GrowthError(describe("replay", where, f"operations among {', '.join(operations)}", shown))
    for argument, value in operation.items():
        if argument == "operation":
            continue
        expected, fits = _ARGUMENTS.get(argument, ("no such argument", lambda value: False))
        if not fits(value):
            raise GrowthError(describe("replay", f"{where}, {name}, {argument}"[:200], expected, repr(value)[:80]))


def _check_input(where: str, given: Any) -> None:
    if not is_recorded_input(given):
        return
    shape, _ = given
    if not all(type(size) is int and 0 <= size < _LARGEST for size in shape) or math.prod(shape) > MAX_EXAMPLE:
        expected = f"the shape of an input of at most {MAX_EXAMPLE:,} elements"
        raise GrowthError(describe("replay", where, expected, repr(shape)[:80]))


def is_recorded_input(given: Any) -> bool:
    """Whether it stands for a tensor: its shape, and its dtype's name."""
    return (
        isinstance(given, list | tuple)
        and len(given) == 2
        and isinstance(given[0], list | tuple)
        and isinstance(given[1], str)
        and given[1] in dtypes.BY_NAME
    )


# --- room -------------------------------------------------------------------------------------------------------------


def room_for(log: Any, state: Mapping[Any, Any]) -> int:
    """How many numbers a network may hold on its way to this state: no more than at its end, unless it was pruned."""
    held = sum(value.numel() for value in state.values() if isinstance(value, Tensor))
    held += held // 4 + 10_000  # of a state that lacks a little, load_state_dict() says what
    return held * (_PRUNED if "prune" in str(log) else 1)


def require_room(opened: Transaction, operation: Mapping[str, Any], max_elements: int) -> None:
    """Raise GrowthError if the network would learn more than max_elements numbers after the operation."""
    needed = count(opened.model) + _added(opened, operation)
    if needed > max_elements:
        told = f"{operation['operation']} of {operation['where']}"
        raise GrowthError(f"replay: {told} needs {needed:,} numbers, where the file's network has {max_elements:,}")


def _added(opened: Transaction, operation: Mapping[str, Any]) -> int:
    """How many numbers more the network learns after an operation; nothing where that has its own error to say."""
    kind, where, channels = operation["operation"], operation.get("where"), operation.get("channels")
    if kind == "grow_width" and channels is not None:
        return _added_by_width(opened, where, channels)
    passage = opened.map.passages.get(str(where)) if kind in ("grow_depth", "grow_branches") else None
    if passage is None:
        return 0
    dim, ndim = channel_dim(passage), len(passage.output_shape)
    outer, inner = (shape[min(dim, len(shape) - 1)] for shape in (passage.output_shape, passage.input_shape))
    made = channels or outer
    taps = operation.get("kernel_size", 3) ** (max(0, ndim - 2) if dim == 1 else 0)
    if kind == "grow_depth":
        return made * outer * (taps + 1)
    beside = getattr(opened.model.get_submodule(str(where)), "kernel_size", None)
    taps = math.prod(beside) if isinstance(beside, tuple) else taps  # a convolution's branch has its settings
    return made * (inner * taps + (outer if made != outer else 0))


def _added_by_width(opened: Transaction, where: Any, channels: int) -> int:
    mapped = opened.map
    try:
        part, group = mapped.made_by(where)
    except GrowthError:  # as the operation will say itself, and better
        return 0
    learned = {id(parameter) for parameter in opened.model.parameters()}
    before: dict[str, int] = {}
    after: dict[str, float] = {}
    for site in mapped.sites_of(group.index):
        name = site.names[0]
        tensor = opened.twins(name)[0]
        if id(tensor) not in learned:
            continue
        before[name] = tensor.numel()
        size = sum(each.size for each in site.parts)
        growing = sum(each.size for each in site.parts if each.group == group.index)
        factor = (size + growing * (channels / part.size - 1)) / size if size else 1.0
        after[name] = after.get(name, tensor.numel()) * factor
    return round(sum(after.values())) - sum(before.values())
