"""Recorded steps as CUDA graphs."""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Sequence

from genesis.cuda.arena import Arena
from genesis.cuda.recorded import Captured, Handles
from genesis.graphs.failures import CannotReplayError
from genesis.graphs.flat import Conditions
from genesis.graphs.recorder import Recorder
from genesis.graphs.replayable import Replayable, Surroundings
from genesis.graphs.values import Output, made_of, tensor_on
from genesis.ndarray import NDArray
from genesis.ndarray.capturing import replays
from genesis.optim import Optimizer
from genesis.optim.batch import Batch, State
from genesis.recording import Kind
from genesis.tensor import Tensor

_grad, _handle = operator.attrgetter("grad"), operator.attrgetter("array.handle")
_pointer = operator.attrgetter("grad.array.handle.data_pointer")


class CapturedReplayable(Replayable):
    """A recorded step, which is captured when it is first replayed.

    Gradients are large. Those that the step makes stay in the graph's memory, where the next replay makes them again,
    unless somebody else holds one by then. Those that it adds to are changed where they lie, if that is where they lay
    during the capture. Otherwise the step is captured once more, and from then on replays copy gradients.
    """

    def __init__(
        self, recorder: Recorder, surroundings: Surroundings, before: Sequence[NDArray | None],
        updates: Sequence[tuple[Optimizer, Batch]], tensors: Sequence[Tensor], result: object, *, arena: Arena,
    ) -> None:  # fmt: skip
        super().__init__(recorder, surroundings, before, updates, tensors, result)
        self._arena = arena
        places = [place for place in self._made[1] if place is not None]
        is_made = [type(place) is Output and place.value.memory.kind is Kind.INTERMEDIATE for place in places]
        self._copies_grads = not all(is_made)
        self._own: _Gradients | None = None
        self._pointers: list[int] = []  # of the gradients that the graph adds to
        self._leaves = [leaf for leaf, _ in self._accumulating]
        self._state = {
            id(array.changes) for array in (*self.surroundings.guard.arrays, *self.surroundings.buckets.arrays)
        }
        self._changes = [array.changes for array in self._changed]
        self._entries: list[tuple[State, str, Tensor, NDArray]] = []  # of optimizers' states, as they were captured
        # A step mostly returns its loss, which nothing else shows.
        result = self._made[0]
        self._only = result.memory if isinstance(result, Output) and result.memory not in self._inputs else None

    def changed(self) -> str | None:
        name = super().changed()
        return name if name is not None or self._entries_hold() else "the state of an optimizer"

    def _entries_hold(self) -> bool:
        """Whether optimizers keep the arrays that the graph changes."""
        return all(state.get(key) is entry and entry.array is array for state, key, entry, array in self._entries)

    def describe(self, conditions: Conditions) -> None:
        super().describe(conditions)
        for entry in {id(entry): entry for _, _, entry, _ in self._entries}.values():  # the count is all parameters'
            conditions.require_same(f"{conditions.name(entry)}.array", entry.array)

    def replay(self, tensors: Sequence[Tensor]) -> object:
        for tensor in tensors:
            changes = tensor.array._changes  # None: nothing else shows its memory
            if changes is not None and id(changes) in self._state:  # what the step changes, its copy would not show
                raise CannotReplayError("is given a view of a parameter or buffer")
        with self._arena.lock:
            return self._replay(tensors)

    def _replay(self, tensors: Sequence[Tensor]) -> object:
        added_to = list(map(_grad, self._leaves)) if self._leaves else []
        inputs = [*tensors, *added_to]
        handles = list(map(_handle, inputs))
        if self.captured is None or not self._may_share_gradients():
            self._copies_grads |= self.captured is not None
            self._capture(handles, tensors)
        captured = self.captured
        assert captured is not None
        outputs = captured.replay(handles)
        if self._copies_grads:
            captured.copy_back(handles, len(tensors))
        if replays.captures:
            for changes in self._changes:
                changes.note()
        else:
            for changes in self._changes:  # note(), without a call for each
                changes.count += 1
        for grad in added_to:
            grad.array.changes.note()
        return self._result(tensors, inputs, outputs)

    def _may_share_gradients(self) -> bool:
        """Whether the graph may use the memory of gradients that it was captured with."""
        if self._copies_grads:
            return True
        lie_there = not self._leaves or list(map(_pointer, self._leaves)) == self._pointers
        return lie_there and (self._own is None or self._own.are_free())

    def _capture(self, handles: Handles, arguments: Sequence[Tensor]) -> None:
        self.captured = self._own = None
        for leaf in self._cleared:  # their memory may be needed
            leaf.grad = None
        num_copied = len(handles) if self._copies_grads else len(arguments)
        num_handed_out = len(self.recording.outputs) if self._copies_grads else self._num_results
        captured = Captured(self.recording, handles, num_copied, self._arena, num_handed_out, self.surroundings.scales)
        self._pointers = list(map(_pointer, self._leaves))
        states = [state for _, batch in self._updates for state in batch.states]
        self._entries = [
            (state, key, entry, entry.array)
            for state in states for key, entry in state.items() if isinstance(entry, Tensor)
        ]  # fmt: skip
        if not self._copies_grads:
            places = self._made[1]
            grads = made_of(places, arguments, iter(captured.static), {})
            self._own = _Gradients(self._renewed, places, grads)
            del grads
            self._own.watch()
        self.captured = captured

    def _result(self, tensors: Sequence[Tensor], inputs: Sequence[Tensor], outputs: Sequence[object]) -> object:
        own = self._own
        self._shared.show()
        if own is not None:
            own.attach()
            if self._only is not None and self._only not in own.shown:
                return tensor_on(NDArray(outputs[0], self._arena.device))
        shown = dict(zip(self._inputs, inputs, strict=True))
        if own is not None:
            return made_of(self._made[0], tensors, iter(outputs), {**own.shown, **shown})
        result, grads = made_of(self._made, tensors, iter(outputs), shown)
        for leaf, grad in zip(self._renewed, grads, strict=True):
            leaf.grad = grad
        return result


