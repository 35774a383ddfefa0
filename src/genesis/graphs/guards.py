"""What a recording depends on beside its arguments: the parts of modules, and what a function names."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import operator
from collections.abc import Iterable
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from genesis.nn import Module
from genesis.optim import Optimizer
from genesis.tensor import Tensor


class ModuleGuard:
    """Modules as they were when this was made: their parts, modes and arrays.

    Args:
        modules: with all that is below them.
        others: tensors that belong to no module.
    """

    def __init__(self, modules: Iterable[Module], others: Iterable[Tensor] = ()) -> None:
        self._modules = list({id(part): part for module in modules for part in module.modules()}.values())
        self._modes = [module.training for module in self._modules]
        self._registries: list[dict[str, Any]] = [
            registry for each in self._modules for registry in (each._modules, each._parameters, each._buffers)
        ]
        self._registered = self._members()
        tensors = [member for member in self._registered if isinstance(member, Tensor)]
        self.tensors: list[Tensor] = list({id(tensor): tensor for tensor in (*tensors, *others)}.values())
        self.arrays = [tensor.array for tensor in self.tensors]
        self._requires_grad = [tensor.requires_grad for tensor in self.tensors]

    def holds(self) -> bool:
        """Whether the modules are made of the same parts and arrays, in the same modes, as they were."""
        return (
            all(map(operator.is_, [tensor.array for tensor in self.tensors], self.arrays))
            and [tensor.requires_grad for tensor in self.tensors] == self._requires_grad
            and [module.training for module in self._modules] == self._modes
            and len(members := self._members()) == len(self._registered)
            and all(map(operator.is_, members, self._registered))
        )

    def _members(self) -> list[Any]:
        """All that the modules have registered, in order."""
        return list(itertools.chain.from_iterable(map(dict.values, self._registries)))

    def has_hooks(self) -> bool:
        """Whether something is called that no recording can see."""
        return any(module._forward_hooks or module._forward_pre_hooks for module in self._modules) or any(
            tensor._hooks or tensor._post_accumulate_hooks for tensor in self.tensors
        )


class Names:
    """What a function names, as it was when this was made: modules, optimizers, tensors, functions and plain values.

    Names are those of its closure and of its module's globals, and those attributes that it uses of objects, where
    these are of its own package; and so on for the functions and methods that it names. Lists and dictionaries are
    looked into for modules, optimizers and tensors, but not watched; other objects are left alone.

    Args:
        function: what is called.
        values: its arguments, which may be such things too.
        tensors: those among the arguments, which are others in the next call.
    """

    def __init__(self, function: Any, values: Iterable[Any] = (), tensors: Iterable[Tensor] = ()) -> None:
        self.modules: list[Module] = []
        self.optimizers: list[Optimizer] = []
        self.tensors: list[Tensor] = []
        self._package = _package_of(function)
        # What was taken, by id; alive until all is done, so that no other object gets the id.
        self._seen: dict[int, Any] = {id(tensor): tensor for tensor in tensors}
        self._objects: list[Any] = []
        self._attributes: set[str] = set()  # all that are named, of whatever object
        self._watched: dict[tuple[int, str], tuple[_Place, str, Any]] = {}
        for value in (function, *values):
            self._take(value)
        found = -1
        while found != len(self._seen):  # attributes lead to functions, which name more of them
            found = len(self._seen)
            for owner in tuple(self._objects):
                self._look_into(owner)
        self._seen.clear()

    def changed(self) -> str | None:
        """The first name that means something else now."""
        for place, name, value in self._watched.values():
            now = _look_up(place, name)
            if now is not value and not (type(now) is type(value) in _PLAIN and now == value):
                return name
        return None

    def _take(self, value: Any) -> None:
        if type(value) in _PLAIN or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, Module):
            self.modules.append(value)
        elif isinstance(value, Optimizer):
            self.optimizers.append(value)
        elif isinstance(value, Tensor):
            self.tensors.append(value)
        elif isinstance(value, dict | list | tuple):
            for part in value.values() if isinstance(value, dict) else value:
                self._take(part)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._take(part)
        elif isinstance(value, MethodType):
            self._take(value.__func__)
            self._take(value.__self__)
            self._objects.append(value.__self__)
        elif _package_of(value) == self._package:
            if isinstance(value, FunctionType):
                self._follow(value)
            elif not isinstance(value, type):
                self._attributes.add("__call__")
                self._objects.append(value)

    def _follow(self, function: FunctionType) -> None:
        globals_, attributes = _names_in(function.__code__)
        self._attributes |= attributes
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._watch(cell, name)
        for name in sorted(globals_ & function.__globals__.keys()):
            self._watch(function.__globals__, name)
        for defaults in (function.__defaults__, function.__kwdefaults__):
            self._take(defaults)

    def _look_into(self, owner: Any) -> None:
        own = getattr(owner, "__dict__", {})
        for name in sorted(self._attributes):
            if name in own:
                self._watch(own, name)
            elif isinstance(method := inspect.getattr_static(type(owner), name, None), FunctionType):
                self._take(method)

    def _watch(self, place: _Place, name: str) -> None:
        value = _look_up(place, name)
        if type(value) in _PLAIN or isinstance(value, _WATCHED):
            self._watched.setdefault((id(place), name), (place, name, value))
        self._take(value)


_Place = dict[str, Any] | CellType
_PLAIN = frozenset({int, float, bool, complex, str, bytes, type(None)})
_WATCHED = (Module, Optimizer, Tensor, FunctionType, MethodType)
_MISSING = object()


def _look_up(place: _Place, name: str) -> Any:
    if isinstance(place, dict):
        return place.get(name, _MISSING)
    try:
        return place.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


def _names_in(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The globals and the attributes that code names, with the functions inside it."""
    globals_, attributes = set(), set()
    for instruction in dis.get_instructions(code):
        if instruction.opname.endswith("_GLOBAL"):
            globals_.add(instruction.argval)
        elif instruction.opname.endswith(("_ATTR", "_METHOD")):
            attributes.add(instruction.argval)
        elif isinstance(instruction.argval, CodeType):
            inner = _names_in(instruction.argval)
            globals_ |= inner[0]
            attributes |= inner[1]
    return frozenset(globals_), frozenset(attributes)


def _package_of(value: Any) -> str:
    """The name of the package that a function, or the class of an object, is from."""
    if isinstance(value, functools.partial):
        return _package_of(value.func)
    module = getattr(value, "__module__", None) or type(value).__module__
    return str(module).partition(".")[0]
