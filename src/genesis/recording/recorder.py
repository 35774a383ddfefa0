"""Recorder: listens to a backend, to functions and to modules, and notes what they are asked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from genesis.autograd import Variable
from genesis.autograd.modes import observe
from genesis.backends import Backend
from genesis.backends.backend import Op
from genesis.backends.contract import TRAITS
from genesis.callsite import user_line
from genesis.ndarray import NDArray
from genesis.nn import Module
from genesis.recording.calls import Call, Region, values_in
from genesis.recording.values import Kind, Value, Values
from genesis.records import rebuilt

_PLAIN = frozenset({type(None), bool, int, float, str})
_GIVEN = (Kind.PARAMETER, Kind.BUFFER, Kind.CONSTANT)


class Recorder:
    """Notes what the thread that made it computes; see the package's docstring.

    Attributes:
        calls: what was noted, in order, with the calls inside of modules in their regions.
        given: by number, the parameters, buffers and constants. Other arrays are not kept alive.
        names: by number, the names of the parameters and buffers of declare_state(): one that is shared has several.
    """

    def __init__(self) -> None:
        self.calls: list[Call | Region] = []
        self.given: dict[int, object] = {}
        self.names: dict[int, tuple[str, ...]] = {}
        self._values = Values()
        self._handles: tuple[type[object], ...] = (Variable, NDArray)  # what is an array, known or not
        self._open: list[Region] = []
        self._thread = threading.get_ident()
        self.is_paused = False

    # --- arrays -------------------------------------------------------------------------------------------------------

    def declare(self, kind: Kind, array: object) -> Value:
        """A new value for an array that is there before the run: a handle if a backend is tapped, else a tensor."""
        if not isinstance(array, self._handles):
            self._handles += (type(array),)
        value = self._values.add(array, kind)
        if kind in _GIVEN:
            self.given[value.number] = array
        return value

    def declare_state(self, model: Module) -> dict[Module, str]:
        """Declare the parameters, then the buffers of a model; gives its modules with their names."""
        modules = list(model.named_modules(remove_duplicate=False))  # once: walking a large network takes time
        numbers: dict[int, int] = {}  # by the ids of arrays
        for kind in (Kind.PARAMETER, Kind.BUFFER):
            for path, module in modules:
                members = module._parameters if kind is Kind.PARAMETER else module._buffers
                for member, tensor in members.items():
                    if tensor is not None:
                        number = numbers.get(id(tensor.array))
                        if number is None:
                            number = numbers[id(tensor.array)] = self.declare(kind, tensor).number
                        self.names[number] = (*self.names.get(number, ()), f"{path}.{member}" if path else member)
        return {module: path for path, module in reversed(modules)}

    def value_of(self, array: object) -> Value | None:
        return self._values.find(array)

    def place(self, arg: object) -> object:
        """An argument with values in the places of arrays; an array that is not known yet becomes a constant."""
        if type(arg) in _PLAIN:
            return arg
        value = self._values.find(arg)
        if value is not None:
            return value
        if isinstance(arg, list | tuple):
            placed = [self.place(part) for part in arg]
            if all(new is old for new, old in zip(placed, arg, strict=True)):
                return arg
            return rebuilt(arg, placed)
        return self.declare(Kind.CONSTANT, arg) if isinstance(arg, self._handles) else arg

    # --- where it listens ---------------------------------------------------------------------------------------------

    def tap(self, backend: Backend, on_call: Callable[[Call, Sequence[object]], None] | None = None) -> Backend:
        """The backend with this recorder listening; on_call is told of each call, and its arguments themselves."""

        def around(op: str, function: Op) -> Op:
            traits = TRAITS[op]
            if traits.query and not traits.unreplayable:  # a replay's answers are the recording's
                return function

            def noted(*args: object, **kwargs: object) -> object:
                result = function(*args, **kwargs)
                if threading.get_ident() == self._thread and not self.is_paused:
                    call = self.note(op, function, args, kwargs, result, traits.changed(args, kwargs))
                    if on_call is not None:
                        on_call(call, args)
                return result

            return noted

        return backend.wrapped(around)

    def functions(self) -> contextlib.AbstractContextManager[None]:
        """Inside, listen to the calls of Functions."""

        def note(
            function: type, args: tuple[object, ...], kwargs: dict[str, object], outputs: Sequence[object]
        ) -> None:
            self.note(function.__name__, function, args, kwargs, tuple(outputs))

        return observe(note)

    @contextlib.contextmanager
    def regions(self, modules: Iterable[Module], with_hooks: bool = True) -> Iterator[None]:
        """Inside, each call of these modules is a region; with_hooks: with all that the modules' own hooks do."""

        def enter(module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            places = {name: self.place(arg) for name, arg in kwargs.items()} if kwargs else kwargs
            region = Region(module, with_hooks, tuple(map(self.place, args)), places)
            self._list().append(region)
            self._open.append(region)

        def leave(module: Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
            while (region := self._open.pop()).module is not module:  # inside of it, one has raised
                pass
            region.results = self.place(output)

        handles = []
        try:
            for module in modules:
                handles.append(module.register_forward_pre_hook(enter, prepend=with_hooks, with_kwargs=True))
                handles.append(module.register_forward_hook(leave, prepend=not with_hooks, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Inside, calls are not noted."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False

    # --- what it notes ------------------------------------------------------------------------------------------------

    def note(
        self, op: str, function: Op, args: Sequence[object], kwargs: Mapping[str, object],
        result: object = None, changed: Sequence[object] = (),
    ) -> Call:  # fmt: skip
        """Note a call that has been made; changed: those of its arguments (or lists of them) that it changed."""
        places = tuple(map(self.place, args))
        options = {name: self.place(arg) for name, arg in kwargs.items()} if kwargs else kwargs
        touched = tuple(values_in(map(self.place, changed)))
        for value in touched:
            value.memory.version += 1
        base = places[0] if op in TRAITS and TRAITS[op].views and isinstance(places[0], Value) else None
        if isinstance(result, tuple):
            results: Value | tuple[Value | None, ...] | None = tuple([self._made(each) for each in result])
        else:
            results = self._made(result, base)
        call = Call(op, function, places, options, results, touched, user_line())
        self._list().append(call)
        return call

    def _list(self) -> list[Call | Region]:
        return self._open[-1].calls if self._open else self.calls

    def _made(self, result: object, base: Value | None = None) -> Value | None:
        if type(result) in _PLAIN:
            return None
        known = self._values.find(result)  # where an op gives its operand back
        return self._values.add(result, base=base) if known is None else self._values.bind(result, known)
