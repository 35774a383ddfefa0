"""Guards on everything that a run can read besides its arguments.

They follow from the code that ran (trace.py): the globals and cells that it names and, on every object reached from
these, the attributes that any of it names. Nothing is left out: if something cannot be watched, the run is not
recorded, and the user is told why.
"""

from __future__ import annotations

import builtins
import functools
import sys
import types
from collections import deque
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from genesis.amp import GradScaler
from genesis.autograd.modes import Constant
from genesis.dtypes import DType
from genesis.generator import Generator
from genesis.graphs.compiled import Compiled
from genesis.graphs.flat import Conditions
from genesis.graphs.guards import needed_attributes
from genesis.graphs.pure import MAPPINGS, PLAIN, SEQUENCES, SETS, is_immutable, is_pure, is_pure_type, solid_base
from genesis.graphs.reads import Chain, reads_of
from genesis.graphs.trace import Executed, is_ours
from genesis.graphs.watch import MISSING, UnwatchableError, Watch, part_of
from genesis.ndarray import Device
from genesis.nn import FusedConv, Module
from genesis.optim import Optimizer
from genesis.tensor import Tensor

_MOST_OBJECTS = 100_000


class _Found(NamedTuple):
    value: object
    label: str
    where: str  # the line that names it, in parentheses


