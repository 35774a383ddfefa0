"""The writer of a translation: nodes, constants, casts, sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from genesis import dtypes
from genesis.dtypes import DType, Number
from genesis.export.registry import NotExportableError
from genesis.export.sizes import DependsOnSizeError, Dim, Shape, Size

if TYPE_CHECKING:
    import onnx_ir as ir

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.generic[bool | int | float]]]"
Attribute: TypeAlias = "int | float | str | Sequence[int]"


class Operand(NamedTuple):
    """An array of the model as an ONNX value, with what the recording knows of it."""

    value: ir.Value
    shape: Shape
    dtype: DType

    @property
    def ndim(self) -> int:
        return len(self.shape)


Input: TypeAlias = "Operand | ir.Value | None"


def element_type(dtype: DType) -> ir.DataType:
    import onnx_ir as ir

    return ir.DataType[{"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype.name, dtype.name.upper())]


class Graph:
    """The nodes and constants of a graph as it grows."""

    def __init__(self, opset: int) -> None:
        self.opset = opset
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.names: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._sizes: list[tuple[Size, ir.Value, int]] = []  # dynamic dims, and of which dimension of what they are
        self._known: dict[Size, ir.Value] = {}

    def unique(self, name: str) -> str:
        """name, or with a number behind it where it is taken."""
        found, number = name, 0
        while found in self.names:
            number += 1
            found = f"{name}_{number}"
        self.names.add(found)
        return found

    def initializer(self, array: Array, name: str) -> ir.Value:
        import onnx_ir as ir

        name = self.unique(name)
        value = ir.val(name, const_value=ir.tensor(array, name=name))
        self.initializers[name] = value
        return value

    def constant(self, array: Array) -> ir.Value:
        """A small constant; equal ones are one."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer(array, "constant")
        return self._constants[key]

    def note_sizes(self, value: ir.Value, shape: Shape) -> None:
        """From now on, the dynamic sizes of this value can be asked for."""
        known = {size for size, _, _ in self._sizes}
        self._sizes += [
            (dim, value, axis) for axis, dim in enumerate(shape) if isinstance(dim, Size) and dim not in known
        ]

    def size(self, size: Size, emitter: Emitter) -> ir.Value:
        """A size as a tensor of one int64."""
        if size not in self._known:
            found = self._said(size, emitter)
            if found is None:
                raise emitter.refused_size(f"a number that was {size} in runs of different sizes")
            self._known[size] = found
        return self._known[size]

    def _said(self, size: Size, emitter: Emitter) -> ir.Value | None:
        """The size by those of tensors: one of them, one times or plus a constant, or a product of two or three."""
        for known, value, axis in self._sizes:
            if known == size:
                return emitter.op("Shape", value, start=axis, end=axis + 1)
        sizes = [known for known, _, _ in self._sizes]
        for known in sizes:
            ratio = size.over(known)
            if ratio is not None and (ratio.denominator == 1 or ratio.numerator == 1):
                kind, factor = ("Mul", ratio.numerator) if ratio.denominator == 1 else ("Div", ratio.denominator)
                return emitter.op(kind, self.size(known, emitter), emitter.ints([factor]))
        for known in sizes:
            difference = size.minus(known)
            if difference is not None:
                return emitter.op("Add", self.size(known, emitter), emitter.ints([difference]))
        for index, known in enumerate(sizes):
            for other in sizes[index:]:
                ratio = size.over(known.times(other))
                if ratio is not None and ratio.denominator == 1:
                    product = emitter.op("Mul", self.size(known, emitter), self.size(other, emitter))
                    return emitter.op("Mul", product, emitter.ints([ratio.numerator]))
        return None


class Result(NamedTuple):
    """Shape and dtype of a result, from the recording."""

    shape: Shape
    dtype: DType


