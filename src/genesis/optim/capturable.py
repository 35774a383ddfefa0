"""Optimizer steps in CUDA graphs: each replay reads the options and the step count of that moment from device memory.

A step that is captured needs no flag: it knows that it is captured. Its options are written to the device before a
replay if they have changed, as by a scheduler of learning rates. The step count of Adam moves to the device for good,
as with PyTorch's capturable=True, since only the device knows whether a GradScaler skipped a step. Composed optimizers,
which GradScalers can't skip, count on the host: the scalars that a formula makes of the count are written too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genesis import dtypes
from genesis.callsite import user_line
from genesis.dtypes import DType
from genesis.errors import CaptureError
from genesis.ndarray import Device, NDArray
from genesis.ndarray.capturing import Capture, lasting
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.optim.batch import Batch
    from genesis.optim.optimizer import Optimizer


class Captured:
    """A batch that a CUDA graph updates: it keeps what the graph reads, and writes what has changed before a replay."""

    def __init__(self, optimizer: Optimizer, batch: Batch, capture: Capture) -> None:
        """Raises: CaptureError: the optimizer's step cannot be captured in its present state."""
        reason = optimizer.refusal(batch)
        if reason:
            raise CaptureError(f"{user_line()}: {_name(optimizer)}.step: {reason}")
        self._optimizer, self._batch, self._state = optimizer, batch, optimizer.state
        others = [each for each in capture.kept if isinstance(each, Captured)]
        # How many steps of the same parameters the graph makes before this one.
        self._steps_before = sum(each._batch.states[0] is batch.states[0] for each in others)
        self._options = options = self._present_options()
        self._dtype = optimizer.replayed_dtype(batch)
        self.numbers: NDArray | None = None
        device = batch.params[0].device
        with capture.outside(device.index):
            if optimizer.reads_numbers:
                self.numbers = lasting(_uploaded(options, self._dtype, device))
            if not optimizer.counts_on_host and type(batch.states[0].get("step")) is int:
                count = Tensor(lasting(NDArray.full((), batch.states[0]["step"], dtypes.int64, device)))
                for state in batch.states:
                    state["step"] = count
        capture.kept.append(self)
        capture.kept.append((*batch.owners, *batch.params, *batch.states))
        capture.before_replay.insert(0, self._prepare)  # it may refuse, before anything has been done for the replay
        if optimizer.counts_on_host:
            capture.after_replay.append(self._count)

    def _present_options(self) -> tuple[object, ...]:
        return self._optimizer.replayed_options(self._batch, self._steps_before)

    def _count(self, stream: int) -> None:
        """After a replay."""
        self._optimizer.count(self._batch)

    def _prepare(self, stream: int) -> None:
        """Before a replay on the current stream. Raises: CaptureError: the graph no longer does what step() would."""
        optimizer, batch = self._optimizer, self._batch
        if optimizer.state is not self._state:
            raise CaptureError(
                f"{user_line()}: replay: {_name(optimizer)} has loaded another state since the capture: capture anew"
            )
        if optimizer.counts_on_host and len(set(map(optimizer._history, batch.states))) > 1:
            raise CaptureError(
                f"{user_line()}: replay: {_name(optimizer)} has counted its parameters apart since the capture: "
                "capture anew"
            )
        options = self._present_options()
        if options == self._options:
            return
        if self.numbers is None or optimizer.structure(options) != optimizer.structure(self._options):
            pairs = [(a, b) for a, b in zip(self._options, options, strict=True) if a != b]
            fixed = [(a, b) for a, b in pairs if not is_number(a)] or pairs
            changed = [f"{a!r} → {b!r}" for a, b in fixed]
            raise CaptureError(
                f"{user_line()}: replay: an option of {_name(optimizer)} has changed that is a constant of the graph "
                f"({', '.join(changed)}): capture anew"
            )
        self.numbers.copy_into(_uploaded(options, self._dtype, self.numbers.device))
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


def is_number(value: object) -> bool:
    """Whether replays read a value of the options anew; all else is fixed."""
    return type(value) in (float, int)


def _uploaded(options: tuple[object, ...], dtype: DType, device: Device) -> NDArray:
    numbers = [value for value in options if is_number(value)]
    return NDArray.from_numpy(np.array(numbers, dtype.name), dtype, device)


def _name(optimizer: Optimizer) -> str:
    return type(optimizer).__name__
