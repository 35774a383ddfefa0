"""A recorded step: what it depends on, its calls, and its effects on gradients and change counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from genesis.amp.device_scale import DeviceScale
from genesis.graphs.buckets import Buckets, SharedGradients
from genesis.graphs.compiled import Run
from genesis.graphs.flat import Conditions
from genesis.graphs.guards import ModuleGuard, Versions
from genesis.graphs.recorder import Recorder
from genesis.graphs.snapshot import Snapshot
from genesis.graphs.source import Recording
from genesis.graphs.trace import Executed
from genesis.graphs.values import Output, made_of, noted, objects_in
from genesis.ndarray import CPU, Device, NDArray
from genesis.optim import Optimizer
from genesis.optim.batch import Batch
from genesis.tensor import Tensor

if TYPE_CHECKING:
    from genesis.cuda.recorded import Captured


class Surroundings:
    """Guards what a step uses besides its arguments."""

    def __init__(self, run: Run, executed: Executed) -> None:
        self.snapshot = Snapshot((run.target, *objects_in((run.args, run.kwargs))), executed, run.tensors)
        self.scales = _scales_on(run.device, self.snapshot)
        self._groups = [group for optimizer in self.snapshot.optimizers for group in optimizer.param_groups]
        learned = [param for group in self._groups for param in group["params"]]
        self.guard = ModuleGuard(self.snapshot.modules, (*learned, *self.snapshot.tensors))
        self.buckets = Buckets(self.guard)
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
        if not self.buckets.hold():
            return "the buckets of DistributedDataParallel"
        return None if self._present_grads() == self._has_grad else "which parameters have gradients"

    def describe(self, conditions: Conditions) -> None:
        """All is as it is now, and there are no hooks."""
        self.snapshot.describe(conditions)
        self.guard.describe(conditions)
        self.buckets.describe(conditions)
        for optimizer in self.snapshot.optimizers:
            conditions.require_parts(f"{conditions.name(optimizer)}.param_groups", optimizer.param_groups)
            for group in optimizer.param_groups:
                conditions.require_parts(f"{conditions.name(group)}['params']", group["params"])

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
        self, recorder: Recorder, surroundings: Surroundings, before: Sequence[NDArray | None],
        updates: Sequence[tuple[Optimizer, Batch]], tensors: Sequence[Tensor], result: object,
    ) -> None:  # fmt: skip
        self.surroundings, self._updates = surroundings, updates
        leaves, buckets = surroundings.guard.tensors, surroundings.buckets
        self._shared = SharedGradients(buckets, leaves, before)
        pairs = zip(leaves, before, grads_of(leaves), strict=True)
        self._renewed = [leaf for leaf, old, new in pairs if old is not new and not buckets.include(new)]
        outputs: list[Output] = []
        # The results and the new gradients, with Output in the places of tensors.
        made = noted(result, tensors, recorder, outputs)
        self._num_results = len(outputs)
        grads = [noted(leaf.grad, tensors, recorder, outputs) for leaf in self._renewed]
        self._made: tuple[object, list[object]] = made, grads
        self.recording: Recording = recorder.finish([output.value for output in outputs])
        owned = zip(leaves, own_of(before, buckets), strict=True)
        with_grad = [(leaf, grad) for leaf, grad in owned if grad is not None]
        self._inputs = [value.number for value in self.recording.inputs]
        # Those whose gradient is read or changed, and its strides; and those whose gradient is let go of.
        accumulating = [with_grad[number - len(tensors)] for number in self._inputs[len(tensors) :]]
        self._accumulating = [(leaf, grad.strides) for leaf, grad in accumulating]
        kept = {id(leaf) for leaf, _ in accumulating}
        self._cleared = [leaf for leaf in self._renewed if id(leaf) not in kept]
        arrays = list(zip(surroundings.guard.arrays, surroundings.counts, strict=True))
        self._changed = [array for array, count in arrays if array.changes.count != count] + buckets.changed()
        kept_values = [array for array, count in arrays if array.changes.count == count]
        self._constant = Versions(kept_values if recorder.uses_packed_weights else ())

    def changed(self) -> str | None:
        """Why the step would no longer make the same calls on the same arrays, or None."""
        name = self.surroundings.changed()
        if name is not None:
            return name
        if not all(leaf.grad.array.strides == strides for leaf, strides in self._accumulating):  # type: ignore[union-attr]
            return "the order of a gradient in memory"
        if not self._shared.hold():
            return "the memory of a gradient"
        if not self._constant.hold():
            return "a weight that was packed"
        repeats = all(optimizer.would_repeat(batch) for optimizer, batch in self._updates)
        return None if repeats else "the state of an optimizer"

    def describe(self, conditions: Conditions) -> None:
        self.surroundings.describe(conditions)
        self._shared.describe(conditions)
        for leaf, strides in self._accumulating:
            conditions.require(f"{conditions.name(leaf)}.grad.array.strides == {strides!r}")
        if not self._constant.is_empty:
            conditions.require(f"{conditions.name(self._constant.hold)}()")
        for optimizer in {id(optimizer): optimizer for optimizer, _ in self._updates}.values():
            states = conditions.name(optimizer.state)
            conditions.require_same(f"{conditions.name(optimizer)}.state", optimizer.state)
            conditions.require_parts(states, list(optimizer.state))  # two unpackings instead of a look-up for each
            conditions.require_parts(f"{states}.values()", list(optimizer.state.values()))
        for optimizer, batch in self._updates:
            _describe_batch(optimizer, batch, conditions)

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
        self._shared.show()
        return result


def _describe_batch(optimizer: Optimizer, batch: Batch, conditions: Conditions) -> None:
    """optimizer.would_repeat(batch), as far as guards on its parameters, groups and states do not know it already."""
    first = batch.states[0]
    name = conditions.name(optimizer)
    if any(state.keys() != first.keys() for state in batch.states):
        conditions.require(f"{name}.would_repeat({conditions.name(batch)})")
        for state in batch.states:  # the state's tables are the same, but not what lies in them
            tensors = [(key, entry) for key, entry in state.items() if isinstance(entry, Tensor)]
            conditions.require_items(conditions.name(state), tensors)
        return
    for state in batch.states:
        entries = conditions.name(state)
        numbers = {key: value for key, value in state.items() if type(value) in (int, float)}
        if not numbers:
            conditions.require_entries(entries, state)
            continue
        conditions.require(f"tuple({entries}) == {tuple(state)!r}")
        conditions.require_items(entries, [(key, value) for key, value in state.items() if key not in numbers])
        for key in numbers if state is not first else ():  # they count together
            conditions.require(f"{entries}[{key!r}] == {conditions.name(first)}[{key!r}]")
    args = ", ".join(map(conditions.name, (batch.group, batch.params[0], first)))
    conditions.require(f"not {name}._missing_state({args})")


def grads_of(tensors: Sequence[Tensor]) -> list[NDArray | None]:
    return [None if tensor.grad is None else tensor.grad.array for tensor in tensors]


def own_of(grads: Sequence[NDArray | None], buckets: Buckets) -> list[NDArray | None]:
    """The gradients that lie in memory of their own."""
    return [None if buckets.include(grad) else grad for grad in grads]


def _counts(arrays: Sequence[NDArray]) -> list[int]:
    return [array.changes.count for array in arrays]


def _scales_on(device: Device, snapshot: Snapshot) -> list[DeviceScale]:
    """The scales of the scalers that can let the device decide whether a step is skipped."""
    if device is CPU or not all(map(_can_skip, snapshot.optimizers)):
        return []
    scales = [scaler.on_device(device) for scaler in snapshot.scalers if scaler.is_enabled()]
    return [scale for scale in scales if scale.device is device]


def _can_skip(optimizer: Optimizer) -> bool:
    has_dampening = any(group.get("dampening") for group in optimizer.param_groups)  # a first step is another one
    return optimizer.can_skip and type(optimizer).step is Optimizer.step and not has_dampening