class Emitter:
    """The writer of one call's translation.

    Attributes:
        opset: of the file.
        results: shape and dtype of each result.
    """

    def __init__(self, graph: Graph, op: str, line: str, results: Sequence[Result]) -> None:
        self.graph, self.opset, self.results = graph, graph.opset, tuple(results)
        self._op, self._line = op, line

    # --- nodes --------------------------------------------------------------------------------------------------------

    def op(self, kind: str, *inputs: Input, **attributes: Attribute) -> ir.Value:
        """The result of a new node."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, num_outputs: int, *inputs: Input, **attributes: Attribute) -> tuple[ir.Value, ...]:
        """The results of a new node that has several."""
        import onnx_ir as ir

        values = [each.value if isinstance(each, Operand) else each for each in inputs]
        while values and values[-1] is None:
            values.pop()
        node = ir.node(kind, values, attributes, num_outputs=num_outputs)
        node.name = self.graph.unique(kind)
        for output in node.outputs:
            output.name = self.graph.unique(kind.lower())
        self.graph.nodes.append(node)
        return tuple(node.outputs)

    # --- constants ----------------------------------------------------------------------------------------------------

    def ints(self, numbers: Sequence[int]) -> ir.Value:
        """A constant of int64 with one dimension."""
        return self.graph.constant(np.array(numbers, np.int64))

    def number(self, value: Number, dtype: DType, shape: tuple[int, ...] = ()) -> ir.Value:
        """A constant with this number everywhere."""
        return self.graph.constant(np.full(shape, value, numpy_dtype(dtype)))

    def array(self, array: Array) -> ir.Value:
        return self.graph.constant(array)

    # --- arrays -------------------------------------------------------------------------------------------------------

    @property
    def dtype(self) -> DType:
        """The dtype of the first result."""
        return self.results[0].dtype

    @property
    def shape(self) -> Shape:
        """The shape of the first result."""
        return self.results[0].shape

    def cast(self, x: Operand | Number, dtype: DType) -> ir.Value:
        """x in this dtype; a number becomes a constant."""
        if not isinstance(x, Operand):
            if isinstance(x, Size):
                return self.convert(self.op("Squeeze", self.size(x), self.ints([0])), dtype)
            return self.number(x, dtype)
        return x.value if x.dtype is dtype else self.convert(x.value, dtype)

    def convert(self, value: ir.Value, dtype: DType) -> ir.Value:
        if dtype.is_complex:
            raise self.refuse(f"no translation to {dtype.name}, which ONNX Runtime lacks")
        return self.op("Cast", value, to=int(element_type(dtype)))

    # --- sizes --------------------------------------------------------------------------------------------------------

    def size(self, dim: Dim) -> ir.Value:
        """A size as a tensor of one int64."""
        return self.graph.size(dim, self) if isinstance(dim, Size) else self.ints([dim])

    def sizes(self, shape: Shape) -> ir.Value:
        """A shape as a tensor of int64."""
        if not any(isinstance(dim, Size) for dim in shape):
            return self.ints([dim for dim in shape if isinstance(dim, int)])
        parts = [self.size(dim) for dim in shape]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def fixed(self, dim: Dim, what: str = "a size") -> int:
        """dim, which may not be dynamic here."""
        if isinstance(dim, Size):
            raise self.refused_size(f"{what} that was {dim} in runs of different sizes")
        return dim

    def count(self, shape: Shape, dtype: DType) -> ir.Value:
        """The number of elements, as a 0-d tensor of this dtype."""
        numel = math.prod(dim for dim in shape if isinstance(dim, int))
        dynamic = [dim for dim in shape if isinstance(dim, Size)]
        if not dynamic:
            return self.number(numel, dtype)
        product = self.op("ReduceProd", self.sizes((numel, *dynamic)), keepdims=0)
        return self.convert(product, dtype)

    # --- refusals -----------------------------------------------------------------------------------------------------

    def refuse(self, reason: str) -> NotExportableError:
        """The error that says that this call cannot be exported."""
        return NotExportableError(f"{self._op}: {reason} ({self._line})")

    def refused_size(self, reason: str) -> DependsOnSizeError:
        """The error that says that this call depends on a dynamic size in a way that cannot be said."""
        return DependsOnSizeError(f"{self._op}: depends on dynamic sizes: {reason} ({self._line})")


def numpy_dtype(dtype: DType) -> np.dtype[np.generic[bool | int | float]]:
    if dtype is dtypes.bfloat16:
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype.name)
