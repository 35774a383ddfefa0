"""All that a growth step can change, kept so that it can be put back bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from genesis.ndarray import NDArray
from genesis.nn.module import Module
from genesis.optim.optimizer import Optimizer
from genesis.tensor import Tensor


class _Array(NamedTuple):
    """An array, and a copy of its values."""

    array: NDArray
    values: NDArray

    @classmethod
    def of(cls, array: NDArray) -> _Array:
        return cls(array, array.clone())

    def restored(self) -> NDArray:
        """The very array, with the values that it had: whoever shares its memory sees them too."""
        self.array.copy_into(self.values)
        return self.array


class _Tensor:
    """A parameter or buffer: its array, its gradient, its attributes."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.array = tensor, _Array.of(tensor.array)
        self.attributes = _shallow(vars(tensor))
        self.grad = None if tensor.grad is None else (tensor.grad, _Array.of(tensor.grad.array))

    def restore(self) -> None:
        _put_back(vars(self.tensor), self.attributes)
        self.tensor.array = self.array.restored()
        if self.grad is not None:
            grad, array = self.grad
            grad.array = array.restored()


class _Optimizer:
    """An optimizer's groups with their options, and its state of each parameter."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.attributes = optimizer, _shallow(vars(optimizer))
        self.groups = [(group, _shallow(group)) for group in optimizer.param_groups]
        self.entries = [
            (
                entries,
                {
                    name: (value, _Array.of(value.array)) if isinstance(value, Tensor) else (copy.copy(value), None)
                    for name, value in entries.items()
                },
            )
            for entries in optimizer.state.values()
        ]

    def restore(self) -> None:
        _put_back(vars(self.optimizer), self.attributes)
        for group, kept in self.groups:
            _put_back(group, kept)
        for entries, kept_entries in self.entries:
            entries.clear()
            for name, (value, array) in kept_entries.items():
                if array is not None:
                    value.array = array.restored()
                entries[name] = value


class Snapshot:
    """The state of modules, optimizers and of whatever else has state_dict() and load_state_dict()."""

    def __init__(self, modules: Sequence[Module], optimizers: Sequence[Optimizer], others: Sequence[Any]) -> None:
        parts = {id(part): part for module in modules for part in module.modules()}
        self._modules = [(part, _shallow(vars(part))) for part in parts.values()]
        tensors = {id(tensor): tensor for module in modules for tensor in (*module.parameters(), *module.buffers())}
        self._tensors = [_Tensor(tensor) for tensor in tensors.values()]
        self._optimizers = [_Optimizer(optimizer) for optimizer in optimizers]
        self._others = [(other, copy.deepcopy(other.state_dict())) for other in others]

    def restore(self) -> None:
        """Put everything back; what has been trained since is gone."""
        for module, attributes in self._modules:
            _put_back(vars(module), attributes)
        for tensor in self._tensors:
            tensor.restore()
        for optimizer in self._optimizers:
            optimizer.restore()
        for other, state in self._others:
            other.load_state_dict(copy.deepcopy(state))


def _shallow(attributes: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Attributes, and the contents of those that are containers: lists of hooks, registries, sets of names."""
    return {
        name: (value, copy.copy(value) if isinstance(value, dict | list | set) else None)
        for name, value in attributes.items()
    }


def _put_back(attributes: dict[str, Any], kept: dict[str, tuple[Any, Any]]) -> None:
    attributes.clear()
    for name, (value, contents) in kept.items():
        if isinstance(value, list) and contents is not None:
            value[:] = contents
        elif isinstance(value, dict | set) and contents is not None:
            value.clear()
            value.update(contents)
        attributes[name] = value
