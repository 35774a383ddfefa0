"""checkpoint: a part of the forward pass that keeps its inputs only, and runs again in the backward pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar, cast

from genesis.autograd.context import Context
from genesis.autograd.function import ArrayFunction
from genesis.autograd.graph import Edge, Node, Variable
from genesis.autograd.modes import enable_grad, repeated, state, with_autocast
from genesis.autograd.walk import grad
from genesis.errors import GraphError
from genesis.ndarray import CPU, Device, NDArray, random
from genesis.records import RandomStream

if TYPE_CHECKING:
    from genesis.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def checkpointed(preserve_rng: bool, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """function(*args, **kwargs), of whose graph only one node remains: its backward makes the graph again.

    The node's inputs are what the graph was grown on: leaves, parameters among them, and results of earlier calls.
    """
    if not state.recording or state.observer is not None:  # who watches the calls sees them all
        return function(*args, **kwargs)
    segment = _Segment(functools.partial(function, *args, **kwargs), (args, kwargs), preserve_rng)
    result = segment.run()
    roots, inputs = segment.outputs(result), segment.inputs(result)
    if not roots:
        return result
    made = _Checkpoint.apply(segment, *inputs, roots=tuple(root.array for root in roots))
    for root, standing in zip(roots, made, strict=True):
        root._take_place_of(standing)
        root._base = root._viewed_at = None  # which would hold the graph
    return result


class _Segment(Generic[R]):
    """A call with its arguments, and all that it depends on besides."""

    def __init__(self, call: Callable[[], R], arguments: object, preserve_rng: bool) -> None:
        self.call, self.arguments = call, arguments
        self.autocast = state.autocast
        devices = {CPU, *(tensor.array.device for tensor in _tensors(arguments))} if preserve_rng else ()
        self.generators = {device: _forked(device) for device in devices}
        self.first = 0  # number of the first node of the latest run

    def run(self) -> R:
        self.first = Node.next_number()
        return self.call()

    def run_again(self) -> R:
        """Run with the random numbers and the autocast of the first time."""
        with contextlib.ExitStack() as generators, enable_grad(), with_autocast(self.autocast):
            for device, first in self.generators.items():
                with random.drawing_from(first, device):
                    again = _forked(device)  # it may run a third time
                generators.enter_context(random.drawing_from(again, device))
            return self.run()

    def outputs(self, result: object) -> list[Variable]:
        """The tensors in a result that this call's graph has made."""
        found: dict[int, Variable] = {}
        for tensor in _tensors(result):
            node = tensor.grad_fn
            if node is not None and node.number >= self.first:
                found[id(tensor)] = tensor
        return list(found.values())

    def nodes(self, result: object) -> list[Node]:
        found: dict[Node, None] = {}
        pending = [output._node for output in self.outputs(result)]
        while pending:
            node = pending.pop()
            if node is not None and node.number >= self.first and node not in found:
                found[node] = None
                pending += [edge[0] for edge in node.edges if edge is not None and type(edge[0]) is Node]
        return sorted(found, key=lambda node: node.number)

    def inputs(self, result: object) -> list[Variable]:
        """Return what the graph was grown on, in the order of its nodes."""
        return [_standing_at(edge) for edge in self.edges_out(result).values()]

    def edges_out(self, result: object) -> dict[tuple[int, int], Edge]:
        found: dict[tuple[int, int], Edge] = {}
        for node in self.nodes(result):
            for edge in node.edges:
                if edge is not None and self.leads_out(edge):
                    found.setdefault((id(edge[0]), edge[1]), edge)
        return found

    def leads_out(self, edge: Edge) -> bool:
        return type(edge[0]) is not Node or edge[0].number < self.first

    def cut(self, result: object) -> list[Tensor]:
        """End the graph at new leaves in place of what it was grown on; these, in the order of inputs()."""
        outer = self.edges_out(result)
        leaves = {key: _leaf_for(edge) for key, edge in outer.items()}
        for node in self.nodes(result):
            node.edges = tuple(
                [
                    (leaves[id(edge[0]), edge[1]], 0) if edge is not None and self.leads_out(edge) else edge
                    for edge in node.edges
                ]
            )
        return list(leaves.values())


def _forked(device: Device) -> RandomStream:
    """A stream that goes on from where the device's generator stands, in replays of this run too."""
    stream = RandomStream()
    fork = random.drawing_as_here(random.fork)
    repeated(lambda arrays: fork(stream, device), [], [])
    return stream


class _Checkpoint(ArrayFunction):
    @staticmethod
    def forward(
        ctx: Context, segment: _Segment[object], *inputs: NDArray, roots: tuple[NDArray, ...]
    ) -> tuple[NDArray, ...]:  # fmt: skip
        ctx.segment = segment
        ctx.save(*(tensor.array for tensor in _tensors(segment.arguments)))  # which must stay as they are
        ctx.kinds = [(root.shape, root.dtype) for root in roots]
        return roots

    @staticmethod
    def backward(ctx: Context, *grads: NDArray | None) -> tuple[NDArray | None, ...]:
        ctx.saved  # noqa: B018  (raises if an argument has changed)
        segment: _Segment[object] = ctx.segment
        result = segment.run_again()
        roots = cast("list[Tensor]", segment.outputs(result))
        leaves = segment.cut(result)
        if ctx.kinds != [(root.array.shape, root.array.dtype) for root in roots] or len(leaves) != _num_inputs(ctx):
            raise GraphError("checkpoint: the function computed something else when it ran again for the gradient")
        wanted = [(root, grad) for root, grad in zip(roots, grads, strict=True) if grad is not None]
        given = [root._like(gradient) for root, gradient in wanted]
        found = grad([root for root, _ in wanted], leaves, given, allow_unused=True)
        return (None, *(None if each is None else each.array for each in found))


def _num_inputs(ctx: Context) -> int:
    return len(ctx.needs_input_grad) - 1


def _standing_at(edge: Edge) -> Variable:
    """A variable whose gradient goes where this edge leads."""
    target, index = edge
    if type(target) is not Node:
        return target
    variable = _leaf_for(edge)
    variable._node, variable._output_index = target, index
    return variable


def _leaf_for(edge: Edge) -> Tensor:
    """A leaf in the shape and dtype of what an edge leads to; its values don't matter."""
    target, index = edge
    if type(target) is Node:
        shape, dtype, device = target.outputs[index]
        kind = target.result_class
    else:
        leaf = target
        (shape, dtype, device), kind = (leaf.array.shape, leaf.array.dtype, leaf.array.device), leaf._result_class
    one = NDArray.full((), 0, dtype, device)
    leaf = kind(one.expand(shape))
    leaf._requires_grad = True
    return leaf


def _tensors(value: object) -> Iterator[Variable]:
    """The tensors in nested tuples, lists and dictionaries."""
    if isinstance(value, Variable):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
