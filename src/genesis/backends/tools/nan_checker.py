"""GENESIS_CHECK=nan: the op that first makes a NaN raises, with the line of the user's program that called it."""

from __future__ import annotations

from collections.abc import Callable

from genesis.backends.backend import Backend, Op
from genesis.backends.contract import TRAITS
from genesis.backends.tools import operands
from genesis.callsite import user_line


def around(backend: Backend) -> Callable[[str, Op], Op]:
    """The wrapper of each op; backend is asked whether there are NaNs."""

    def watch(op: str, function: Op) -> Op:
        traits = TRAITS[op]
        if traits.idle or traits.unwritten or traits.from_outside or traits.to_outside:
            return function  # NaNs in its results are not its own

        def watched(*args: object, **kwargs: object) -> object:
            inputs = operands.arguments(op, (*args, *kwargs.values()))
            in_place = bool(traits.in_place)
            had_nan = in_place and _any_nan(backend, inputs, args)
            result = function(*args, **kwargs)
            outputs = inputs if in_place else operands.results(op, result)
            if not had_nan and _any_nan(backend, outputs) and (in_place or not _any_nan(backend, inputs, args)):
                raise FloatingPointError(
                    f"{op} made the first NaN, from {operands.describe(backend, inputs)}, which had none; "
                    f"called at {user_line()}"
                )
            return result

        return watched

    return watch


def _any_nan(backend: Backend, handles: list[operands.Handle], numbers: tuple[object, ...] = ()) -> bool:
    """Is there a NaN in one of the arrays, or among the numbers."""
    if any(isinstance(number, float) and number != number for number in numbers):
        return True
    for x in handles:
        if backend.dtype(x).is_floating_point:
            found = backend.any(backend.isnan(x), tuple(range(len(x.shape))), False)
            if backend.to_cpu(found).item():
                return True
    return False
