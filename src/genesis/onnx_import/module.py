"""The module that runs the nodes of an ONNX file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import genesis
from genesis import nn
from genesis.errors import DTypeError, ShapeError, describe
from genesis.ndarray import Device
from genesis.onnx_import.graph import Described, Network
from genesis.onnx_import.registry import MOST_ON_HOST, Array, Entry, Node, Value, entry_of, require_room
from genesis.onnx_import.weights import attribute_names, roles_of
from genesis.tensor import Tensor


class Task(NamedTuple):
    """A node, what computes it, and the values that nobody needs after it."""

    node: Node
    entry: Entry
    done: tuple[str, ...]


class OnnxModule(nn.Module):
    """The network of an ONNX file. Made by `genesis.load_onnx`.

    Attributes:
        inputs: name, shape and dtype of each; a size that varies is a name or None.
        outputs: their names.
        metadata: the file's texts by name.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.inputs: tuple[Described, ...] = tuple(network.inputs)
        self.outputs: tuple[str, ...] = tuple(network.outputs)
        self.metadata = dict(network.metadata)
        self._results = dict(network.outputs)
        self._tasks = _tasks(network)
        roles = roles_of(network)
        self._host = roles.host
        self._paths: dict[str, tuple[str, ...]] = {}
        taken = {*dir(self), *self.__dict__}
        self._paths = attribute_names([*roles.parameters, *roles.buffers], taken)
        for name, array in roles.parameters.items():
            owner, leaf = self._owner(self._paths[name])
            owner.register_parameter(leaf, nn.Parameter(genesis.tensor(array)))
        for name, array in roles.buffers.items():
            owner, leaf = self._owner(self._paths[name])
            owner.register_buffer(leaf, genesis.tensor(array))
        self.eval()

    def forward(self, *args: Tensor, **named: Tensor) -> Tensor | dict[str, Tensor]:
        given = self._given(args, named)
        values: dict[str, Value] = {**self._host, **given}
        for name, path in self._paths.items():
            owner, leaf = self._owner(path)
            tensor = owner._parameters.get(leaf) if leaf in owner._parameters else owner._buffers.get(leaf)
            assert tensor is not None
            values[name] = tensor
        device = next(iter(given.values())).device if given else None
        for task in self._tasks:
            self._run(task, values, device)
        results = {name: _as_tensor(values[value], device) for name, value in self._results.items()}
        return results if len(results) > 1 else next(iter(results.values()))

    def extra_repr(self) -> str:
        inputs = ", ".join(f"{each.name}: {each}" for each in self.inputs)
        return f"{inputs} → {', '.join(self.outputs)}, {len(self._tasks)} nodes"

    def _run(self, task: Task, values: dict[str, Value], device: Device | None) -> None:
        node, entry, done = task
        operands = [values[name] if name else None for name in node.inputs]
        try:
            found = _computed(node, entry, operands, device)
            results = found if isinstance(found, tuple) else (found,)
            if any(node.outputs[len(results) :]):
                raise node.refuse(f"{len(node.outputs)} results")
        except (ValueError, TypeError, NotImplementedError, RuntimeError, IndexError) as error:
            error.add_note(f"in node '{node.name}' ({node.op}) of an ONNX file")
            raise
        values.update({name: value for name, value in zip(node.outputs, results, strict=False) if name})
        for name in done:
            del values[name]

    def _owner(self, path: tuple[str, ...]) -> tuple[nn.Module, str]:
        """The module that holds a weight, made where there is none, and the weight's name there."""
        owner: nn.Module = self
        for part in path[:-1]:
            inner = owner._modules.get(part)
            if inner is None:
                inner = nn.Module()
                owner._modules[part] = inner
            owner = inner
        return owner, path[-1]

    def _given(self, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inputs by name, each as the file describes it."""
        names = [each.name for each in self.inputs]
        given = dict(zip(names, args, strict=False)) | named
        if len(args) > len(names) or given.keys() != set(names) or len(given) < len(args) + len(named):
            got = f"{len(args)} and {sorted(named)}" if named else str(len(args))
            raise ValueError(describe("OnnxModule", "inputs", ", ".join(names) or "none", got))
        sizes: dict[str, int] = {}
        for described in self.inputs:
            _require(described, given[described.name], sizes)
        return given


def _tasks(network: Network) -> list[Task]:
    """The nodes that an output needs, each with the values that nobody needs after it."""
    needed, kept = set(network.outputs.values()), set(network.outputs.values())
    nodes = []
    for node in reversed(network.nodes):
        if needed & set(node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    tasks, later = [], set[str]()
    for node in nodes:
        node = node._replace(outputs=tuple([name if name in needed else "" for name in node.outputs]))
        made = {name for name in node.outputs if name}
        ends = ({name for name in node.inputs if name} - later) | (made - later)
        later.update(name for name in node.inputs if name)
        entry = entry_of(node.op)
        assert entry is not None
        tasks.append(Task(node, entry, tuple(sorted(ends - kept - network.constants.keys()))))
    return tasks[::-1]


def _computed(node: Node, entry: Entry, operands: list[Value | None], device: Device | None) -> object:
    """The results of a node: on the host where it can be, else on the device of its operands."""
    present = [operand for operand in operands if operand is not None]
    if entry.on_host is not None and all(isinstance(operand, np.ndarray) for operand in present):
        found = entry.on_host(node, *operands)
        for each in found if isinstance(found, tuple) else (found,):
            require_room(node, np.shape(each), MOST_ON_HOST)
        return found
    if entry.function is None:
        raise node.refuse("sizes that are tensors")
    device = next((operand.device for operand in present if isinstance(operand, Tensor)), device)
    placed = [
        _as_array(operand) if place in entry.host_inputs else _as_operand(operand, device)
        for place, operand in enumerate(operands)
    ]
    return entry.function(node, *placed)


def _as_array(value: Value | None) -> Array | None:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _as_operand(value: Value | None, device: Device | None) -> Tensor | None:
    return None if value is None else _as_tensor(value, device)


def _as_tensor(value: Value, device: Device | None) -> Tensor:
    return value if isinstance(value, Tensor) else genesis.tensor(value, device=device)


def _require(described: Described, tensor: object, sizes: dict[str, int]) -> None:
    """Raises: DTypeError, ShapeError: an input is not what the file describes."""
    name = described.name
    if not isinstance(tensor, Tensor):
        raise DTypeError(describe("OnnxModule", name, "a tensor", type(tensor).__name__))
    if (tensor.dtype.name == "int64") is not (described.dtype == "int64") and "int" in tensor.dtype.name:
        raise DTypeError(describe("OnnxModule", name, described, tensor.dtype.name))
    if described.shape is None:
        return
    fits = len(described.shape) == tensor.ndim
    for wanted, size in zip(described.shape, tensor.shape, strict=False):
        known = sizes.setdefault(wanted, size) if isinstance(wanted, str) else wanted
        fits = fits and known in (None, size)
    if not fits:
        raise ShapeError(describe("OnnxModule", name, described, f"shape {tuple(tensor.shape)}"))
