"""Guards on modules, on the values of arrays, and on the modes of process and thread."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import CodeType

from genesis import dtypes
from genesis.amp.casting import casts_key
from genesis.autograd.graph import RepeatableHook
from genesis.autograd.modes import state
from genesis.graphs.flat import Conditions
from genesis.graphs.reads import reads_of
from genesis.graphs.trace import is_ours
from genesis.graphs.watch import is_same
from genesis.ndarray import NDArray, default_device
from genesis.ndarray.array import Changes
from genesis.nn import Module
from genesis.nn.hooks import everywhere
from genesis.precision import get_float32_precision
from genesis.settings import settings
from genesis.tensor import Tensor

_training = operator.itemgetter("training")
_array = operator.attrgetter("array")
_requires_grad = operator.attrgetter("_requires_grad")
_hooks = operator.attrgetter("_hooks")
_post_accumulate_hooks = operator.attrgetter("_post_accumulate_hooks")
_count, _holders = operator.attrgetter("count"), operator.attrgetter("holders")
_forward = operator.attrgetter("forward")


def present_modes() -> tuple[object, ...]:
    """The settings of process and thread that change what ops compute."""
    return modes_of(state.__dict__)


def modes_of(own: Mapping[str, Hashable]) -> tuple[object, ...]:
    """present_modes() of the thread whose state this is."""
    autocast = own["autocast"]
    return (
        dtypes.get_default_dtype(), default_device(), get_float32_precision(), settings.deterministic,
        own["recording"], own["folding"], own["unsynced"],
        None if autocast is None else casts_key(autocast),
    )  # fmt: skip


class ModuleGuard:
    """Guards modules as they were: submodules, modes and arrays; of Genesis' own modules also the attributes they read.

    Args:
        modules: guarded with all their submodules.
        others: tensors that belong to no module.
    """

    def __init__(self, modules: Iterable[Module], others: Iterable[Tensor] = ()) -> None:
        self._modules = list({id(part): part for module in modules for part in module.modules()}.values())
        self._kinds = list(map(type, self._modules))
        self._different_kinds = list(dict.fromkeys(self._kinds))
        self._forwards = list(map(_forward, self._different_kinds))
        self._dicts = list(map(vars, self._modules))
        self._modes = list(map(_training, self._dicts))
        # One that is set beside them hides what the class has, as a forward of this module's own would.
        self._open = [vars(module) for module in self._modules if is_ours(type(module).__module__)]
        self._num_attributes = list(map(len, self._open))
        self._attributes = [
            _Attributes(vars(module), names)
            for module in self._modules
            if is_ours(type(module).__module__) and (names := needed_attributes(type(module)) & vars(module).keys())
        ]
        registries = [each for own in self._dicts for each in (own["_modules"], own["_parameters"], own["_buffers"])]
        self._filled = [registry for registry in registries if registry]
        self._empty = [registry for registry in registries if not registry]
        self._members = self._present_members()
        self._hook_lists: list[Sequence[object]] = [*everywhere.lists]
        self._hook_lists += [each._forward_hooks for each in self._modules]
        self._hook_lists += [each._forward_pre_hooks for each in self._modules]
        tensors = [member for member in self._members if isinstance(member, Tensor)]
        self.tensors: list[Tensor] = list({id(tensor): tensor for tensor in (*tensors, *others)}.values())
        self.arrays = [tensor.array for tensor in self.tensors]
        self._requires_grad = list(map(_requires_grad, self.tensors))
        self.repeatable = self._repeatable_hooks()

    def holds(self) -> bool:
        """Whether submodules, arrays and modes are the same as before."""
        return (
            all(map(operator.is_, map(_array, self.tensors), self.arrays))
            and list(map(_requires_grad, self.tensors)) == self._requires_grad
            and self._repeatable_hooks() == self.repeatable
            and list(map(_training, self._dicts)) == self._modes
            and not any(self._empty)
            and len(members := self._present_members()) == len(self._members)
            and all(map(operator.is_, members, self._members))
            and all(map(operator.is_, map(type, self._modules), self._kinds))
            and all(map(operator.is_, map(_forward, self._different_kinds), self._forwards))
            and list(map(len, self._open)) == self._num_attributes
            and all(map(_Attributes.hold, self._attributes))
        )

    def describe(self, conditions: Conditions) -> None:
        """Everything is as it is now, and there are no hooks."""
        for module, own, kind in zip(self._modules, self._dicts, self._kinds, strict=True):
            mapping = conditions.name(own)
            conditions.require_same(f"{mapping}['training']", own["training"])
            conditions.require_same(f"{conditions.name(type)}({conditions.name(module)})", kind)
        for kind, forward in zip(self._different_kinds, self._forwards, strict=True):
            conditions.require_same(f"{conditions.name(kind)}.forward", forward)
        for own in self._open:
            conditions.require(f"len({conditions.name(own)}) == {len(own)}")
        for attributes in self._attributes:
            attributes.describe(conditions)
        for registry in (*self._empty, *self._hook_lists):
            conditions.require(f"not {conditions.name(registry)}")
        for registry in self._filled:
            conditions.require_entries(conditions.name(registry), registry)
        for tensor in self.tensors:
            _describe_tensor(tensor, conditions)

    def _present_members(self) -> list[object]:
        """Everything that the modules have registered, in order."""
        return list(itertools.chain.from_iterable(map(dict.values, self._filled)))

    def has_hooks(self) -> bool:
        """Whether there are hooks that a recording cannot see."""
        return any(self._hook_lists) or any(map(_hooks, self.tensors)) or self._has_foreign_hooks()

    def _has_foreign_hooks(self) -> bool:
        found = filter(None, map(_post_accumulate_hooks, self.tensors))
        return any(not isinstance(hook, RepeatableHook) for hooks in found for hook in hooks)

    def _repeatable_hooks(self) -> list[RepeatableHook]:
        """The hooks on gradients that a recording does see."""
        found = filter(None, map(_post_accumulate_hooks, self.tensors))
        return [hook for hooks in found for hook in hooks if isinstance(hook, RepeatableHook)]


def _describe_tensor(tensor: Tensor, conditions: Conditions) -> None:
    own = vars(tensor)
    mapping = conditions.name(own)
    conditions.require_same(f"{mapping}['array']", tensor.array)
    if "_requires_grad" in own:
        conditions.require_same(f"{mapping}['_requires_grad']", tensor._requires_grad)
    if "grad" in own:
        conditions.require(f"{mapping}['grad'] is {'None' if tensor.grad is None else 'not None'}")
    if own.keys() <= _OF_LEAVES:  # all of which are looked at: as long as there are no more, there are no hooks
        conditions.require(f"len({mapping}) == {len(own)}")
    else:
        conditions.require(f"tuple({mapping}) == {tuple(own)!r}")
        name = conditions.name(tensor)
        conditions.require(f"not {name}._hooks")
        conditions.require_parts(f"{name}._post_accumulate_hooks", tensor._post_accumulate_hooks)


_OF_LEAVES = frozenset({"array", "_requires_grad", "grad"})


class _Attributes:
    """Guards the attributes that the methods of one of Genesis' own modules read."""

    def __init__(self, own: dict[str, object], names: Iterable[str]) -> None:
        first, *_ = self._names = names = sorted(names)
        self._own = own
        self._get = operator.itemgetter(*names, first)  # of one name alone it would give no tuple
        self._values = self._get(own)

    def hold(self) -> bool:
        try:
            values = self._get(self._own)
        except KeyError:
            return False
        if all(map(operator.is_, values, self._values)):
            return True
        if not all(map(is_same, values, self._values)):
            return False
        self._values = values  # equal numbers in other objects are found at once from now on
        return True

    def describe(self, conditions: Conditions) -> None:
        conditions.require_items(conditions.name(self._own), [(name, self._own[name]) for name in self._names])