class Snapshot:
    """Watches what the executed code can read; collects the modules, optimizers and tensors among it.

    Args:
        roots: what is called, and its arguments.
        executed: the code that a run executed.
        arguments: the tensors among the arguments, which are others in the next call.
    Raises: UnwatchableError.
    """

    def __init__(self, roots: Iterable[object], executed: Executed, arguments: Iterable[Tensor] = ()) -> None:
        self.modules: list[Module] = []
        self.optimizers: list[Optimizer] = []
        self.scalers: list[GradScaler] = []
        self.tensors: list[Tensor] = []
        self._watch = Watch()
        self._seen: dict[int, object] = {id(tensor): tensor for tensor in arguments}  # kept alive: ids stay theirs
        self._queue: deque[_Found] = deque()
        self._classes: set[type[object]] = set()
        self._where = ""  # the line that names what is being looked at
        self._codes = {code for code, _ in executed}
        self._unfound = {code for code in self._codes if code.co_freevars} - _codes_inside(self._codes)
        self._attributes: dict[str, str] = {}
        self._any_attribute = False
        for code in self._codes:
            reads = reads_of(code)
            self._any_attribute |= reads.any_attribute
            for name, line in reads.attributes.items():
                self._attributes.setdefault(name, f"{code.co_filename}:{line}")
        for root in roots:
            self._add(root, getattr(root, "__name__", type(root).__name__))
        for (code, _), globals_ in executed.items():
            self._watch_globals(code, globals_)
        while self._queue:
            if len(self._seen) > _MOST_OBJECTS:
                raise UnwatchableError(
                    f"reaches more than {_MOST_OBJECTS:,} objects, as through '{self._queue[0].label}'"
                )
            self._visit(self._queue.popleft())
        for code in self._unfound:
            raise UnwatchableError(f"calls {code.co_name} ({_line(code)}), a closure that is not found by any name")
        self._seen.clear()  # a recording must not keep a batch

    def changed(self) -> str | None:
        """The first name whose meaning has changed, or None."""
        return self._watch.changed()

    def describe(self, conditions: Conditions) -> None:
        self._watch.describe(conditions)

    # --- from the code ------------------------------------------------------------------------------------------------

    def _watch_globals(self, code: CodeType, globals_: dict[str, object]) -> None:
        reads = reads_of(code)
        for chain in reads.chains:
            name = chain.names[0]
            value = self._watch.name(globals_, name, name)
            if value is MISSING:
                given = globals_.get("__builtins__", builtins)
                own = vars(given) if isinstance(given, ModuleType) else given
                assert isinstance(own, dict)
                value = self._watch.name(own, name, name)
            self._follow(value, chain, code)
        for name in reads.imports:
            for part in (name, name.partition(".")[0]):
                value = self._watch.name(sys.modules, part, part)
                if value is not MISSING:
                    self._add(value, part)

    def _follow(self, value: object, chain: Chain, code: CodeType) -> None:
        """Add what a chain leads to: exact through modules; from there on, like any object."""
        where = f" ({code.co_filename}:{chain.line})"
        names = list(chain.names)
        label = names.pop(0)
        while isinstance(value, ModuleType) and names:
            own, name = vars(value), names.pop(0)
            label = f"{label}.{name}"
            value = self._watch.name(own, name, label)
        if value is not MISSING and not (isinstance(value, BuiltinFunctionType) and chain.is_called):
            self._add(value, label, where)  # a call of what is written in C is seen by the trace

    # --- from object to object ----------------------------------------------------------------------------------------

    def _add(self, value: object, label: str, where: str = "") -> None:
        if type(value) not in PLAIN and id(value) not in self._seen:
            self._seen[id(value)] = value
            self._queue.append(_Found(value, label, where or self._where))

    def _visit(self, found: _Found) -> None:
        value, label, self._where = found
        kind = type(value)
        if isinstance(value, _OPAQUE) or (is_immutable(value) and not _is_python(kind)):
            return
        if isinstance(value, type):
            self._visit_class(value, label)
        elif isinstance(value, Module):
            self._visit_module(value, label)
        elif isinstance(value, Tensor):
            self.tensors.append(value)
            self._watch_attributes(vars(value), label, _OF_TENSORS, with_absent=not is_ours(kind.__module__))
        elif isinstance(value, Optimizer):
            self.optimizers.append(value)
            self._visit_instance(value, label)
        elif isinstance(value, GradScaler) and kind is GradScaler:  # what it counts is no constant of a recording
            self.scalers.append(value)
            self._watch.other(value.is_enabled, label)
        elif isinstance(value, Compiled):
            self._add(value.target, label)
        elif type(value) is FunctionType:
            self._visit_function(value, label)
        elif type(value) is BuiltinFunctionType:
            self._visit_builtin(value, label)
        elif kind is _CACHED_FUNCTION:
            self._visit_cached(value, label)
        elif kind in _PARTS:
            for name in _PARTS[kind]:
                self._add(getattr(value, name), label)
        elif isinstance(value, ModuleType):
            self._visit_python_module(value, label)
        else:
            self._visit_object(value, label)

    def _visit_object(self, value: Any, label: str) -> None:
        base = solid_base(type(value))
        if issubclass(base, (*SEQUENCES, *MAPPINGS, *SETS)):
            if not issubclass(base, (tuple, frozenset)):
                self._watch.contents(value, label)
            items = value.items() if issubclass(base, MAPPINGS) else enumerate(value)
            for key, part in list(items):
                self._add(key, label)
                self._add(part, label if issubclass(base, SETS) else part_of(label, key))
        elif base not in (object, types.SimpleNamespace) and not (
            _is_python(type(value)) and issubclass(base, (*PLAIN_BASES, BaseException))
        ):
            raise UnwatchableError(f"uses '{label}', {_a(type(value))}, which cannot be watched{self._where}")
        if _is_python(type(value)) or base is types.SimpleNamespace:
            self._visit_instance(value, label)

    def _visit_instance(self, value: object, label: str) -> None:
        kind = type(value)
        if is_ours(kind.__module__) and not isinstance(value, Optimizer):
            for name in vars(value) if hasattr(value, "__dict__") else ():
                self._add(self._watch.name(vars(value), name, f"{label}.{name}"), f"{label}.{name}")
            return
        self._watch.kind(value, f"{label}.__class__")
        if hasattr(value, "__dict__"):
            self._watch_attributes(value.__dict__, label)
        for owner in kind.__mro__:
            for name, slot in vars(owner).items():
                if isinstance(slot, types.MemberDescriptorType) and (name in self._attributes or self._any_attribute):
                    self._watch.other(functools.partial(_slot, slot, value), f"{label}.{name}")
                    self._add(_slot(slot, value), f"{label}.{name}")
        self._add(kind, kind.__qualname__)

    def _watch_attributes(
        self, own: dict[str, object], label: str, left_out: frozenset[str] = frozenset(), with_absent: bool = True
    ) -> None:  # fmt: skip
        names = {*self._attributes, *own} if self._any_attribute else self._attributes
        if self._any_attribute:
            self._watch.other(lambda: " ".join(sorted(own.keys() - left_out)), label)
        for name in names:
            if name not in left_out and (with_absent or name in own):
                found = self._watch.name(own, name, f"{label}.{name}")
                if found is not MISSING:
                    self._add(found, f"{label}.{name}", self._line_of(name))

    def _line_of(self, attribute: str) -> str:
        """The line that reads an attribute of this name."""
        return f" ({self._attributes[attribute]})" if attribute in self._attributes else ""

    def _visit_module(self, module: Module, label: str) -> None:
        self.modules.append(module)
        own, kind = vars(module), type(module)
        ours = is_ours(kind.__module__)
        names = set(own) if ours or self._any_attribute else {*self._attributes, *needed_attributes(kind), "forward"}
        for name in names - _OF_MODULES:
            # All attributes of Genesis' own modules are watched by the ModuleGuard.
            found = own.get(name, MISSING) if ours else self._watch.name(own, name, f"{label}.{name}")
            if found is not MISSING and not (name.startswith("_") and (ours or name not in self._attributes)):
                self._add(found, f"{label}.{name}", self._line_of(name))
        for registry in (module._modules, module._parameters, module._buffers):
            for name, part in registry.items():
                self._add(part, f"{label}.{name}")
        self._add(kind, kind.__qualname__)

    def _visit_class(self, kind: type[object], label: str) -> None:
        if is_ours(kind.__module__):
            return
        if not _is_python(kind):
            if not is_pure_type(kind):
                raise UnwatchableError(f"uses '{label}', a type that cannot be watched{self._where}")
            return
        for owner in kind.__mro__:
            if _is_python(owner) and not is_ours(owner.__module__):
                self._watch_class(owner)
        if type(kind) is not type:
            self._add(type(kind), type(kind).__qualname__)

    def _watch_class(self, owner: type[object]) -> None:
        if owner in self._classes:
            return
        self._classes.add(owner)
        own = vars(owner)
        self._watch.other(functools.partial(len, own), owner.__qualname__)
        for name in (
            {*self._attributes, *own} if self._any_attribute else {*self._attributes, *filter(_is_special, own)}
        ):
            if name in _OF_CLASSES:
                continue
            label = f"{owner.__qualname__}.{name}"
            found = self._watch.name(own, name, label)
            if found is not MISSING and (not _is_special(name) or isinstance(found, _FUNCTIONS)):
                self._add(found, label, self._line_of(name))

    def _visit_python_module(self, module: ModuleType, label: str) -> None:
        if _is_library(module):
            names: Iterable[str] = self._attributes.keys() & vars(module).keys()
        else:
            names = self._attributes
        for name in names:
            found = self._watch.name(vars(module), name, f"{label}.{name}")
            if found is not MISSING and not isinstance(found, ModuleType | BuiltinFunctionType | type):
                self._add(found, f"{label}.{name}")

    def _visit_function(self, function: FunctionType, label: str) -> None:
        if is_ours(function.__module__):
            return
        if vars(function):
            self._watch_attributes(vars(function), label)
        if function.__code__ not in self._codes:
            return  # not called; that it is the same function is all that matters
        self._unfound.discard(function.__code__)
        for get in ("__code__", "__defaults__", "__kwdefaults__"):
            self._watch.attribute(function, get, label)
        for defaults in (function.__defaults__, function.__kwdefaults__):
            if defaults is not None:
                self._add(defaults, label)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            content = self._watch.attribute(cell, "cell_contents", name)
            if content is not MISSING:
                self._add(content, name)

    def _visit_builtin(self, function: BuiltinFunctionType, label: str) -> None:
        if not is_pure(function):
            raise UnwatchableError(f"passes on '{label}', which cannot be watched{self._where}")
        if not isinstance(function.__self__, ModuleType | type):
            self._add(function.__self__, label)

    def _visit_cached(self, function: object, label: str) -> None:
        if not is_ours(function.__module__):
            raise UnwatchableError(f"calls '{label}', whose results functools.lru_cache keeps{self._where}")


