"""Signatures of arguments, and results with placeholders for their tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from genesis.autograd import is_freed
from genesis.autograd.views import ViewKind
from genesis.graphs.pure import PLAIN
from genesis.graphs.recorder import Recorder
from genesis.ndarray import CPU, Device, NDArray
from genesis.recording import Kind, Value
from genesis.records import rebuilt
from genesis.tensor import Tensor


class Input(NamedTuple):
    """Placeholder: the argument at this place."""

    place: int


class Output(NamedTuple):
    """Placeholder: a tensor on the array of value; memory is the number of the first value that showed it."""

    value: Value
    memory: int
    device: Device


def noted(result: object, tensors: Sequence[Tensor], recorder: Recorder, outputs: list[Output]) -> object:
    """A result with placeholders for its tensors; appends each Output to outputs."""
    if isinstance(result, Tensor):
        for index, tensor in enumerate(tensors):
            if result is tensor:
                return Input(index)
        value = recorder.value_of(result)
        if value is None or value.memory.kind in (Kind.PARAMETER, Kind.BUFFER):
            recorder.refuse("returns a parameter or buffer, or a view of one")
            return None
        if result.requires_grad and not is_freed(result):
            recorder.refuse("returns a result that backward() has not gone through")
            return None
        outputs.append(Output(value, value.memory.number, result.array.device))
        return outputs[-1]
    if isinstance(result, list | tuple):
        return rebuilt(result, [noted(part, tensors, recorder, outputs) for part in result])
    if type(result) is dict:
        return {name: noted(part, tensors, recorder, outputs) for name, part in result.items()}
    if result is None or isinstance(result, bool | int | float | str):
        return result
    recorder.refuse(f"returns a {type(result).__name__}")
    return None


def made_of(noted: object, tensors: Sequence[Tensor], handles: Iterator[object], shown: dict[int, Tensor]) -> Any:
    """The result of a replay: placeholders become tensors on its handles; shown: by memory, what shows it already."""
    if type(noted) is Output:
        owner = shown.get(noted.memory)
        array = NDArray(next(handles), noted.device, None if owner is None else owner.array.changes)
        made = tensor_on(array)
        if owner is None:
            shown[noted.memory] = made
        else:
            made._base, made._viewed_at = owner if owner._base is None else owner._base, array.changes.count
            made._view_kind = ViewKind.CUSTOM
        return made
    if type(noted) is Input:
        return tensors[noted.place]
    if isinstance(noted, list | tuple):
        return rebuilt(noted, [made_of(part, tensors, handles, shown) for part in noted])
    if type(noted) is dict:
        return {name: made_of(part, tensors, handles, shown) for name, part in noted.items()}
    return noted


def tensor_on(array: NDArray) -> Tensor:
    """A tensor outside the graph of gradients."""
    made: Tensor = object.__new__(Tensor)
    made.array = array
    return made


class _Same:
    """An argument that is compared by identity; its contents are guarded."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is _Same and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def kind_of(value: object, tensors: list[Tensor]) -> Hashable:
    """The signature of arguments: everything but the tensors' values. Appends the tensors to tensors."""
    if isinstance(value, Tensor):
        array = value.array
        if tensors:
            for index, tensor in enumerate(tensors):
                if tensor.array.handle is array.handle:
                    return Input(index)
        tensors.append(value)
        # On CUDA, kernels are chosen by the alignment of addresses.
        device, handle = array.device, array.handle
        place = handle.storage_offset() if device is CPU else (device, handle.data_pointer & 15)
        kind = array.shape, array.strides, place, array.dtype
        # Beside what every tensor has there may be attributes of the user's, which a forward could read.
        return kind if len(own := value.__dict__) == 1 or own.keys() <= OF_TENSORS else (kind, _Same(value))
    if type(value) is tuple or type(value) is list:
        return type(value), tuple([kind_of(part, tensors) for part in value])
    if type(value) is dict:
        return dict, tuple([(_plain_kind(name), kind_of(part, tensors)) for name, part in value.items()])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value), tuple([kind_of(part, tensors) for part in value])
    return _plain_kind(value)


def _plain_kind(value: object) -> Hashable:
    kind = type(value)
    if kind is float or kind is complex:
        return kind, repr(value)  # 0.0 is not -0.0
    return (kind, value) if kind in PLAIN else _Same(value)


OF_TENSORS = frozenset(  # attributes that every tensor may have
    {
        "array",
        "_requires_grad",
        "grad",
        "_node",
        "_output_index",
        "_base",
        "_viewed_at",
        "_view_kind",
        "_hooks",
        "_post_accumulate_hooks",
    }
)


def objects_in(arguments: object) -> Iterator[object]:
    """Find the objects in arguments besides plain values and the containers that kind_of opens."""
    kind = type(arguments)
    is_named_tuple = isinstance(arguments, tuple) and hasattr(kind, "_fields")
    if type(arguments) is dict:
        parts: Iterable[object] = arguments.values()
    elif type(arguments) is list or (isinstance(arguments, tuple) and (kind is tuple or is_named_tuple)):
        parts = arguments
    else:
        parts = ()
        if kind not in PLAIN:
            yield arguments
    for part in parts:
        yield from objects_in(part)
    if is_named_tuple:
        yield kind
