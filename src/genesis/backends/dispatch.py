"""Dispatch from arrays to the backend of their device: unwrap the operands, call the op, wrap the results.

An array is whatever has `handle`, `device`, `dtype`, `changes` and `to(dtype)`, and is made by type(array)(handle,
device): an NDArray. A stub of the contract becomes a function that is written for it, see dispatcher().
"""

from __future__ import annotations

import functools
import linecache
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, TypeGuard

from genesis import dtypes, records
from genesis.backends.refusals import LIBRARY_ERRORS, refusal
from genesis.dtypes import DType
from genesis.errors import DeviceError, DTypeError
from genesis.records import rebuilt
from genesis.records import record as record  # for the dispatchers

if TYPE_CHECKING:
    from genesis.backends.backend import Backend

Op: TypeAlias = Callable[..., Any]  # a function of a backend, or the dispatcher to it


class OnDevice(Protocol):
    """An array, as the type of an op's operands sees it."""

    @property
    def handle(self) -> Any: ...
    @property
    def device(self) -> Device: ...


class Device(Protocol):
    @property
    def type(self) -> str: ...


class Changes(Protocol):
    count: int

    def note(self) -> None: ...


class Capture(Protocol):
    """A CUDA graph in the making.

    Attributes:
        kept: what the graph reads; it lives as long as the graph.
        before_replay: called before each replay, with its stream, which is the current one.
        after_replay: likewise, once it has been launched.
    """

    kept: list[object]
    before_replay: list[Callable[[int], None]]
    after_replay: list[Callable[[int], None]]

    @property
    def outside(self) -> Callable[[int], AbstractContextManager[None]]:
        """outside(device_index): a block in which launches run, instead of becoming part of the graph."""


class GraphCapture(Capture, Protocol):
    """A capture that a driver makes.

    Attributes:
        forget: resets the graph, if it is still there.
    """

    forget: Callable[[], None]


class Array(OnDevice, Protocol):
    """An array, as the dispatchers see it."""

    @property
    def dtype(self) -> DType: ...
    @property
    def changes(self) -> Changes: ...
    def to(self, dtype: DType, /) -> Array: ...


class Active(dict[str, "Backend"]):
    """The backend in use for each type of device, with the tools around it; loaded when it is first asked for."""

    load: Callable[[str], object]  # puts a backend here

    def __missing__(self, device_type: str) -> Backend:
        self.load(device_type)
        return self[device_type]


active = Active()


# --- the dispatchers: written out for each op, as they are on the way of everything -----------------------------------

_ON_ARRAYS = """\
def {op}({parameters}):
    {floating}
    array, device = type({first}), {first}.device
    try:
        result = active[device.type].{op}({handles})
    except LIBRARY_ERRORS as error:
        raise refusal("{op}", ({parameters},), error) from None
    {changes}
    return {result}
"""
_PROMOTING = """\
def {op}(x, y):
    if type(x) is type(y):
        second = y.handle
        plain = x.handle.dtype is second.dtype and x.device is y.device
    else:
        second, plain = y, type(y) in NUMBERS and x.dtype.is_floating_point
    if plain{if_floating}:
        device = x.device
        try:
            return type(x)(active[device.type].{op}(x.handle, second), device)
        except LIBRARY_ERRORS as error:
            raise refusal("{op}", (x, y), error) from None
    return promoted("{op}", x, y, {floating})
"""
_ONE = '{name}.handle if {name}.device is device else apart("{op}", device, {name})'
_EACH = _ONE.replace("{name}", "each")
_HANDLES = {  # what is written for an argument, by its annotation
    "Handle": _ONE,
    "Handle | None": "None if {name} is None else " + _ONE,
    "Handle | Number": "{name} if type({name}) is not array else " + _ONE,
    "Sequence[Handle]": f"[{_EACH} for each in {{name}}]",
    "Sequence[Handle] | None": f"None if {{name}} is None else [{_EACH} for each in {{name}}]",
    "Sequence[Handle | None]": f"[None if each is None else {_EACH} for each in {{name}}]",
    "tuple[Handle | None, ...]": f"tuple([None if each is None else {_EACH} for each in {{name}}])",
}
_PARTS = {  # of a tuple that is returned, by its annotation
    "Handle": "array(result[{place}], device)",
    "Handle | None": "None if result[{place}] is None else array(result[{place}], device)",
    "Opaque": "result[{place}]",
}
_FIELDS = {"A": _HANDLES["Handle"], "A | None": _HANDLES["Handle | None"]}  # of a record, by its annotation there


def dispatcher(stub: Op, kinds: dict[str, str], returned: str, in_place: tuple[str, ...], floating: bool) -> Op:
    """The function that a stub of the contract becomes; it is written when it is first called.

    Args:
        kinds: the annotations of its parameters. Arrays have the type Handle.
        returned: that of its result.
        in_place: parameters that it changes.
        floating: whether integers become the default float.
    """
    op = stub.__name__
    if not any("Handle" in kind for kind in kinds.values()):
        return functools.partial(_refuse_arguments, op)
    function = types.FunctionType(_first_call.__code__, globals(), op, stub.__defaults__)
    function.__kwdefaults__ = {"_op": op}
    _unwritten[op] = function, functools.partial(_source, op, kinds, returned, in_place, floating)
    return function


_unwritten: dict[str, tuple[types.FunctionType, Callable[[], str]]] = {}  # dispatchers, and what gives their source


def _first_call(*args: object, _op: str, **options: object) -> object:
    """Write a dispatcher at its first call: writing all of them would double the time of `import genesis`."""
    function, source_of = _unwritten[_op]
    source, file = source_of(), f"{__file__}:{_op}"  # a place in Genesis, see callsite.user_line()
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # so that tracebacks show it
    made: dict[str, types.FunctionType] = {}
    exec(compile(source, file, "exec"), globals(), made)
    function.__code__ = made[_op].__code__
    function.__kwdefaults__ = None
    return function(*args, **options)


