"""Plans: which candidate computes a problem, chosen once and then found by a dictionary look-up."""

from __future__ import annotations

import threading

from genesis.backends.cuda import streams
from genesis.backends.cuda.array import DeviceArray, empty
from genesis.backends.cuda.conv import families
from genesis.backends.cuda.conv.candidate import Candidate
from genesis.backends.cuda.conv.problem import ConvProblem
from genesis.backends.cuda.memory import Storage
from genesis.shapes import channels_last_strides, numel


class Plan:
    """One problem and the candidate that computes it, ready to launch."""

    __slots__ = (
        "_device", "_dtype", "_launch", "_layout", "_num_bytes", "_shape", "_strides", "_workspace", "candidate",
        "problem",
    )  # fmt: skip

    def __init__(self, problem: ConvProblem, candidate: Candidate) -> None:
        self.problem, self.candidate = problem, candidate
        self._device, self._dtype = problem.device, problem.dtype
        self._shape = problem.result_shape
        self._strides = channels_last_strides(self._shape)
        self._num_bytes = numel(self._shape) * self._dtype.itemsize
        self._workspace = candidate.workspace(problem)
        self._launch = candidate.prepare(problem)
        self._layout = empty(self._shape, self._dtype, self._device, self._strides).layout

    def __call__(
        self, first: DeviceArray, second: DeviceArray, bias: DeviceArray | None, residual: DeviceArray | None
    ) -> DeviceArray:
        """The result for these operands, in the problem's layout; on the current stream."""
        device = self._device
        stream = streams.current_handle(device)
        out = DeviceArray(Storage(self._num_bytes, device, stream), self._shape, self._strides, 0, self._dtype)
        out._layout = self._layout
        # The block goes back to its stream's shelf at once: what takes it next comes later on the same stream.
        workspace = Storage(self._workspace, device, stream) if self._workspace else None
        self._launch(
            stream, out.data_pointer, first.data_pointer, second.data_pointer,
            0 if bias is None else bias.data_pointer, 0 if residual is None else residual.data_pointer,
            0 if workspace is None else workspace.pointer,
        )  # fmt: skip
        return out


_plans: dict[ConvProblem, Plan] = {}
_lock = threading.RLock()


def forget() -> None:
    """Drop all plans."""
    with _lock:
        _plans.clear()


def plan(problem: ConvProblem) -> Plan:
    """The plan for a problem, made on first use."""
    found = _plans.get(problem)
    if found is None:
        with _lock:
            found = _plans.get(problem)
            if found is None:
                found = _plans[problem] = Plan(problem, next(families.candidates(problem)))
    return found
