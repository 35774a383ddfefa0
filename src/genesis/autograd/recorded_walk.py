"""The walk backwards with create_graph: gradients are tensors, and what computes them is recorded.

Rules give a function's gradients as tensors, by its class; genesis.functional.second_order has them. A function of
users on tensors needs none: its backward is recorded as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from genesis import callsite
from genesis.autograd.anomaly import require_no_nan
from genesis.autograd.complex_forms import require_form
from genesis.autograd.context import Context, Differentiable
from genesis.autograd.graph import Edge, Node, Variable, edge_to
from genesis.autograd.modes import enable_grad, unrecordable
from genesis.autograd.paths import NUMBER, leading_to, reachable
from genesis.errors import GraphError
from genesis.ndarray import NDArray

if TYPE_CHECKING:
    from genesis.tensor import Tensor

Other = TypeVar("Other", bool, int, float, None)  # in the place of an array


class Recorded:
    """A node as a rule sees it: the values of its call, in the places in the graph that they have."""

    def __init__(self, node: Node, ctx: Context) -> None:
        self.node, self.ctx = node, ctx
        self.function = node.function
        self.needs = ctx.needs_input_grad
        self.kwargs = ctx.kwargs

    @property
    def saved(self) -> tuple[Any, ...]:
        """The saved values, as arrays."""
        return self.ctx.saved_tensors

    def constant(self, array: NDArray) -> Tensor:
        """An array without a place in the graph."""
        return self.node.result_class(array)

    @overload
    def input(self, index: int, array: NDArray) -> Tensor: ...
    @overload
    def input(self, index: int, array: Other) -> Other: ...
    def input(self, index: int, array: NDArray | Other) -> Tensor | Other:
        """The values of the argument at index, which may be numbers or None, in its place."""
        if not isinstance(array, NDArray):
            return array
        edge, tensor = self.node.edges[index], self.constant(array)
        if edge is None:
            return tensor
        target, place = edge
        if type(target) is not Node:
            if target.array is array:
                return target
            ctx = Context()
            ctx.needs_input_grad = (True,)
            target, place = Node(Same, ctx, (target,), (tensor,)), 0
        return _placed(tensor, target, place)

    def output(self, array: NDArray, index: int = 0) -> Tensor:
        """The values of an output, in its place."""
        return _placed(self.constant(array), self.node, index)

    def made_of(self, array: NDArray, function: type[Differentiable], *indices: int, **notes: object) -> Tensor:
        """Values that function made of the arguments at these indices; its backward finds notes in its context."""
        tensor = self.constant(array)
        args = [self.input(index, array) for index in indices]
        ctx = Context()
        ctx.needs_input_grad = tuple([arg.requires_grad for arg in args])
        vars(ctx).update(notes)
        return _placed(tensor, Node(function, ctx, args, (tensor,)), 0) if any(ctx.needs_input_grad) else tensor


class Same(Differentiable):
    """The function of a tensor with the values of another one."""

    on_arrays = True

    @staticmethod
    def backward(ctx: Context, grad: NDArray) -> NDArray:
        return grad


Rule = Callable[..., Any]  # of a Recorded and the gradients of the outputs: the gradient of each argument, or None
RULES: dict[type[Differentiable], Rule] = {Same: lambda call, grad: grad}


def run(
    seeds: Sequence[tuple[Tensor, Tensor]], retain_graph: bool, wanted: Sequence[Tensor] | None = None
) -> list[Tensor | None]:
    """Run the graph backwards from seeds (variable, its gradient); without wanted, leaves accumulate.

    Args:
        seeds: tensors and gradients of their shapes.
        retain_graph: keep the saved values.
        wanted: tensors whose gradients are returned.
    Returns: the gradients of wanted; None for those without a part.
    """
    unrecordable("differentiates gradients")
    nodes = reachable(variable._node for variable, _ in seeds)
    targets = None if wanted is None else [edge_to(variable) for variable in wanted]
    if targets is not None:
        nodes = leading_to(nodes, targets)
    asked = {id(target) for target, _ in targets or ()}
    sums: dict[tuple[int, int], Tensor] = {}
    leaves: dict[int, Tensor] = {}

    def deliver(edge: Edge, grad: Tensor) -> None:
        target, index = edge
        key = (id(target), index)
        sums[key] = grad if key not in sums else sums[key] + grad
        if type(target) is not Node:
            leaves[id(target)] = target

    with enable_grad():
        for variable, seed in seeds:
            deliver(edge_to(variable), seed)
        for node in sorted(nodes, key=NUMBER, reverse=True):
            grads = [_after_hooks(node, index, sums) for index in range(len(node.outputs))]
            edges: Sequence[Edge | None] = node.edges
            if targets is not None:
                edges = [edge if edge and (id(edge[0]) in asked or edge[0] in nodes) else None for edge in edges]
            if any(edges) and any(grad is not None for grad in grads):
                for edge, grad in zip(edges, _input_grads(node, grads, retain_graph), strict=True):
                    if edge is not None and grad is not None:
                        deliver(edge, _fitted(grad, edge, node.function))
        for leaf in leaves.values():
            total = sums[id(leaf), 0]
            for hook in tuple(leaf._hooks):
                total = _replaced(hook(total), total)
            sums[id(leaf), 0] = total
            if targets is None and leaf._requires_grad:
                accumulate(leaf, total)
    return [] if targets is None else [sums.get((id(target), index)) for target, index in targets]


def accumulate(variable: Tensor, grad: Tensor) -> None:
    """Add a gradient with its graph to that of a leaf.

    Args:
        variable: the leaf.
        grad: of its shape.
    """
    variable.grad = grad if variable.grad is None else variable.grad + grad
    for hook in tuple(variable._post_accumulate_hooks):
        hook(variable)


def _after_hooks(node: Node, index: int, sums: dict[tuple[int, int], Tensor]) -> Tensor | None:
    total = sums.get((id(node), index))
    if total is None:
        return None
    for hook in tuple(node.hooks.get(index, ())):
        total = _replaced(hook(total), total)
    sums[id(node), index] = total
    kept = node.retained[index]() if index in node.retained else None
    if kept is not None:
        accumulate(cast("Tensor", kept), total)
    return total


def _replaced(new: Tensor | None, old: Tensor) -> Tensor:
    return old if new is None else new


def _input_grads(node: Node, grads: list[Tensor | None], retain_graph: bool) -> Sequence[Tensor | None]:
    """The gradient of each argument, with its graph."""
    ctx, function = node.ctx, node.function
    if ctx is None:
        raise GraphError(
            f"backward: the graph was freed when it ran the first time (at {function.__name__}); "
            "pass retain_graph=True there to run it again"
        )
    if len(grads) > 1 and ctx._materializes_grads:
        grads = [
            node.result_class(NDArray.full(shape, 0, dtype, device))
            if grad is None and dtype.is_differentiable
            else grad
            for grad, (shape, dtype, device) in zip(grads, node.outputs, strict=True)
        ]
    call = Recorded(node, ctx)
    if not function.on_arrays:
        results = function.backward(_with_places(call), *ctx._by_output(grads))
    elif function in RULES:
        results = RULES[function](call, *grads)
    else:
        raise NotImplementedError(
            f"{function.__name__}: create_graph=True is not supported, as this op has no gradient of its gradient"
        )
    results = results if isinstance(results, tuple) else (results,)
    num_edges = len(node.edges)
    if len(results) > num_edges and all(result is None for result in results[num_edges:]):
        results = results[:num_edges]
    if len(results) != num_edges:
        raise GraphError(f"{function.__name__}.backward: expected {num_edges} gradients, got {len(results)}")
    if callsite.anomaly == (True, True):
        require_no_nan(function, node.line, [grad.array if isinstance(grad, Variable) else None for grad in results])
    if ctx._saved and not retain_graph:
        node.ctx = None
    return results


def _with_places(call: Recorded) -> Context:
    """The context of a function of users, whose saved arguments and outputs are in their places in the graph."""
    placed = []
    for value, role in zip(call.saved, call.ctx._roles, strict=True):
        if role is None or not isinstance(value, Variable):
            placed.append(value)
        else:
            placed.append(call.input(role, value.array) if role >= 0 else call.output(value.array, -1 - role))
    twin = type(call.ctx)()
    vars(twin).update(vars(call.ctx))
    twin._saved = tuple(placed)
    return twin


def _placed(tensor: Tensor, node: Node, index: int) -> Tensor:
    tensor._requires_grad, tensor._node, tensor._output_index = True, node, index
    return tensor


def _fitted(grad: Tensor, edge: Edge, source: type[Differentiable]) -> Tensor:
    """The gradient that source gave in the shape and dtype that edge wants, summed where an argument was broadcast."""
    target, index = edge
    if type(target) is Node:
        shape, dtype, _ = target.outputs[index]
    else:
        shape, dtype = target.array.shape, target.array.dtype
    if grad.shape != shape:
        lead = grad.ndim - len(shape)
        dims = [dim for dim, size in enumerate(grad.shape) if dim < lead or size != shape[dim - lead]]
        grad = (grad.sum(dims) if dims else grad).reshape(shape)
    if grad.dtype is dtype:
        return grad
    if dtype.is_complex:
        require_form(source)
    return (grad.real if grad.dtype.is_complex and not dtype.is_complex else grad).to(dtype)