_OPAQUE = (DType, Device, FusedConv, Constant, Generator)  # the numbers of a generator are drawn anew in each replay
PLAIN_BASES = (int, float, complex, str, bytes)
_FUNCTIONS = (FunctionType, staticmethod, classmethod, property, functools.partial)
_CACHED_FUNCTION = type(functools.lru_cache(lambda: 0))
_PARTS: dict[type[object], tuple[str, ...]] = {  # what these only hold together
    MethodType: ("__func__", "__self__"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.partial: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
}
# What other guards see: of tensors, modules and optimizers.
_OF_TENSORS = frozenset({"array", "requires_grad", "_requires_grad", "grad", "_node", "_output_index", "data", "shape"})
_OF_TENSORS |= {"_base", "_viewed_at", "_view_kind", "_hooks", "_post_accumulate_hooks"}
_OF_MODULES = frozenset({"training", "_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks"})
_OF_CLASSES = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__"})


def _is_python(kind: type[object]) -> bool:
    """Whether a class was written in Python."""
    return solid_base(kind) is not kind and kind is not object


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_library(module: ModuleType) -> bool:
    root = module.__name__.partition(".")[0]
    return is_ours(root) or root in ("numpy", "torch", "triton") or root in sys.stdlib_module_names


def _codes_inside(codes: Iterable[CodeType]) -> set[CodeType]:
    return {part for code in codes for part in code.co_consts if isinstance(part, CodeType)}


def _line(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"


def _a(kind: type[object]) -> str:
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _slot(slot: types.MemberDescriptorType, value: object) -> object:
    try:
        return slot.__get__(value, type(value))
    except AttributeError:
        return MISSING
