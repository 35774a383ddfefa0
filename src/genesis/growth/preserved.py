"""Whether a network still computes what it computed: its outputs before and after an operation, in both modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from genesis import dtypes
from genesis.errors import GrowthError
from genesis.growth.history import Operation
from genesis.growth.passes import Trained, rounding_of
from genesis.nn.module import Module
from genesis.tensor import Tensor

# Beyond this relative change of an output, a step that should keep the function has not. Far above rounding: that of a
# deep network in the TF32 format too; far below what a wrongly wired channel does.
_TOLERANCE = {dtypes.float64: 1e-6, dtypes.float32: 1e-3, dtypes.float16: 0.1, dtypes.bfloat16: 0.3}
_TIMES_OWN = 16  # as far as rounding its weights another way moves a network's outputs, growth may move them


def checked(operation: Operation, before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """How far the outputs have moved in eval mode. Raises: GrowthError: farther than by rounding."""
    deviation, limit = relative_deviation(before, after), _limit(before)
    if not deviation <= limit:
        raise GrowthError(_moved(operation, "the outputs", deviation, limit))
    return deviation


def checked_in_training(
    operation: Operation, before: Trained, after: Trained, model: Module, example: tuple[object, ...]
) -> float:
    """The same in training mode, where a batch norm over few samples can make much of the least rounding."""
    place = f"{operation['operation']} of {operation['where']}"
    if after.error is not None:
        reason = f"{type(after.error).__name__}: {after.error}"
        raise GrowthError(f"{place}: the network does not run in training mode any more: {reason}") from after.error
    deviation, limit = relative_deviation(before.outputs, after.outputs), _limit(before.outputs)
    if deviation <= limit:
        return deviation
    message = _moved(operation, "the outputs in training mode", deviation, limit)
    if after.drawn != before.drawn:
        raise GrowthError(
            f"{message}; it draws other random numbers than before, and not by dropout, which is left out"
        )
    own = relative_deviation(after.outputs, rounding_of(model, example))
    if not deviation <= _TIMES_OWN * own:
        raise GrowthError(message)
    return deviation


def _limit(outputs: Sequence[Tensor]) -> float:
    return max((_TOLERANCE.get(output.dtype, 0.0) for output in outputs), default=0.0)


def _moved(operation: Operation, what: str, deviation: float, limit: float) -> str:
    return (
        f"{operation['operation']}: {what} changed by {deviation:.1e} of the largest, more than {limit:.0e}: "
        f"what {operation['where']} feeds is not fully understood"
    )


def relative_deviation(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """max |Δ| over max |before|, for the worst of the outputs; what was not finite before is left out."""
    worst = 0.0
    if [output.shape for output in before] != [output.shape for output in after]:
        return float("inf")
    for old, new in zip(before, after, strict=True):
        a, b = (output.array.numpy_values().astype(np.float64) for output in (old, new))
        finite = np.isfinite(a)
        if finite.any():
            if not np.isfinite(b[finite]).all():
                return float("inf")
            scale = float(np.abs(a[finite]).max()) or 1.0
            worst = max(worst, float(np.abs(a[finite] - b[finite]).max()) / scale)
    return worst
