"""All that a growth step can change, kept so that it can be put back bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from genesis.growth.places import tensors_of
from genesis.ndarray import NDArray
from genesis.nn.module import Module
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor


class Snapshot:
    """The state of modules, optimizers and of whatever else has state_dict() and load_state_dict()."""

    def __init__(self, modules: Sequence[Module], optimizers: Sequence[Optimizer], others: Sequence[Any]) -> None:
        parts = {id(part): part for module in modules for part in module.modules()}.values()
        tensors = tensors_of(parts)
        states = [state for optimizer in optimizers for state in optimizer.state.values()]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        tables = [vars(each) for each in (*parts, *tensors, *optimizers)] + groups + states
        self._tables = [_Table.of(table) for table in tables]
        gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
        moments = [entry for state in states for entry in state.values() if isinstance(entry, Tensor)]
        self._arrays = [(tensor, tensor.array) for tensor in (*tensors, *gradients, *moments)]
        self._values = Values([array for _, array in self._arrays])
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in others]

    def restore(self) -> None:
        """Put everything back; what has been trained since is gone."""
        for table in self._tables:
            table.restore()
        for tensor, array in self._arrays:
            tensor.array = array
        self._values.restore()
        for other, state in self._others:
            other.load_state_dict(copy.deepcopy(state))


class Values:
    """Copies of arrays, to be put back into these very arrays: whoever shares their memory sees them too."""

    def __init__(self, arrays: Iterable[NDArray]) -> None:
        self._arrays = [_without_repeats(array) for array in arrays]
        self._copies = NDArray.copies(self._arrays)

    def restore(self) -> None:
        for array, values in zip(self._arrays, self._copies, strict=True):
            array.copy_into(values)


def _without_repeats(array: NDArray) -> NDArray:
    """Each element of memory once: of what expand() repeats, the first."""
    if array.is_expanded:
        for dim, stride in enumerate(array.strides):
            array = array.narrow(dim, 0, 1) if stride == 0 else array
    return array


_CONTAINERS = (dict, list, set)


class _Table(NamedTuple):
    """A dictionary (the attributes of an object, a group of an optimizer, its state of a parameter), what it held, and
    the contents of those values that are containers: hooks, registries, lists of parameters."""

    table: dict[Any, Any]
    held: dict[Any, Any]
    contents: list[tuple[Any, Any]]

    @classmethod
    def of(cls, table: dict[Any, Any]) -> _Table:
        return cls(
            table, table.copy(), [(value, value.copy()) for value in table.values() if isinstance(value, _CONTAINERS)]
        )

    def restore(self) -> None:
        self.table.clear()
        self.table.update(self.held)
        for container, contents in self.contents:
            container.clear()
            if isinstance(container, list):
                container.extend(contents)
            else:
                container.update(contents)
