"""A recorded run as a graph: the steps of its program, translated one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from genesis import backends, dtypes
from genesis.export import ops_views
from genesis.export.graph import Array, Emitter, Graph, Operand, Result, element_type, numpy_dtype
from genesis.export.program import Contents, Program, Step
from genesis.export.registry import NotExportableError, translation_of
from genesis.export.sizes import Runs, Size
from genesis.export.tracing import results_of
from genesis.ndarray import NDArray
from genesis.recording import Call, Value
from genesis.records import rebuilt
from genesis.tensor import Tensor

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclasses.dataclass(eq=False)
class Converted:
    """A graph with its inputs and outputs, by name."""

    graph: Graph
    inputs: dict[str, ir.Value]
    outputs: dict[str, ir.Value]


def convert(runs: Runs, opset: int, symbols: Mapping[Size, str]) -> Converted:
    """Raises: NotExportableError: something has no translation; the message has the op and the user's line."""
    return _Converter(runs, opset, symbols).convert()


class _Converter:
    def __init__(self, runs: Runs, opset: int, symbols: Mapping[Size, str]) -> None:
        self._runs, self._symbols = runs, symbols
        self._graph = Graph(opset)
        self._operands: dict[Contents, Operand] = {}
        self._inputs: dict[str, ir.Value] = {}

    def convert(self) -> Converted:
        import onnx_ir as ir

        first = self._runs.first
        program = Program(self._runs)
        for name in first.outputs:
            self._graph.names.add(name)
        for name, value in first.inputs.items():
            made = self._inputs[name] = ir.val(self._graph.unique(name))
            self._describe(made, value)
            self._define(value.contents, made)
        for step in program.steps(first.outputs.values()):
            if step.contents not in self._operands:
                self._take(step)
        outputs = {}
        for name, value in first.outputs.items():
            emitter = Emitter(self._graph, "output", "", ())
            outputs[name] = emitter.op("Identity", self._operands[value.contents])
            outputs[name].name = name
            self._describe(outputs[name], value)
        _bypass_identities(self._graph, outputs)
        return Converted(self._graph, self._inputs, outputs)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _take(self, step: Step) -> None:
        if step.kind == "given":
            self._operands[step.contents] = self._given(step.contents)
            return
        assert step.call is not None
        sources = {number: self._operands[contents] for number, contents in step.sources.items()}
        if step.kind == "change":
            self._define(step.contents, self._changed(step.call, step.contents, sources))
        elif step.kind == "write back":
            self._define(step.contents, self._written_back(step, sources))
        else:
            self._called(step, sources)

    def _called(self, step: Step, sources: Mapping[int, Operand]) -> None:
        call = step.call
        assert call is not None
        emitter = self._emitter(call)
        results = self._translated(call, emitter, sources)
        version_shift = step.contents[1] - next(
            value.version for value in call.outputs if value.number == step.contents[0]
        )
        for value, result in zip(results_of(call), results, strict=False):
            if value is not None and result is not None:
                self._define((value.number, value.version + version_shift), result)

    def _translated(self, call: Call, emitter: Emitter, sources: Mapping[int, Operand]) -> tuple[ir.Value, ...]:
        translation = translation_of(call)
        assert translation is not None
        args = [_placed(arg, sources) for arg in call.args]
        kwargs = {name: _placed(arg, sources) for name, arg in call.kwargs.items()}
        try:
            made = translation(emitter, *args, **kwargs)
        except TypeError as error:  # a Size is no number
            if "Size" in str(error):
                raise emitter.refused_size("a number that the file would have to fix") from error
            raise
        results = made if isinstance(made, tuple) else (made,)
        return tuple([each.value if isinstance(each, Operand) else each for each in results])

    def _changed(self, call: Call, contents: Contents, sources: Mapping[int, Operand]) -> ir.Value:
        """Return the new contents of the value that a call in place changes."""
        old = next((sources[number] for number in sources if number == contents[0]), None)
        emitter = Emitter(self._graph, call.op, call.line, (self._result(contents[0]),))
        if translation_of(call) is None:
            raise emitter.refuse("has no translation to ONNX")
        assert old is not None
        return self._translated(call, emitter, sources)[0]

    def _written_back(self, step: Step, sources: Mapping[int, Operand]) -> ir.Value:
        call = step.call
        assert call is not None
        old, new = sources.values()
        emitter = Emitter(self._graph, call.op, call.line, (self._result(step.contents[0]),))
        view = list(step.sources)[1]
        index = next(i for i, value in enumerate(results_of(call)) if value is not None and value.number == view)
        args = [_placed(arg, sources) if not isinstance(arg, Value) else None for arg in call.args[1:]]
        kwargs = {name: _placed(arg, sources) for name, arg in call.kwargs.items()}
        return ops_views.write_back(emitter, call.op, old, new, index, args, kwargs)

    # --- values -------------------------------------------------------------------------------------------------------

    def _given(self, contents: Contents) -> Operand:
        number = contents[0]
        first = self._runs.first
        held = first.given.get(number)
        if held is None:
            raise NotExportableError("a tensor is used whose origin was not recorded")
        array = elements(held, first.dtypes[number])
        name = first.state.get(number)
        value = self._graph.constant(array) if name is None else self._graph.initializer(array, name)
        return Operand(value, tuple(array.shape), first.dtypes[number])

    def _define(self, contents: Contents, value: ir.Value) -> None:
        shape, dtype = self._result(contents[0])
        self._graph.note_sizes(value, shape)
        self._operands[contents] = Operand(value, shape, dtype)

    def _result(self, number: int) -> Result:
        return Result(self._runs.shapes[number], self._runs.first.dtypes[number])

    def _emitter(self, call: Call) -> Emitter:
        return Emitter(self._graph, call.op, call.line, [self._result(value.number) for value in call.outputs])

    def _describe(self, value: ir.Value, recorded: Value) -> None:
        """Give an input or output its type and shape."""
        import onnx_ir as ir

        shape, dtype = self._result(recorded.number)
        value.type = ir.TensorType(element_type(dtype))
        dims: list[int | str | None] = []
        for axis, dim in enumerate(shape):
            named = self._symbols.get(dim, f"{value.name}_dim_{axis}") if isinstance(dim, Size) else dim
            dims.append(named)
        value.shape = ir.Shape(dims)