class _Gradients:
    """Gradients in a graph's memory, as the tensors that their leaves show.

    Attributes:
        shown: by the number of their memory.
    """

    _are_attached = False  # is each the gradient of its leaf?

    def __init__(self, leaves: Sequence[Tensor], places: Sequence[object], grads: Sequence[Tensor | None]) -> None:
        """places: an Output, or None, for each leaf; grads: likewise."""
        self._cleared = [leaf for leaf, grad in zip(leaves, grads, strict=True) if grad is None]
        self._leaves = [leaf for leaf, grad in zip(leaves, grads, strict=True) if grad is not None]
        self._tensors = [grad for grad in grads if grad is not None]
        pairs = zip(places, grads, strict=True)
        self.shown = {place.memory: grad for place, grad in pairs if type(place) is Output and grad is not None}
        arrays = [tensor.array for tensor in self._tensors]
        handles = [array.handle for array in arrays]
        self._parts = arrays, handles, [handle.storage for handle in handles]

    def watch(self) -> None:
        """From now on, whoever holds one more reference may look at it later."""
        self._all = [*self._tensors, *itertools.chain.from_iterable(self._parts)]
        self._counts = _counts(self._all)
        num = len(self._tensors)
        self._counts_if_attached = [count + 1 for count in self._counts[:num]] + self._counts[num:]

    def are_free(self) -> bool:
        """Whether nobody but their leaves holds the gradients, or anything that shows their memory."""
        self._are_attached = all(map(operator.is_, map(_grad, self._leaves), self._tensors))
        if self._are_attached:
            return list(map(sys.getrefcount, self._all)) == self._counts_if_attached
        attached = list(map(operator.is_, map(_grad, self._leaves), self._tensors))
        num = len(attached)
        counts = list(map(operator.add, self._counts, attached)) + self._counts[num:]
        return _counts(self._all) == counts

    def attach(self) -> None:
        if not self._are_attached:
            for leaf, grad in zip(self._leaves, self._tensors, strict=True):
                leaf.grad = grad
        for leaf in self._cleared:
            leaf.grad = None


def _counts(things: Sequence[object]) -> list[int]:
    return list(map(sys.getrefcount, things))
