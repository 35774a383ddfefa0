"""Compiled training steps: forward, backward and optimizer updates."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

from genesis import backends
from genesis.amp.device_scale import DeviceScale, Rehearsal
from genesis.graphs.compiled import Compiled, Entry, Run, Target
from genesis.graphs.flat import Conditions
from genesis.graphs.guards import ModuleGuard
from genesis.graphs.recorder import STEP, Recorder
from genesis.graphs.replayable import Replayable, Surroundings, grads_of, own_of
from genesis.graphs.report import RecordingReport
from genesis.graphs.snapshot import Snapshot
from genesis.graphs.trace import Executed, Trace, name_of
from genesis.graphs.values import objects_in
from genesis.graphs.watch import UnwatchableError
from genesis.ndarray import NDArray
from genesis.optim import Optimizer
from genesis.optim.batch import Batch
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.cuda.arena import Arena


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

    def _in_reach(self, arguments: object, executed: Executed) -> Sequence[Tensor]:
        snapshot = Snapshot((self.target, *objects_in(arguments)), executed)
        groups = [group for optimizer in snapshot.optimizers for group in optimizer.param_groups]
        learned = [param for group in groups for param in group["params"]]
        return ModuleGuard(snapshot.modules, (*learned, *snapshot.tensors)).tensors

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
        self.is_refused, self._replayable, self.holds = True, None, None

    def leaves(self, run: Run) -> list[Tensor]:
        """The tensors that accumulate gradients."""
        try:
            surroundings = Surroundings(run, self._executed)
        except UnwatchableError:  # which is said when it is to be recorded
            return []
        return [tensor for tensor in surroundings.guard.tensors if tensor.requires_grad]

    def _describe(self, conditions: Conditions) -> None:
        assert self._replayable is not None
        self._replayable.describe(conditions)

    def _changed(self) -> str | None:
        return None if self._replayable is None else self._replayable.changed()

    def may_replay(self, tensors: Sequence[Tensor]) -> bool:
        if self._replayable is None:
            return True
        surroundings = self._replayable.surroundings
        return not surroundings.guard.has_hooks() and surroundings.buckets.are_settled()

    def _record(self, run: Run) -> tuple[object, str]:
        surroundings = Surroundings(run, self._executed)
        if surroundings.guard.has_hooks() or not surroundings.buckets.are_settled():
            return run(), ""
        state = surroundings.guard.tensors
        grads = grads_of(state)
        recorder = Recorder(
            run.tensors,
            state,
            STEP,
            gradients=[grad for grad in own_of(grads, surroundings.buckets) if grad is not None],
            unseen=list(itertools.compress(state, surroundings.versions.exported)),
            lasting=[
                *[array for scale in surroundings.scales for array in scale.arrays],
                *surroundings.buckets.arrays,
            ],
            postpones=self._arena is not None,
        )
        trace = Trace()
        updates = _Updates(recorder, trace, surroundings.scales, self._arena is not None)
        result = self._recorded(run, recorder, updates, trace)
        if updates.are_early:
            return result, ""
        knew_all = self._knew_all(trace, recorder)
        surroundings.check(recorder, updates.made)
        replayable = self._kind()(recorder, surroundings, grads, updates.made, run.tensors, result)
        if knew_all and not recorder.refusal:
            self._replayable = replayable
        return result, recorder.refusal

    def _kind(self) -> _Kind:
        if self._arena is None:
            return Replayable
        from genesis.graphs.step_captured import CapturedReplayable  # and with it genesis.cuda

        return functools.partial(CapturedReplayable, arena=self._arena)

    def replay(self, tensors: Sequence[Tensor]) -> object:
        assert self._replayable is not None
        return self._replayable.replay(tensors)


_Kind = Callable[  # the arguments of a Replayable
    [
        Recorder, Surroundings, Sequence[NDArray | None], Sequence[tuple[Optimizer, Batch]], Sequence[Tensor], object,
    ],
    Replayable,
]  # fmt: skip


class _Updates:
    """A Watcher for steps: records optimizer updates as calls that repeat them with the options of that moment."""

    def __init__(self, recorder: Recorder, trace: Trace, scales: Sequence[DeviceScale], is_captured: bool) -> None:
        """is_captured: into a CUDA graph, once it is replayed."""
        self._recorder, self._trace, self._is_captured = recorder, trace, is_captured
        self.rehearsal = Rehearsal(scales, recorder.paused) if scales else None
        self.made: list[tuple[Optimizer, Batch]] = []
        self.are_early = False  # an update has just made its state, as only the first one does

    def refuse(self, reason: str) -> None:
        self._recorder.refuse(reason)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        with self._recorder.paused(), self._trace.paused():
            yield

    def update(self, optimizer: Optimizer, batch: Batch) -> None:
        self.are_early |= batch.fresh
        splits = optimizer.by_parameter and not batch.captured
        for part in batch.split(self._recorder.are_due(batch.grads)) if splits else [batch]:
            self._update(optimizer, part)

    def _update(self, optimizer: Optimizer, batch: Batch) -> None:
        grads, params = [grad.handle for grad in batch.grads], [param.handle for param in batch.params]
        found_inf = batch.inputs.found_inf
        flags = [] if found_inf is None else [found_inf.handle]
        with self.paused():
            optimizer.update(batch)
        if self._is_captured and (reason := optimizer.refusal(batch)):
            self._recorder.refuse(f"cannot be captured into a CUDA graph: {type(optimizer).__name__}.step: {reason}")
        self.made.append((optimizer, batch))
        self._recorder.note_call("update", functools.partial(_update, optimizer, batch), [grads, flags], params)

    def repeat(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray],
        is_wait: bool = False,
    ) -> None:  # fmt: skip
        with self.paused():
            call(arrays)
        self._recorder.note_repeated("repeat", call, arrays, written, is_wait)

    def launch(
        self, call: Callable[[Sequence[NDArray]], None], arrays: Sequence[NDArray], written: Sequence[NDArray]
    ) -> None:
        with self.paused():
            call(arrays)
        self._recorder.note_repeated("launch", call, arrays, written)


def _update(optimizer: Optimizer, batch: Batch, operands: Sequence[Sequence[object]]) -> None:
    device = batch.params[0].device
    grads, flags = [[NDArray(handle, device) for handle in handles] for handles in operands]
    optimizer.update(batch, grads, flags[0] if flags else None)
