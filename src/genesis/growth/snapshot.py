"""All that a growth step can change, kept so that it can be put back bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

from genesis.growth.places import tensors_of
from genesis.ndarray import Copies, NDArray
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
        self._tables = _Tables([vars(each) for each in (*parts, *tensors, *optimizers)] + groups + states)
        gradients = [tensor.grad for tensor in tensors if tensor.grad is not None]
        moments = [entry for state in states for entry in state.values() if isinstance(entry, Tensor)]
        self._arrays = [(tensor, tensor.array) for tensor in (*tensors, *gradients, *moments)]
        self._values = copies_of([array for _, array in self._arrays])
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in others]

    def restore(self) -> None:
        """Put everything back; what has been trained since is gone."""
        self._tables.restore()
        for tensor, array in self._arrays:
            tensor.array = array
        self._values.restore()
        for other, state in self._others:
            other.load_state_dict(copy.deepcopy(state))


def copies_of(arrays: Iterable[NDArray]) -> Copies:
    return Copies([_without_repeats(array) if array.is_expanded else array for array in arrays])


def _without_repeats(array: NDArray) -> NDArray:
    """Each element of memory once: of what expand() repeats, the first."""
    for dim, stride in enumerate(array.strides):
        array = array.narrow(dim, 0, 1) if stride == 0 else array
    return array


_CONTAINERS = (dict, list, set)


class _Tables:
    """Dictionaries (the attributes of an object, a group of an optimizer, its state of a parameter), what they held,
    and the contents of those values that are containers: hooks, registries, lists of parameters."""

    def __init__(self, tables: Iterable[dict[Any, Any]]) -> None:
        self._tables = list(tables)
        self._held = [table.copy() for table in self._tables]
        self._containers = [value for table in self._held for value in table.values() if isinstance(value, _CONTAINERS)]
        self._contents = [container.copy() if container else () for container in self._containers]

    def restore(self) -> None:
        for table, held in zip(self._tables, self._held, strict=True):
            table.clear()
            table.update(held)
        for container, contents in zip(self._containers, self._contents, strict=True):
            container.clear()
            if isinstance(container, list):
                container.extend(contents)
            else:
                container.update(contents)
