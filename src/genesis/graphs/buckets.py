"""The buckets of DistributedDataParallel in a recording of a step: constant memory, in which gradients lie."""

from __future__ import annotations

from collections.abc import Sequence

from genesis.graphs.flat import Conditions
from genesis.graphs.guards import ModuleGuard
from genesis.ndarray import NDArray
from genesis.nn.parallel.reducer import Arrival
from genesis.tensor import Tensor


class Buckets:
    """The buckets that hold gradients of guarded tensors; there are none without DistributedDataParallel.

    Attributes:
        arrays: their memory, in all the ways in which it is used.
    """

    def __init__(self, guard: ModuleGuard) -> None:
        hooks = [hook for hook in guard.repeatable if isinstance(hook, Arrival)]
        self._reducers = list({id(hook.reducer): hook.reducer for hook in hooks}.values())
        self._lists = [reducer.buckets for reducer in self._reducers]
        self.arrays = [array for reducer in self._reducers for array in reducer.arrays]
        self._gradients = {id(array): array for array in self.arrays}
        flats = [bucket.flat for buckets in self._lists for bucket in buckets]
        self._counts = [(flat, flat.changes.count) for flat in flats]

    def are_settled(self) -> bool:
        """Whether the next pass makes the calls of those after it: the first one shows the order of the buckets."""
        return all(reducer.is_settled for reducer in self._reducers)

    def hold(self) -> bool:
        """Whether they are those of the recording."""
        return all(reducer.buckets is known for reducer, known in zip(self._reducers, self._lists, strict=True))

    def describe(self, conditions: Conditions) -> None:
        for reducer, known in zip(self._reducers, self._lists, strict=True):
            name = conditions.name(reducer)
            conditions.require_same(f"{name}.buckets", known)
            conditions.require(f"{name}.is_settled")

    def include(self, array: NDArray | None) -> bool:
        return array is not None and self._gradients.get(id(array)) is array

    def changed(self) -> list[NDArray]:
        """The buckets that were changed since they were noted."""
        return [flat for flat, count in self._counts if flat.changes.count != count]


class SharedGradients:
    """The leaves whose gradients lay in buckets before a recorded step, and those whose gradients do after it."""

    def __init__(self, buckets: Buckets, leaves: Sequence[Tensor], before: Sequence[NDArray | None]) -> None:
        self._before = [
            (leaf, view, array is view)
            for leaf, array in zip(leaves, before, strict=True)
            if array is not None
            for view in views_for(leaf)
        ]
        grads = [(leaf, leaf.grad) for leaf in leaves]
        self._after = [(leaf, grad.array) for leaf, grad in grads if grad is not None and buckets.include(grad.array)]

    def hold(self) -> bool:
        """Whether gradients lie in buckets where they lay there before the recorded step, and only there."""
        return all(
            leaf.grad is not None and (leaf.grad.array is view) is was_there for leaf, view, was_there in self._before
        )

    def describe(self, conditions: Conditions) -> None:
        for leaf, view, was_there in self._before:
            relation = "is" if was_there else "is not"
            conditions.require(f"{conditions.name(leaf)}.grad.array {relation} {conditions.name(view)}")

    def show(self) -> None:
        """After a replay: leaves have the gradients that the step gives them."""
        for leaf, array in self._after:
            if leaf.grad is None or leaf.grad.array is not array:
                leaf.grad = Tensor(array)


def views_for(leaf: Tensor) -> list[NDArray]:
    """The parts of buckets that are to hold its gradient: one, or none."""
    return [hook.view for hook in leaf._post_accumulate_hooks if isinstance(hook, Arrival)]
