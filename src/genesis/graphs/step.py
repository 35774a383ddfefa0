"""Compiled training steps: forward, backward and optimizer updates."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

from genesis import backends
from genesis.amp.device_scale import DeviceScale, Rehearsal
from genesis.graphs.compiled import Compiled, Entry, Run, Target
from genesis.graphs.guards import ModuleGuard, Versions
from genesis.graphs.recorder import STEP, Recorder
from genesis.graphs.report import RecordingReport
from genesis.graphs.snapshot import Snapshot
from genesis.graphs.source import Recording
from genesis.graphs.trace import Executed, Trace, name_of
from genesis.graphs.values import Output, made_of, noted, objects_in
from genesis.graphs.watch import UnwatchableError
from genesis.ndarray import CPU, Device, NDArray
from genesis.optim import Optimizer
from genesis.optim.optimizer import Batch
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.graphs.arena import Arena
    from genesis.graphs.captured import Captured


class CompiledStep(Compiled):
    """A step function with its recordings; see genesis.compile."""

    def __init__(self, function: Target) -> None:
        super().__init__(function, name_of(function))
        self._leaves: list[Tensor] = []  # those that collect gradients

    def _may_replay(self, tensors: Sequence[Tensor]) -> bool:
        return not any(tensor.requires_grad for tensor in tensors)

    def _circumstances(self) -> tuple[bool, ...]:
        # Where there is a gradient, another is added to it, unless the step clears it.
        return tuple([leaf.grad is None for leaf in self._leaves])

    def _new_entry(self, run: Run, executed: Executed) -> Entry:
        return _Step(run.backend, executed, self._arena(run.device))

    def _run_first(self, kind: Hashable, run: Run) -> object:
        result = super()._run_first(kind, run)
        entry = self._entries.pop(kind)
        assert isinstance(entry, _Step)
        assert isinstance(kind, tuple)
        leaves = entry.leaves(run)
        if not (len(leaves) == len(self._leaves) and all(map(operator.is_, leaves, self._leaves))):
            self._leaves = leaves  # which only this run has shown: how it found their gradients is not known
            kind = *kind[:-1], self._circumstances()
        self._entries[kind] = entry
        return result


class _Step(Entry):
    """A recorded step; the arrays of parameters and buffers, not their values, are constants of it."""

    def __init__(self, backend: backends.Backend, executed: Executed, arena: Arena | None) -> None:
        super().__init__(backend, executed)
        self._arena = arena
        self._replayable: Replayable | None = None

    @property
    def is_recorded(self) -> bool:
        return self._replayable is not None

    def report(self) -> RecordingReport:
        assert self._replayable is not None
        return self._report(self._replayable.recording, self._replayable.captured)

    def refuse(self) -> None:
        self.is_refused, self._replayable = True, None

    def leaves(self, run: Run) -> list[Tensor]:
        """The tensors that accumulate gradients."""
        try:
            surroundings = _Surroundings(run, self._executed)
        except UnwatchableError:  # which is said when it is to be recorded
            return []
        return [tensor for tensor in surroundings.guard.tensors if tensor.requires_grad]

    def changed(self) -> str | None:
        return None if self._replayable is None else self._replayable.changed()

    def may_replay(self, tensors: Sequence[Tensor]) -> bool:
        return self._replayable is None or not self._replayable.surroundings.guard.has_hooks()

    def _record(self, run: Run) -> tuple[object, str]:
        surroundings = _Surroundings(run, self._executed)
        if surroundings.guard.has_hooks():
            return run(), ""
        state = surroundings.guard.tensors
        grads = _grads(state)
        recorder = Recorder(
            run.tensors,
            state,
            STEP,
            gradients=[grad for grad in grads if grad is not None],
            unseen=list(itertools.compress(state, surroundings.versions.exported)),
            scales=[array for scale in surroundings.scales for array in scale.arrays],
        )
        trace = Trace()
        updates = _Updates(recorder, trace, surroundings.scales)
        result = self._recorded(run, recorder, updates, trace)
        if updates.are_early:
            return result, ""
        knew_all = self._knew_all(trace, recorder)
        surroundings.check(recorder, updates.made)
        replayable = self._kind()(recorder, surroundings, grads, updates.made, run.tensors, result)
        if knew_all and not recorder.refusal:
            self._replayable = replayable
        return result, recorder.refusal

    def _kind(self) -> Callable[..., Replayable]:
        if self._arena is None:
            return Replayable
        from genesis.graphs.step_captured import CapturedReplayable  # and with it genesis.cuda

        return functools.partial(CapturedReplayable, arena=self._arena)

    def replay(self, tensors: Sequence[Tensor]) -> object:
        assert self._replayable is not None
        return self._replayable.replay(tensors)


class _Surroundings:
    """Guards what a step uses besides its arguments."""

    def __init__(self, run: Run, executed: Executed) -> None:
        self.snapshot = Snapshot((run.target, *objects_in((run.args, run.kwargs))), executed, run.tensors)
        self.scales = _scales_on(run.device, self.snapshot)
        self._groups = [group for optimizer in self.snapshot.optimizers for group in optimizer.param_groups]
        learned = [param for group in self._groups for param in group["params"]]
        self.guard = ModuleGuard(self.snapshot.modules, (*learned, *self.snapshot.tensors))
        self.versions = Versions(self.guard.arrays)
        self._has_grad = self._present_grads()
        self.counts = _counts(self.guard.arrays)
        self._options = self._present_options()
        self._params = self._present_params()

    def changed(self) -> str | None:
        """The name of what has changed, or None."""
        name = self.snapshot.changed()
        if name is not None:
            return name
        if not self.guard.holds():
            return "a part, mode or array of a module"
        if self._present_params() != self._params:
            return "the parameters of an optimizer"
        return None if self._present_grads() == self._has_grad else "which parameters have gradients"

    def check(self, recorder: Recorder, updates: Sequence[tuple[Optimizer, Batch]]) -> None:
        """After the step: refuse changes that a replay would not make."""
        if any(optimizer not in self.snapshot.optimizers for optimizer, _ in updates):
            recorder.refuse(
                "takes the step of an optimizer that it is not seen to use; name it or give it as an argument"
            )
        if not self.guard.holds():
            recorder.refuse("changes the parts, modes or arrays of a module")
        if self._present_options() != self._options:
            recorder.refuse("changes the options of an optimizer")
        name = self.snapshot.changed()
        if name is not None:
            recorder.refuse(f"changes '{name}', a name outside of it")

    def _present_grads(self) -> list[bool]:
        return [tensor.grad is not None for tensor in self.guard.tensors]

    def _present_params(self) -> list[list[int]]:
        return [
            list(map(id, group["params"])) for optimizer in self.snapshot.optimizers for group in optimizer.param_groups
        ]

    def _present_options(self) -> list[list[tuple[str, object]]]:
        groups = [group for optimizer in self.snapshot.optimizers for group in optimizer.param_groups]
        return [[(name, value) for name, value in group.items() if name != "params"] for group in groups]


class _Updates:
    """A Watcher for steps: records optimizer updates as calls that repeat them with the options of that moment."""

    def __init__(self, recorder: Recorder, trace: Trace, scales: Sequence[DeviceScale]) -> None:
        self._recorder, self._trace = recorder, trace
        self.rehearsal = Rehearsal(scales, recorder.paused) if scales else None
        self.made: list[tuple[Optimizer, Batch]] = []
        self.are_early = False  # an update has just made its state, as only the first one does

    def refuse(self, reason: str) -> None:
        self._recorder.refuse(reason)

    def update(self, optimizer: Optimizer, batch: Batch) -> None:
        self.are_early |= batch.fresh
        grads, params = [grad.handle for grad in batch.grads], [param.handle for param in batch.params]
        found_inf = batch.inputs.found_inf
        flags = [] if found_inf is None else [found_inf.handle]
        with self._recorder.paused(), self._trace.paused():
            optimizer.update(batch)
        self.made.append((optimizer, batch))
        self._recorder.note_update(functools.partial(_update, optimizer, batch), [grads, flags], params)


def _update(optimizer: Optimizer, batch: Batch, operands: Sequence[Sequence[object]]) -> None:
    device = batch.params[0].device
    grads, flags = [[NDArray(handle, device) for handle in handles] for handles in operands]
    optimizer.update(batch, grads, flags[0] if flags else None)


def _scales_on(device: Device, snapshot: Snapshot) -> list[DeviceScale]:
    """The scales of the scalers that can let the device decide whether a step is skipped."""
    if device is CPU or not all(map(_can_skip, snapshot.optimizers)):
        return []
    scales = [scaler.on_device(device) for scaler in snapshot.scalers if scaler.is_enabled()]
    return [scale for scale in scales if scale.device is device]


def _can_skip(optimizer: Optimizer) -> bool:
    has_dampening = any(group.get("dampening") for group in optimizer.param_groups)  # a first step is another one
    return optimizer.reads_numbers and type(optimizer).step is Optimizer.step and not has_dampening


class Replayable:
    """A recorded step: its calls, and its effects on gradients and change counts.

    Args:
        surroundings: from before the recorded run.
        before: gradients from before it.
        updates: the optimizer updates that it made.
        tensors: its arguments.
        result: what it returned.
    """

    captured: Captured | None = None  # its CUDA graph

    def __init__(
        self, recorder: Recorder, surroundings: _Surroundings, before: Sequence[NDArray | None],
        updates: Sequence[tuple[Optimizer, Batch]], tensors: Sequence[Tensor], result: object,
    ) -> None:  # fmt: skip
        self.surroundings, self._updates = surroundings, updates
        leaves = surroundings.guard.tensors
        pairs = zip(leaves, before, _grads(leaves), strict=True)
        self._renewed = [leaf for leaf, old, new in pairs if old is not new]
        outputs: list[Output] = []
        # The results and the new gradients, with Output in the places of tensors.
        made = noted(result, tensors, recorder, outputs)
        self._num_results = len(outputs)
        self._made = made, noted([leaf.grad for leaf in self._renewed], tensors, recorder, outputs)
        self.recording: Recording = recorder.finish([output.value for output in outputs])
        with_grad = [(leaf, grad) for leaf, grad in zip(leaves, before, strict=True) if grad is not None]
        self._inputs = [value.number for value in self.recording.inputs]
        # Those whose gradient is read or changed, and its strides; and those whose gradient is let go of.
        accumulating = [with_grad[number - len(tensors)] for number in self._inputs[len(tensors) :]]
        self._accumulating = [(leaf, grad.strides) for leaf, grad in accumulating]
        kept = {id(leaf) for leaf, _ in accumulating}
        self._cleared = [leaf for leaf in self._renewed if id(leaf) not in kept]
        arrays = list(zip(surroundings.guard.arrays, surroundings.counts, strict=True))
        self._changed = [array for array, count in arrays if array.changes.count != count]
        kept_values = [array for array, count in arrays if array.changes.count == count]
        self._constant = Versions(kept_values if recorder.uses_packed_weights else ())

    def changed(self) -> str | None:
        """Why the step would no longer make the same calls on the same arrays, or None."""
        name = self.surroundings.changed()
        if name is not None:
            return name
        if not all(leaf.grad.array.strides == strides for leaf, strides in self._accumulating):  # type: ignore[union-attr]
            return "the order of a gradient in memory"
        if not self._constant.hold():
            return "a weight that was packed"
        repeats = all(optimizer.would_repeat(batch) for optimizer, batch in self._updates)
        return None if repeats else "the state of an optimizer"

    def replay(self, tensors: Sequence[Tensor]) -> object:
        for leaf in self._cleared:
            leaf.grad = None
        inputs = [*tensors, *[leaf.grad for leaf, _ in self._accumulating if leaf.grad is not None]]
        changed = [grad.array for grad in inputs[len(tensors) :]]
        try:
            handles = self.recording.run([tensor.array.handle for tensor in inputs])
        finally:
            for array in (*self._changed, *changed):
                array.changes.note()
        shown = dict(zip(self._inputs, inputs, strict=True))
        result, grads = made_of(self._made, tensors, iter(handles), shown)
        for leaf, grad in zip(self._renewed, grads, strict=True):
            leaf.grad = grad
        return result


def _grads(tensors: Sequence[Tensor]) -> list[NDArray | None]:
    return [None if tensor.grad is None else tensor.grad.array for tensor in tensors]


def _counts(arrays: Sequence[NDArray]) -> list[int]:
    return [array.changes.count for array in arrays]
