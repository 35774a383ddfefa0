"""One recorded run of a model: its calls, inputs and outputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from genesis import backends
from genesis.autograd import no_grad
from genesis.autograd.modes import without_folding, without_value_checks
from genesis.backends import Backend
from genesis.backends.backend import Op
from genesis.dtypes import DType
from genesis.ndarray import NDArray
from genesis.nn import Module
from genesis.recording import Call, Kind, Recorder, Region, Value
from genesis.tensor import Tensor

Named = dict[str, Tensor]


@dataclasses.dataclass(eq=False)
class Trace:
    """The record of one run.

    Attributes:
        calls: in order; a Function's call comes after the calls of the backend that it made.
        inputs, outputs: by name.
        state: by number, the name of each parameter and buffer.
        given: by number, the arrays that were there before the run.
        dtypes: by number.
        results: the outputs themselves, by name.
    """

    calls: list[Call]
    inputs: dict[str, Value]
    outputs: dict[str, Value]
    state: dict[int, str]
    given: dict[int, object]
    dtypes: dict[int, DType]
    results: Named


class _Tracer(Recorder):
    """A Recorder that also notes dtypes.

    Arrays are known by their handles, on which ops and Functions agree. An NDArray would bring the number of its
    changes from before the run, which the ops that are noted do not know of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: dict[int, DType] = {}
        self.backend: Backend | None = None

    def place(self, arg: object) -> object:
        return super().place(_handle_of(arg))

    def _made(self, result: object, base: Value | None = None) -> Value | None:
        return super()._made(_handle_of(result), base)

    def declare(self, kind: Kind, array: object) -> Value:
        handle = _handle_of(array)
        value = super().declare(kind, handle)
        self._note_dtype(value, handle)
        return value

    def note(
        self, op: str, function: Op, args: Sequence[object], kwargs: Mapping[str, object],
        result: object = None, changed: Sequence[object] = (),
    ) -> Call:  # fmt: skip
        if op == "view" and self.backend is not None:  # what of the operand it shows follows from its layout
            kwargs = {"of_strides": self.backend.strides(args[0]), "of_offset": self.backend.offset(args[0])}
        call = super().note(op, function, args, kwargs, result, changed)
        results = result if isinstance(result, tuple) else (result,)
        for value, each in zip(results_of(call), results, strict=True):
            if value is not None:
                self._note_dtype(value, each)
        return call

    def _note_dtype(self, value: Value, array: object) -> None:
        if isinstance(array, Tensor):
            array = array.array
        if isinstance(array, NDArray):
            self.dtypes[value.number] = array.dtype
        elif self.backend is not None and hasattr(array, "dtype") and not isinstance(array, np.ndarray):
            self.dtypes[value.number] = self.backend.dtype(array)


def _handle_of(array: object) -> object:
    array = array.array if isinstance(array, Tensor) else array
    return array.handle if isinstance(array, NDArray) else array


def trace(model: Module, inputs: Named, keywords: Sequence[str] = ()) -> Trace:
    """Run model on inputs in eval mode, without gradient, and record it.

    Args:
        inputs: by the names that they will have; those in keywords are passed by name, the others by position.
    """
    recorder = _Tracer()
    tensors = (*inputs.values(), *model.parameters(), *model.buffers())
    with contextlib.ExitStack() as stack:
        stack.enter_context(_in_eval_mode(model))
        stack.enter_context(no_grad())
        stack.enter_context(without_folding())
        stack.enter_context(without_value_checks())
        for kind in sorted({tensor.device.type for tensor in tensors}):
            backend: Backend = backends.get(kind)
            recorder.backend = backend
            stack.enter_context(backends.use(kind, recorder.tap(backend)))
        values = {name: recorder.declare(Kind.INPUT, tensor) for name, tensor in inputs.items()}
        state = _declare_state(recorder, model)
        positional = [tensor for name, tensor in inputs.items() if name not in keywords]
        with recorder.functions():
            result = model(*positional, **{name: inputs[name] for name in keywords})
        results = named_tensors(result)
        outputs = {name: recorder.place(tensor) for name, tensor in results.items()}
    assert not any(isinstance(call, Region) for call in recorder.calls)
    calls = [call for call in recorder.calls if isinstance(call, Call)]
    found = {name: value for name, value in outputs.items() if isinstance(value, Value)}
    return Trace(calls, values, found, state, recorder.given, recorder.dtypes, results)


def results_of(call: Call) -> tuple[Value | None, ...]:
    """The results of a call, by position."""
    results = call.results
    return (results,) if results is None or isinstance(results, Value) else results


def _declare_state(recorder: Recorder, model: Module) -> dict[int, str]:
    names: dict[int, str] = {}
    for kind, named in (
        (Kind.PARAMETER, model.named_parameters()),
        (Kind.BUFFER, model.named_buffers()),
    ):
        for name, tensor in named:
            if recorder.value_of(tensor) is None:
                names[recorder.declare(kind, tensor).number] = name
    return names


@contextlib.contextmanager
def _in_eval_mode(model: Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def named_tensors(result: object, name: str = "output") -> Named:
    """The tensors in what a model returned: an entry of a dictionary by its key, several others by their places."""
    if isinstance(result, Tensor):
        return {name: result}
    found: Named = {}
    if isinstance(result, Mapping):
        for key, part in result.items():
            found |= named_tensors(part, str(key) if name == "output" else f"{name}_{key}")
    elif isinstance(result, list | tuple):
        fields = getattr(result, "_fields", None)
        for index, part in enumerate(result):
            inner = f"{name}_{index}" if fields is None else str(fields[index])
            found |= named_tensors(part, inner if len(result) > 1 else name)
    return found