def elements(held: object, dtype: dtypes.DType) -> Array:
    """The elements of a tensor, an array or a handle."""
    if isinstance(held, Tensor):
        held = held.array
    if isinstance(held, NDArray):
        held = held.handle
    kind = "cpu" if type(held).__module__.partition(".")[0] == "torch" else "cuda"
    array: Array = np.asarray(backends.get(kind).to_cpu(held))
    return array.view(numpy_dtype(dtype)) if dtype is dtypes.bfloat16 else array


def _placed(arg: object, sources: Mapping[int, Operand]) -> object:
    """An argument with operands in the places of values."""
    if isinstance(arg, Value):
        return sources[arg.number]
    if isinstance(arg, list | tuple):
        placed = [_placed(part, sources) for part in arg]
        if all(new is old for new, old in zip(placed, arg, strict=True)):
            return arg
        return rebuilt(arg, placed)
    return arg


def _bypass_identities(graph: Graph, outputs: dict[str, ir.Value]) -> None:
    """Give an output's name to the node that computes it, where nothing else asks for that value."""
    inside = {id(node) for node in graph.nodes}
    for name, output in outputs.items():
        identity = output.producer()
        assert identity is not None
        source = identity.inputs[0]
        producer = None if source is None else source.producer()
        alone = source is not None and len(source.uses()) == 1
        if producer is None or source is None or not alone or id(producer) not in inside:
            continue
        source.name, source.type, source.shape = name, output.type, output.shape
        identity.replace_input_with(0, None)
        graph.nodes.remove(identity)
        outputs[name] = source