def _source(op: str, kinds: dict[str, str], returned: str, in_place: tuple[str, ...], floating: bool) -> str:
    parameters = ", ".join(kinds)
    arrays = [name for name, kind in kinds.items() if "Handle" in kind]
    if kinds[arrays[0]] == "Handle | Number":
        if_floating = " and x.dtype.is_floating_point" if floating else ""
        return _PROMOTING.format(op=op, floating=floating, if_floating=if_floating)
    first = arrays[0] if kinds[arrays[0]] == "Handle" else f"{arrays[0]}[0]"
    handles = {name: _handle(op, name, kind) if name in arrays else name for name, kind in kinds.items()}
    if first == arrays[0]:
        handles[first] = f"{first}.handle"
    source = _ON_ARRAYS.format(
        op=op, parameters=parameters, first=first, handles=", ".join(handles.values()), result=_result(returned),
        floating=f"{first} = {first} if {first}.dtype.is_floating_point else floats({first})" if floating else "",
        changes="; ".join([f"note_change({name})" for name in in_place]),
    )  # fmt: skip
    return "".join([line for line in source.splitlines(keepends=True) if line.strip()])


def _handle(op: str, name: str, kind: str) -> str:
    """Source code for an argument with handles in the place of arrays."""
    if kind in _HANDLES:
        return _HANDLES[kind].format(op=op, name=name)
    kind = kind.partition("[")[0]  # of a record: NormState[Handle]
    fields = [
        _FIELDS.get(annotation.__forward_arg__, "{name}").format(op=op, name=f"{name}[{place}]")
        for place, annotation in enumerate(vars(records)[kind].__annotations__.values())
    ]
    return f"record(records.{kind}, ({', '.join(fields)}))"


def _result(returned: str) -> str:
    """Source code for the result: arrays around handles; values of the backend's own stay as they are."""
    if returned == "Handle":
        return "array(result, device)"
    if "Handle" not in returned:
        return "result"
    if "Opaque" in returned:
        parts = enumerate(returned.removeprefix("tuple[").removesuffix("]").split(", "))
        return f"({', '.join([_PARTS[kind].format(place=place) for place, kind in parts])})"
    arrays = "[None if handle is None else array(handle, device) for handle in result]"
    kind = returned.partition("[")[0]
    return f"record(records.{kind}, {arrays})" if kind in vars(records) else f"tuple({arrays})"


def promoted(op: str, x: Any, y: Any, floating: bool) -> object:
    """The op on two operands, arrays or numbers, in the dtype of both; floating: at least in the default float."""
    if type(x) in NUMBERS and y.dtype.is_floating_point:  # 1 − x
        array, device, handles = type(y), y.device, (x, y.handle)
    else:
        dtype = result_type(x, y)
        if floating and not dtype.is_differentiable:
            dtype = dtypes.get_default_dtype()
        x, y = [value.to(dtype) if is_array(value) else value for value in (x, y)]
        first = x if is_array(x) else y
        array, device = type(first), first.device
        handles = unwrapped(op, device, x), unwrapped(op, device, y)
    try:
        return array(getattr(active[device.type], op)(*handles), device)
    except LIBRARY_ERRORS as error:
        raise refusal(op, (x, y), error) from None


def call_of(op: Op, *args: object) -> tuple[Op, *tuple[object, ...]]:
    """The call op(*args) of an op in place, noted as done and ready for interrupts.at_once().

    Noted is the change of the first operand; nobody saves an optimizer's state for a gradient.
    """
    name = op.__name__
    note_change(args[0])
    device = next(arrays_in(args)).device
    return getattr(active[device.type], name), *[unwrapped(name, device, arg) for arg in args]


# --- what they are made of --------------------------------------------------------------------------------------------

NUMBERS = (int, float, bool)


def is_array(value: object) -> TypeGuard[Array]:
    return hasattr(value, "handle")


def arrays_in(values: Iterable[object]) -> Iterator[Array]:
    """The arrays among values, those in lists and tuples included."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from arrays_in(value)
        elif is_array(value):
            yield value


def unwrapped(op: str, device: object, value: object) -> object:
    """An argument with handles in the place of arrays, which must live on device."""
    if isinstance(value, list | tuple):
        return rebuilt(
            value,
            [item.handle if getattr(item, "device", None) is device else unwrapped(op, device, item) for item in value],
        )
    if not is_array(value):
        return value
    return value.handle if value.device is device else apart(op, device, value)


def note_change(values: object) -> None:
    """These arrays have been changed in place."""
    if is_array(values):
        values.changes.note()
    elif isinstance(values, list | tuple):
        for each in values:
            note_change(each)


def floats(x: Array) -> Array:
    """x, integers and bool as the default float dtype."""
    return x if x.dtype.is_differentiable else x.to(dtypes.get_default_dtype())


def result_type(*values: object) -> DType:
    """The dtype in which an op on these arrays and Python numbers computes."""
    return dtypes.result_type(
        (value.dtype, 2 if value.handle.shape else 1) if is_array(value) else (dtypes.of_scalar(value), 0)
        for value in values
    )


def apart(op: str, device: object, array: Array) -> NoReturn:
    """Raises DeviceError: operands live on several devices."""
    raise DeviceError(f"{op}: expected all tensors on one device, got {device} and {array.device}; move one with .to()")


def _refuse_arguments(op: str, *args: object, **kwargs: object) -> NoReturn:
    raise DTypeError(f"{op}: takes no array that would say where it runs; ask a backend: backend_of(device).{op}(…)")
