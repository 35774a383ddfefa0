"""A module whose inference is recorded and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genesis import backends
from genesis.autograd.modes import state
from genesis.graphs.compiled import Compiled, Entry
from genesis.graphs.guards import ModuleGuard
from genesis.graphs.recorder import Recorder
from genesis.graphs.source import Recording
from genesis.graphs.values import Output, made_of, noted
from genesis.nn import Module
from genesis.tensor import Tensor


class CompiledModule(Compiled):
    """A module with the recordings of its inference; see genesis.compile."""

    target: Module

    def __init__(self, module: Module) -> None:
        super().__init__(module, type(module).__name__)
        self.module = module

    def _may_replay(self, tensors: Sequence[Tensor]) -> bool:
        return not self.module.training

    def _circumstances(self, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> Any:
        return None

    def _new_entry(self, backend: backends.Backend) -> Entry:
        return _Inference(self.module, backend)


class _Inference(Entry):
    """The recording of a forward pass, with the parameters' and buffers' values as constants."""

    def __init__(self, module: Module, backend: backends.Backend) -> None:
        super().__init__(backend)
        self._module = module
        self._guard = ModuleGuard([module])
        self._counts = self._changes()
        self._recording: Recording | None = None
        self._result: Any = None  # of the recorded run, with Input and Output in the places of its tensors

    @property
    def is_recorded(self) -> bool:
        return self._recording is not None

    def holds(self) -> bool:
        return self._guard.holds() and self._changes() == self._counts

    def _changes(self) -> list[int]:
        return [array.changes.count for array in self._guard.arrays]

    def may_replay(self, tensors: Sequence[Tensor]) -> bool:
        records = state.recording and any(tensor.requires_grad for tensor in (*tensors, *self._guard.tensors))
        return not records and not self._guard.has_hooks()

    def record(self, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> tuple[Any, str]:
        recorder = Recorder([tensor.array.handle for tensor in tensors], [array.handle for array in self._guard.arrays])
        with backends.use("cpu", recorder.watch(self.backend)):
            result = self._module(*args, **kwargs)
        outputs: list[Output] = []
        self._result = noted(result, tensors, recorder, outputs)
        if not recorder.refusal and not self.holds():
            recorder.refusal = "changes its own parameters or buffers"
        if not recorder.refusal:
            self._recording = recorder.finish([output.slot for output in outputs])
        return result, recorder.refusal

    def replay(self, tensors: Sequence[Tensor]) -> Any:
        assert self._recording is not None
        handles = self._recording.run([tensor.array.handle for tensor in tensors])
        changes = {index: tensor.array.changes for index, tensor in enumerate(tensors)}
        return made_of(self._result, tensors, iter(handles), changes)
