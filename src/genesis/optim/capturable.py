"""Optimizer steps in CUDA graphs: each replay reads the options and the step count of that moment from device memory.

A step that is captured needs no flag: it knows that it is captured. Its options are written to the device before a
replay if they have changed, as by a scheduler of learning rates. The step count of Adam moves to the device for good,
as with PyTorch's capturable=True, since only the device knows whether a GradScaler skipped a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genesis import dtypes
from genesis.callsite import user_line
from genesis.errors import CaptureError
from genesis.ndarray import Device, NDArray
from genesis.ndarray.capturing import Capture, lasting
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.optim.optimizer import Batch, Optimizer


class Captured:
    """A batch that a CUDA graph updates: it keeps what the graph reads, and writes what has changed before a replay."""

    def __init__(self, optimizer: Optimizer, batch: Batch, capture: Capture) -> None:
        """Raises: CaptureError: the optimizer's step cannot be captured in its present state."""
        reason = optimizer.refusal(batch)
        if reason:
            raise CaptureError(f"{user_line()}: {_name(optimizer)}.step: {reason}")
        self._optimizer, self._batch, self._state = optimizer, batch, optimizer.state
        self._options = options = batch.options
        self.numbers: NDArray | None = None
        device = batch.params[0].device
        with capture.outside(device.index):
            if optimizer.reads_numbers:
                self.numbers = lasting(_uploaded(_numbers(options), device))
            if type(batch.states[0].get("step")) is int:
                count = Tensor(lasting(NDArray.full((), batch.states[0]["step"], dtypes.int64, device)))
                for state in batch.states:
                    state["step"] = count
        capture.kept.append((self, *batch.owners, *batch.params, *batch.states))
        capture.before_replay.insert(0, self._prepare)  # it may refuse, before anything has been done for the replay

    def _prepare(self, stream: int) -> None:
        """Before a replay on the current stream. Raises: CaptureError: the graph no longer does what step() would."""
        optimizer, batch = self._optimizer, self._batch
        if optimizer.state is not self._state:
            raise CaptureError(
                f"{user_line()}: replay: {_name(optimizer)} has loaded another state since the capture: capture anew"
            )
        options = optimizer._options(batch.group)
        if options == self._options:
            return
        if self.numbers is None or optimizer.structure(options) != optimizer.structure(self._options):
            changed = [f"{a!r} → {b!r}" for a, b in zip(self._options, options, strict=True) if a != b]
            raise CaptureError(
                f"{user_line()}: replay: an option of {_name(optimizer)} has changed that is a constant of the graph "
                f"({', '.join(changed)}): capture anew"
            )
        self.numbers.copy_into(_uploaded(_numbers(options), self.numbers.device))
        self._options = options


def shares_count(optimizer: Optimizer, batch: Batch) -> bool:
    """Whether parameters outside of the batch are counted by the same number on the device."""
    count = batch.states[0]["step"]
    if type(count) is int:
        return False
    counted = sum([state.get("step") is count for state in optimizer.state.values()])
    return counted > len(batch.states)


def refusal_of_count(optimizer: Optimizer, batch: Batch) -> str:
    """Optimizer.refusal() where the device counts steps."""
    if shares_count(optimizer, batch):
        return "its parameters were counted with others that it does not update now: make a step before the capture"
    return ""


def count_apart(optimizer: Optimizer, batch: Batch) -> None:
    """Give a batch a count of its own, once parameters are frozen, or moved to another group."""
    if shares_count(optimizer, batch):
        own = Tensor(batch.states[0]["step"].array.clone())
        for state in batch.states:
            state["step"] = own


def _numbers(options: tuple[object, ...]) -> list[float]:
    return [value for value in options if type(value) is float]


def _uploaded(values: list[float], device: Device) -> NDArray:
    return NDArray.from_numpy(np.array(values, np.float64), dtypes.float64, device)


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__
