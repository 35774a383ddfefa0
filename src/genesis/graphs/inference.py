"""A module whose inference is recorded and replayed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from genesis import backends
from genesis.autograd.modes import state, watched
from genesis.graphs.compiled import Compiled, Entry
from genesis.graphs.guards import ModuleGuard, Versions, present_modes
from genesis.graphs.recorder import Recorder
from genesis.graphs.snapshot import Snapshot, UnwatchableError
from genesis.graphs.source import Recording
from genesis.graphs.trace import Executed, Trace
from genesis.graphs.values import Output, kind_of, made_of, noted, objects_in
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

    def _new_entry(
        self, backend: backends.Backend, executed: Executed, tensors: Sequence[Tensor], args: Any, kwargs: Any
    ) -> Entry:
        return _Inference(self.module, backend, executed)


class _Inference(Entry):
    """The recording of a forward pass, with the parameters' and buffers' values as constants."""

    def __init__(self, module: Module, backend: backends.Backend, executed: Executed) -> None:
        super().__init__(backend, executed)
        self._module = module
        self._guard = ModuleGuard([module])
        self._versions = Versions(self._guard.arrays)
        self._snapshot: Snapshot | None = None
        self._recording: Recording | None = None
        self._result: Any = None  # of the recorded run, with Input and Output in the places of its tensors

    @property
    def is_recorded(self) -> bool:
        return self._recording is not None

    def changed(self) -> str | None:
        if not self._guard.holds():
            return "a part, mode or array of a module"
        if not self._versions.hold():
            return "the values of a parameter or buffer"
        return None if self._snapshot is None else self._snapshot.changed()

    def may_replay(self, tensors: Sequence[Tensor]) -> bool:
        records = state.recording and any(tensor.requires_grad for tensor in (*tensors, *self._guard.tensors))
        return not records and not self._guard.has_hooks()

    def record(self, tensors: Sequence[Tensor], args: Any, kwargs: Any) -> tuple[Any, str]:
        try:
            snapshot = Snapshot((self._module, *objects_in((args, kwargs))), self._executed, tensors)
        except UnwatchableError as error:
            return self._module(*args, **kwargs), str(error)
        state = self._guard.tensors
        recorder = Recorder(tensors, state, unseen=list(itertools.compress(state, self._versions.exported)))
        modes, given, trace = present_modes(), kind_of((args, kwargs), []), Trace()
        with trace.runs(), watched(_Refusals(recorder, trace)), backends.use("cpu", recorder.watch(self.backend)):
            result = self._module(*args, **kwargs)
        knew_all = self._knew_all(trace, recorder)
        outputs: list[Output] = []
        self._result = noted(result, tensors, recorder, outputs)
        if not self._guard.holds() or not self._versions.hold():
            recorder.refuse("changes its own parameters or buffers")
        if (name := snapshot.changed()) is not None:
            recorder.refuse(f"changes '{name}', a name outside of it")
        if present_modes() != modes or kind_of((args, kwargs), []) != given:
            recorder.refuse("changes its arguments or a mode of the process")
        if knew_all and not recorder.refusal:
            self._snapshot, self._recording = snapshot, recorder.finish([output.value for output in outputs])
        return result, recorder.refusal

    def replay(self, tensors: Sequence[Tensor]) -> Any:
        assert self._recording is not None
        handles = self._recording.run([tensor.array.handle for tensor in tensors])
        changes = {index: tensor.array.changes for index, tensor in enumerate(tensors)}
        return made_of(self._result, tensors, iter(handles), changes)


class _Refusals:
    """Watches a run: what it does beside calling the backend cannot be replayed."""

    def __init__(self, recorder: Recorder, trace: Trace) -> None:
        self.refuse, self.update = recorder.refuse, trace.update
