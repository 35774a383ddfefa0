"""Batch: what one call of a fused kernel updates."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from genesis.interrupts import Call
from genesis.ndarray import NDArray
from genesis.optim.options import Entries, Group
from genesis.records import StepInputs
from genesis.tensor import Tensor

State = Entries  # what is kept for one parameter


@dataclasses.dataclass(slots=True)
class Batch:
    """Parameters that one fused call updates: of one group, dtype, device and history."""

    group: Group
    options: tuple[object, ...]  # a NamedTuple of the optimizer's
    fresh: bool  # their state has just been created
    owners: list[Tensor] = dataclasses.field(default_factory=list)
    params: list[NDArray] = dataclasses.field(default_factory=list)
    grads: list[NDArray] = dataclasses.field(default_factory=list)
    states: list[State] = dataclasses.field(default_factory=list)
    after: Sequence[Call] = ()  # made in one with the update
    inputs: StepInputs[NDArray] = StepInputs()  # what the device gives, in place of the host
    captured: bool = False  # into a CUDA graph

    def arrays(self, name: str) -> list[NDArray]:
        """The entry of this name in each parameter's state."""
        return [state[name].array for state in self.states]

    def split(self, are_later: Sequence[bool]) -> list[Batch]:
        """This batch; or two, where only some parameters are later: they come in the second."""
        if len(set(are_later)) < 2:
            return [self]
        return [self._part([not is_later for is_later in are_later]), self._part(are_later)]

    def _part(self, chosen: Sequence[bool]) -> Batch:
        return dataclasses.replace(
            self,
            owners=list(itertools.compress(self.owners, chosen)),
            params=list(itertools.compress(self.params, chosen)),
            grads=list(itertools.compress(self.grads, chosen)),
            states=list(itertools.compress(self.states, chosen)),
        )
