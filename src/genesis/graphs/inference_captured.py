"""Recorded inference as CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence

from genesis import backends
from genesis.autograd.modes import without_folding
from genesis.cuda.arena import Arena
from genesis.cuda.recorded import Captured, Handles
from genesis.graphs.compiled import Run
from genesis.graphs.forward import Inference
from genesis.graphs.guards import Versions
from genesis.graphs.report import RecordingReport
from genesis.graphs.trace import Executed
from genesis.graphs.values import made_of
from genesis.nn import Module
from genesis.tensor import Tensor


class CapturedInference(Inference):
    """A recorded forward pass, which is captured when it is first replayed.

    The graph reads parameters and buffers where they lie, so their values may change between replays. Batch norms are
    therefore not folded into weights.
    """

    def __init__(self, module: Module, backend: backends.Backend, executed: Executed, arena: Arena) -> None:
        super().__init__(module, backend, executed)
        self._arena = arena
        self._captured: Captured | None = None

    def report(self) -> RecordingReport:
        assert self._recording is not None
        return self._report(self._recording, self._captured)

    def refuse(self) -> None:
        super().refuse()
        self._captured = None

    def _values_hold(self) -> bool:
        return True

    def _record(self, run: Run) -> tuple[object, str]:
        self._versions = Versions(self._guard.arrays)  # that this run changes nothing is all they are needed for
        with without_folding():
            return super()._record(run)

    def replay(self, tensors: Sequence[Tensor]) -> object:
        assert self._recording is not None
        handles: Handles = [tensor.array.handle for tensor in tensors]
        with self._arena.lock:
            if self._captured is None:
                num_outputs = len(self._recording.outputs)
                self._captured = Captured(self._recording, handles, len(handles), self._arena, num_outputs)
            outputs = self._captured.replay(handles)
        return made_of(self._result, tensors, iter(outputs), dict(enumerate(tensors)))
