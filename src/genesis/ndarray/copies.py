"""Copies of many arrays at once, to be put back."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.ndarray.array import backend_of
from genesis.ndarray.ndarray import NDArray


class Copies:
    """Copies of the present values of arrays, at the cost of a single array on each device."""

    def __init__(self, arrays: Sequence[NDArray]) -> None:
        self._kept = []
        for device in {array.device for array in arrays}:
            here = [array for array in arrays if array.device is device]
            strides = [array.dense_strides() for array in here]
            # Handles, not arrays: most copies are never looked at.
            self._kept.append((device, here, backend_of(device).copies([array.handle for array in here], strides)))

    def restore(self) -> None:
        """In place: the arrays take the values that they had then; whoever shares their memory sees them too."""
        for device, arrays, copies in self._kept:
            backend = backend_of(device)
            for array, values in zip(arrays, copies, strict=True):
                backend.copy_into(array.handle, values)
                array.changes.note()
