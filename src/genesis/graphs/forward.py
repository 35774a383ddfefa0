"""A recorded forward pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from genesis import backends
from genesis.autograd.modes import state
from genesis.graphs.compiled import Entry, Run
from genesis.graphs.flat import Conditions
from genesis.graphs.guards import ModuleGuard, Versions
from genesis.graphs.recorder import Recorder
from genesis.graphs.report import RecordingReport
from genesis.graphs.snapshot import Snapshot
from genesis.graphs.source import Recording
from genesis.graphs.trace import Executed, Trace
from genesis.graphs.values import Output, made_of, noted, objects_in
from genesis.ndarray import NDArray
from genesis.nn import Module
from genesis.tensor import Tensor


class Inference(Entry):
    """A recorded forward pass; the values of parameters and buffers are constants of it."""

    def __init__(self, module: Module, backend: backends.Backend, executed: Executed) -> None:
        super().__init__(backend, executed)
        self._module = module
        self._guard = ModuleGuard([module])
        self._versions = Versions(self._guard.arrays)
        self._snapshot: Snapshot | None = None
        self._recording: Recording | None = None
        self._result: object = None  # of the recorded run, with Input and Output in the places of its tensors

    @property
    def is_recorded(self) -> bool:
        return self._recording is not None

    def report(self) -> RecordingReport:
        assert self._recording is not None
        return self._report(self._recording)

    def refuse(self) -> None:
        self.is_refused, self._recording, self.holds = True, None, None

    def _changed(self) -> str | None:
        if not self._guard.holds():
            return "a part, mode or array of a module"
        if not self._values_hold():
            return "the values of a parameter or buffer"
        return None if self._snapshot is None else self._snapshot.changed()

    def _describe(self, conditions: Conditions) -> None:
        self._guard.describe(conditions)
        conditions.require(f"{conditions.name(self._values_hold)}()")
        if self._snapshot is not None:
            self._snapshot.describe(conditions)

    def _values_hold(self) -> bool:
        return self._versions.hold()

    def may_replay(self, tensors: Sequence[Tensor]) -> bool:
        records = state.recording and any(tensor.requires_grad for tensor in (*tensors, *self._guard.tensors))
        return not records and not self._guard.has_hooks()

    def _record(self, run: Run) -> tuple[object, str]:
        snapshot = Snapshot((self._module, *objects_in((run.args, run.kwargs))), self._executed, run.tensors)
        tensors, trace = self._guard.tensors, Trace()
        recorder = Recorder(run.tensors, tensors, unseen=list(itertools.compress(tensors, self._versions.exported)))
        result = self._recorded(run, recorder, _Refusals(recorder, trace), trace)
        knew_all = self._knew_all(trace, recorder)
        outputs: list[Output] = []
        self._result = noted(result, run.tensors, recorder, outputs)
        if not self._guard.holds() or not self._versions.hold():
            recorder.refuse("changes its own parameters or buffers")
        if (name := snapshot.changed()) is not None:
            recorder.refuse(f"changes '{name}', a name outside of it")
        if knew_all and not recorder.refusal:
            self._snapshot, self._recording = snapshot, recorder.finish([output.value for output in outputs])
        return result, recorder.refusal

    def replay(self, tensors: Sequence[Tensor]) -> object:
        assert self._recording is not None
        handles = self._recording.run([tensor.array.handle for tensor in tensors])
        return made_of(self._result, tensors, iter(handles), dict(enumerate(tensors)))


class _Refusals:
    """A Watcher for inference: whatever happens outside of the backend cannot be replayed."""

    rehearsal = None

    def __init__(self, recorder: Recorder, trace: Trace) -> None:
        self.refuse, self.update, self.paused = recorder.refuse, trace.update, trace.paused
        self._recorder, self._trace = recorder, trace

    def repeat(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray],
        is_wait: bool = False,
    ) -> None:  # fmt: skip
        self.refuse("communicates with other processes")
        self._trace.repeat(call, arrays, written)

    def launch(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray]
    ) -> None:
        with self._recorder.paused():
            self._trace.repeat(call, arrays, written)
        self._recorder.note_repeated("launch", call, arrays, written)
