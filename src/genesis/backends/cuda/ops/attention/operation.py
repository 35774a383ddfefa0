"""Attention's forward pass for the engine."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import dtypes
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.engine import planner, stored
from genesis.backends.cuda.engine.candidate import Family
from genesis.backends.cuda.engine.operation import Operation
from genesis.backends.cuda.engine.plan import Plan
from genesis.backends.cuda.ops.attention.bench import AttentionBench
from genesis.backends.cuda.ops.attention.cudnn import CudnnFamily
from genesis.backends.cuda.ops.attention.forward import Flash, FlashFamily
from genesis.backends.cuda.ops.attention.problem import AttentionProblem
from genesis.backends.cuda.runtime import streams
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.backends.cuda.runtime.memory import Storage, allocate
from genesis.errors import OutOfMemoryError

# How far a row of the result may be from our kernel's, relatively: both round probabilities and result.
_ROW_BOUND = {dtypes.float16: 2.0**-9, dtypes.bfloat16: 2.0**-6}
_FAMILIES: tuple[Family[AttentionProblem], ...] = (CudnnFamily(), FlashFamily())


class AttentionPlan(Plan[AttentionProblem]):
    __slots__ = ()

    def __call__(
        self, y: DeviceArray, logsumexp: DeviceArray, query: DeviceArray, key: DeviceArray, value: DeviceArray
    ) -> None:
        """Compute y and logsumexp; by another candidate from now on, if the device refuses this one."""
        candidate, launch, num_bytes, _ = self.ready  # type: ignore[misc]
        device = self.problem.device
        stream = streams.current_handle(device)
        workspace: Storage | None = None
        try:
            if num_bytes:
                workspace = allocate(num_bytes, device, stream)
            launch(
                stream, y.data_pointer, logsumexp.data_pointer, query.data_pointer, key.data_pointer,
                value.data_pointer, 0 if workspace is None else workspace.pointer,
            )  # fmt: skip
        except (KernelError, OutOfMemoryError):
            if candidate.name == Flash.name:
                raise
            planner.use_another(self, candidate)
            self(y, logsumexp, query, key, value)


class Attention(Operation[AttentionProblem]):
    def families(self, problem: AttentionProblem) -> Sequence[Family[AttentionProblem]]:
        """cuDNN first: where it has anything, it was the faster one of both on an H200."""
        return _FAMILIES

    def plan(self, problem: AttentionProblem) -> AttentionPlan:
        return AttentionPlan(self, problem)

    def problem(self, key: str, device: int) -> AttentionProblem:
        return AttentionProblem.from_key(key, device)

    def bench(self, problem: AttentionProblem) -> AttentionBench:
        return AttentionBench(problem)

    def prepare_reference(self, problem: AttentionProblem) -> None:
        Flash().prepare(problem)

    def error_bound(self, problem: AttentionProblem) -> float:
        return _ROW_BOUND[problem.dtype]


ATTENTION = Attention()
stored.register(ATTENTION)