def needed_attributes(kind: type[Module]) -> frozenset[str]:
    """The attributes of a module that methods of Genesis' own classes read when it is called."""
    known = _needed.get(kind)
    if known is None:
        known = _needed[kind] = _taken_by_methods(kind)
    return known


_needed: weakref.WeakKeyDictionary[type[Module], frozenset[str]] = weakref.WeakKeyDictionary()


def _taken_by_methods(kind: type[Module]) -> frozenset[str]:
    found: set[str] = set()
    for owner in kind.__mro__:
        if is_ours(owner.__module__) and owner is not Module:
            for name, member in vars(owner).items():
                code = getattr(getattr(member, "__func__", member), "__code__", None)
                if code is not None and name not in _NOT_IN_CALLS:
                    for each in (code, *[part for part in code.co_consts if isinstance(part, CodeType)]):
                        found |= reads_of(each).attributes.keys()
    return frozenset(found - _REGISTERED)


_NOT_IN_CALLS = frozenset({"__init__", "__repr__", "extra_repr", "reset_parameters", "train"})
# These have guards of their own; the last one only says what is saved.
_REGISTERED = frozenset({"training", "_modules", "_parameters", "_buffers", "_non_persistent_buffers"})


def _is_known(changes: Changes) -> bool:
    return changes.version is not None


class Versions:
    """Guards the values of arrays; `exported` says whose values other libraries may change unseen."""

    def __init__(self, arrays: Iterable[NDArray]) -> None:
        self._changes = [array.changes for array in arrays]
        self.exported = [changes.version is None for changes in self._changes]
        self._unseen = [each for each, exported in zip(self._changes, self.exported, strict=True) if exported]
        self._counts = list(map(_count, self._changes))
        self._holders = list(map(_holders, self._changes))

    @property
    def is_empty(self) -> bool:
        return not self._changes

    def hold(self) -> bool:
        return (
            list(map(_count, self._changes)) == self._counts
            and all(map(operator.is_, map(_holders, self._changes), self._holders))
            and not any(map(_is_known, self._unseen))
        )
