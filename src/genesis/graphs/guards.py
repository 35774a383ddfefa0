"""What a recording depends on beside its arguments: the parts of modules, and the modes of the process."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import Any

from genesis import dtypes
from genesis.autograd.modes import state
from genesis.graphs.trace import is_ours
from genesis.graphs.watch import is_same
from genesis.nn import Module
from genesis.precision import get_float32_precision
from genesis.settings import settings
from genesis.tensor import Tensor

_array = operator.attrgetter("array")
_requires_grad = operator.attrgetter("requires_grad")
_hooks = operator.attrgetter("_hooks")
_post_accumulate_hooks = operator.attrgetter("_post_accumulate_hooks")
_forward = operator.attrgetter("forward")


def present_modes() -> tuple[Any, ...]:
    """All that holds for the process or the thread and says what ops compute."""
    return (
        dtypes.get_default_dtype(), get_float32_precision(), settings.deterministic, state.recording, state.folding,
    )  # fmt: skip


class ModuleGuard:
    """Modules as they were when this was made: their parts, modes and arrays; of Genesis' own, all attributes.

    Args:
        modules: with all that is below them.
        others: tensors that belong to no module.
    """

    def __init__(self, modules: Iterable[Module], others: Iterable[Tensor] = ()) -> None:
        self._modules = list({id(part): part for module in modules for part in module.modules()}.values())
        self._kinds = list(map(type, self._modules))
        self._different_kinds = list(dict.fromkeys(self._kinds))
        self._forwards = list(map(_forward, self._different_kinds))
        self._dicts: list[dict[str, Any]] = []
        for module, kind in zip(self._modules, self._kinds, strict=True):
            own = [vars(module)] if is_ours(kind.__module__) else []
            self._dicts += (*own, module._modules, module._parameters, module._buffers)
        self._users = [module for module in self._modules if not is_ours(type(module).__module__)]
        self._modes = [module.training for module in self._users]
        self._held = self._present()
        self._hook_lists = [hooks for each in self._modules for hooks in (each._forward_hooks, each._forward_pre_hooks)]
        members = [member for registry in self._dicts for member in registry.values() if isinstance(member, Tensor)]
        self.tensors: list[Tensor] = list({id(tensor): tensor for tensor in (*members, *others)}.values())
        self.arrays = [tensor.array for tensor in self.tensors]
        self._requires_grad = list(map(_requires_grad, self.tensors))

    def holds(self) -> bool:
        """Whether the modules are made of the same parts and arrays, in the same modes, as they were."""
        return (
            all(map(operator.is_, map(_array, self.tensors), self.arrays))
            and list(map(_requires_grad, self.tensors)) == self._requires_grad
            and [module.training for module in self._users] == self._modes
            and all(map(operator.is_, map(type, self._modules), self._kinds))
            and all(map(operator.is_, map(_forward, self._different_kinds), self._forwards))
            and len(held := self._present()) == len(self._held)
            and (all(map(operator.is_, held, self._held)) or self._are_equal(held))
        )

    def _present(self) -> list[Any]:
        """All that the dictionaries of the modules hold, in order."""
        return list(itertools.chain.from_iterable(map(dict.values, self._dicts)))

    def _are_equal(self, held: list[Any]) -> bool:
        if not all(map(is_same, held, self._held)):
            return False
        self._held = held  # equal numbers in other objects are found at once from now on
        return True

    def has_hooks(self) -> bool:
        """Whether something is called that no recording can see."""
        return any(self._hook_lists) or any(map(_hooks, self.tensors)) or any(map(_post_accumulate_hooks, self.tensors))


class Versions:
    """The values of arrays: whether they are what they were, and which of them may change unseen."""

    def __init__(self, arrays: Iterable[Any]) -> None:
        self._changes = [array.changes for array in arrays]
        self._versions = self._present()
        self.exported = [version is None for version in self._versions]

    def hold(self) -> bool:
        return self._present() == self._versions

    def _present(self) -> list[int | None]:
        return [changes.version for changes in self._changes]
