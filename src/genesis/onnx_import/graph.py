"""The nodes of a file as plain Python values, in order, and the constants that they use."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from genesis.errors import CheckpointError
from genesis.onnx_import.reading import array_of, dtype_name
from genesis.onnx_import.registry import Array, Node, NotImportableError, entry_of

if TYPE_CHECKING:
    import onnx_ir as ir

_SHOWN = 4  # nodes that an error names of each op


class Described(NamedTuple):
    """An input of a network: a size that varies is a name, or None."""

    name: str
    shape: tuple[int | str | None, ...] | None  # None: of any rank
    dtype: str

    def __str__(self) -> str:
        if self.shape is None:
            return self.dtype
        return f"{self.dtype} ({', '.join('?' if size is None else str(size) for size in self.shape)})"


@dataclasses.dataclass(eq=False)
class Network:
    """A graph whose nodes are in the order of execution; names that stand for the same value are one.

    Attributes:
        constants: by name, in the file's order; weights are those that the file names as such.
        outputs: by name, the name of the value that each one is.
    """

    inputs: list[Described]
    outputs: dict[str, str]
    nodes: list[Node]
    constants: dict[str, Array]
    weights: set[str]
    metadata: dict[str, str]


def network_of(model: ir.Model, path: Path) -> Network:
    """Raises: NotImportableError: an op is not in the table. CheckpointError: the graph is damaged."""
    graph = model.graph
    opset = graph.opset_imports[""]
    _require_known_ops(model, path)
    constants = {}
    for name, value in graph.initializers.items():
        if value.const_value is None:
            raise CheckpointError(f"{path}: the weight '{name}' has no elements")
        constants[name] = array_of(value.const_value, path, name)
    inputs = [_described(value, path) for value in graph.inputs if value.name not in constants]
    network = Network(inputs, {}, [], constants, set(constants), dict(model.metadata_props))
    same = {each.name: each.name for each in inputs} | {name: name for name in constants}
    for index, node in enumerate(graph):
        made = _node(node, index, opset, path)
        missing = [name for name in made.inputs if name and name not in same]
        if missing:
            raise CheckpointError(f"{path}: {made.name}: nothing before it makes its input '{missing[0]}'")
        taken = [name for name in made.outputs if name in same]
        if taken or len(set(made.outputs) - {""}) != len([name for name in made.outputs if name]):
            raise CheckpointError(f"{path}: {made.name}: another value has the name of its result: {made.outputs}")
        made = made._replace(inputs=tuple([same.get(name, "") for name in made.inputs]))
        same |= {name: name for name in made.outputs if name}
        if made.op == "Constant":
            constants[made.outputs[0]] = _constant(made, path)
        elif made.op in ("Identity", "Dropout") and made.inputs and not any(made.outputs[1:]):
            same[made.outputs[0]] = made.inputs[0]
        else:
            network.nodes.append(made)
    for value in graph.outputs:
        if value.name not in same:
            raise CheckpointError(f"{path}: nothing makes the output '{value.name}'")
        network.outputs[value.name] = same[value.name]
    return network


def _require_known_ops(model: ir.Model, path: Path) -> None:
    missing: dict[str, list[str]] = {}
    for index, node in enumerate(model.graph):
        op = _op_name(node)
        if op not in ("Constant", "Identity", "Dropout") and entry_of(op) is None:
            missing.setdefault(op, []).append(_label(node, index))
    if missing:
        told = []
        for op, nodes in sorted(missing.items()):
            more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
            told.append(f"{op} ({', '.join(nodes[:_SHOWN])}{more})")
        raise NotImportableError(f"{path}: ops that Genesis does not import: {'; '.join(told)}")


def _op_name(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


def _label(node: ir.Node, index: int) -> str:
    return node.name or f"node {index}"


def _described(value: ir.Value, path: Path) -> Described:
    if value.dtype is None:
        raise CheckpointError(f"{path}: expected a tensor as input '{value.name}', got {value.type}")
    sizes = None if value.shape is None else tuple(
        size if isinstance(size, int) else (None if size.value is None else str(size.value)) for size in value.shape
    )  # fmt: skip
    return Described(str(value.name), sizes, dtype_name(value.dtype, path, str(value.name)))


def _node(node: ir.Node, index: int, opset: int, path: Path) -> Node:
    label = _label(node, index)
    inputs = tuple(["" if value is None else str(value.name) for value in node.inputs])
    outputs = tuple([str(value.name or "") for value in node.outputs])
    if not outputs or not outputs[0]:
        raise CheckpointError(f"{path}: {label}: expected a name of its result")
    attributes = {name: _plain(attribute, label, path) for name, attribute in node.attributes.items()}
    return Node(_op_name(node), label, inputs, outputs, attributes, opset)


def _plain(attribute: ir.Attr, label: str, path: Path) -> object:
    """An attribute as a Python value."""
    import onnx_ir as ir

    if not isinstance(attribute, ir.Attr) or attribute.is_ref():
        raise CheckpointError(f"{path}: {label}: expected a value of its attribute '{attribute.name}'")
    kind, value = attribute.type.name, attribute.value
    if kind == "TENSOR":
        return array_of(value, path, label)
    if kind in ("INT", "FLOAT", "STRING"):
        return value
    if kind in ("INTS", "FLOATS", "STRINGS"):
        return tuple(value)
    raise CheckpointError(f"{path}: {label}: expected numbers, text or a tensor as '{attribute.name}', got {kind}")


def _constant(node: Node, path: Path) -> Array:
    import numpy as np

    kinds = {
        "value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
    }  # fmt: skip
    for name, value in node.attributes.items():
        if name == "value" and isinstance(value, np.ndarray):
            return value
        if name in kinds:
            return np.array(value, kinds[name])
    raise CheckpointError(f"{path}: {node.name}: expected a tensor or numbers, got {', '.join(node.attributes)}")
