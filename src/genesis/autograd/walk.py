"""The walk backwards: from the gradient of a result to those of all it was made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Literal, TypeAlias, cast, overload

from genesis import callsite
from genesis.autograd import recorded_walk
from genesis.autograd.anomaly import require_no_nan
from genesis.autograd.graph import Edge, GradHook, Node, RepeatableHook, Variable, as_array, edge_to
from genesis.autograd.modes import no_grad, state, unrecordable
from genesis.autograd.paths import NUMBER, leading_to, reachable
from genesis.errors import DTypeError, GraphError, ShapeError, describe
from genesis.frames import in_room
from genesis.ndarray import NDArray

if TYPE_CHECKING:
    from genesis.tensor import Tensor

_NO_LINE = nullcontext()
_RUNS_HOOKS = "runs hooks of tensors"


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradient of self to `grad` of every leaf that self depends on (or only to those in inputs).

    Args:
        gradient: the gradient of self, in its shape; not needed for one element.
        retain_graph: keep the saved values, so that backward can run again.
        create_graph: record the gradients' own graph, so that they can be differentiated.
        inputs: tensors that alone accumulate; None for every leaf.
    Raises: GraphError: self doesn't require grad, backward ran before, or a saved value was changed in place.
        NotImplementedError: create_graph, where an op has no gradient of its gradient.

    Example:
        >>> x = genesis.tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).sum().backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
    """
    seeds = [(self, _seed("backward", self, gradient))]
    keeps = create_graph if retain_graph is None else retain_graph
    before = state.after_backward
    callbacks: list[Callable[[], None]] = []
    state.after_backward = callbacks
    try:
        if create_graph:
            in_room(_fill_recorded, [(self, _recorded_seed(gradient, self, seeds[0][1]))], keeps, inputs)
        else:
            in_room(_fill, seeds, keeps, inputs)
    finally:
        state.after_backward = before
    for callback in callbacks:
        callback()


def _fill(seeds: list[tuple[Tensor, NDArray]], keeps: bool, inputs: Tensors | None) -> None:
    """Add gradients to .grad: of all leaves, or of the inputs."""
    if inputs is None:
        _walk(seeds, keeps)
        return
    wanted = _listed(inputs)
    for variable, found in zip(wanted, _walk(seeds, keeps, wanted), strict=True):
        if found is not None:
            _accumulate(variable, found.clone())


def _fill_recorded(seeds: list[tuple[Tensor, Tensor]], keeps: bool, inputs: Tensors | None) -> None:
    """Like _fill, with gradients that have gradients."""
    recorded = recorded_walk.run(seeds, keeps, _optional(inputs))
    for variable, total in zip(_listed(inputs or ()), recorded, strict=True):
        if total is not None:
            recorded_walk.accumulate(variable, total)


Tensors: TypeAlias = "Tensor | Sequence[Tensor]"


def _require_only_inputs(deprecated: dict[str, bool]) -> None:
    if deprecated not in ({}, {"only_inputs": True}):
        raise TypeError(describe("grad", "only_inputs", "True, and no other argument", repr(deprecated)))


@overload
def grad(
    outputs: Tensors, inputs: Tensors, grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None, create_graph: bool = False, allow_unused: Literal[False] | None = None,
    is_grads_batched: bool = False, materialize_grads: bool = False, **deprecated: bool,
) -> tuple[Tensor, ...]: ...  # fmt: skip
@overload
def grad(
    outputs: Tensors, inputs: Tensors, grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None, create_graph: bool = False, allow_unused: bool | None = None,
    is_grads_batched: bool = False, materialize_grads: bool = False, **deprecated: bool,
) -> tuple[Tensor | None, ...]: ...  # fmt: skip
def grad(
    outputs: Tensors, inputs: Tensors, grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None, create_graph: bool = False, allow_unused: bool | None = None,
    is_grads_batched: bool = False, materialize_grads: bool = False, **deprecated: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The gradients of the sum of outputs with respect to inputs; no `.grad` changes.

    Args:
        outputs: a tensor or several, of any shapes.
        inputs: tensors that require grad.
        grad_outputs: the gradient of each output, in its shape; ones if None, for outputs of one element.
        retain_graph: keep the saved values, so that backward can run again.
        create_graph: record the gradients' own graph, so that they can be differentiated; retain_graph follows it.
        allow_unused: give None for an input that has no part in outputs.
        is_grads_batched: not supported; NotImplementedError.
        materialize_grads: give zeros for it.
        deprecated: only_inputs=True, which old scripts give.
    Returns: a gradient for each input, in its shape and dtype.
    Raises: GraphError: an input has no part in the outputs; allow_unused gives None then, materialize_grads zeros.
        NotImplementedError: create_graph, where an op has no gradient of its gradient.

    Example:
        >>> x = genesis.tensor(3.0, requires_grad=True)
        >>> genesis.autograd.grad(x * x, x)[0].item()
        6.0
    """
    _require_only_inputs(deprecated)
    if is_grads_batched:
        raise NotImplementedError("grad: is_grads_batched=True is not supported")
    results, wanted = _listed(outputs), _listed(inputs)
    for variable in wanted:
        if variable._base is not None:
            variable._refresh()
        if not variable.requires_grad:
            raise GraphError("grad: one of the inputs does not require grad")
    given = [grad_outputs] if isinstance(grad_outputs, Variable) else list(grad_outputs or [None] * len(results))
    if len(given) != len(results):
        raise ShapeError(describe("grad", "grad_outputs", f"{len(results)} gradients, one for each output", len(given)))
    seeds = [(output, _seed("grad", output, gradient)) for output, gradient in zip(results, given, strict=True)]
    keeps = create_graph if retain_graph is None else retain_graph
    found: Sequence[Tensor | None]
    if create_graph:
        recorded = [
            (output, _recorded_seed(gradient, output, seed))
            for (output, seed), gradient in zip(seeds, given, strict=True)
        ]
        found = recorded_walk.run(recorded, keeps, wanted)
    else:
        arrays = in_room(_walk, seeds, keeps, wanted)
        found = [None if array is None else x._like(array) for x, array in zip(wanted, arrays, strict=True)]
    gradients = []
    for variable, gradient in zip(wanted, found, strict=True):
        if gradient is None and materialize_grads:
            gradient = variable._like(variable.array.full_like(0))
        if gradient is None and not allow_unused:
            raise GraphError(
                "grad: one of the inputs was not used in the graph of the outputs; allow_unused=True gives None"
            )
        gradients.append(gradient)
    return tuple(gradients)


def is_freed(variable: Tensor) -> bool:
    """Whether a backward pass has gone through the graph of variable and let go of what it had saved.

    Args:
        variable: any shape.

    Example:
        >>> y = genesis.ones(2, requires_grad=True).exp().sum()
        >>> y.backward()
        >>> genesis.autograd.is_freed(y)
        True
    """
    return any(node.ctx is None for node in reachable([variable._node]))


def _walk(
    seeds: Sequence[tuple[Tensor, NDArray]], retain_graph: bool, wanted: Sequence[Tensor] | None = None
) -> list[NDArray | None]:
    """Run the graph backwards from seeds (variable, its gradient).

    Without wanted, leaves accumulate; with it, nothing does, only what lies on the way is run, and the gradients of the
    wanted variables are returned.
    """
    nodes = reachable(variable._node for variable, _ in seeds)
    targets = None if wanted is None else [edge_to(variable) for variable in wanted]
    if targets is not None:
        nodes = leading_to(nodes, targets)
    asked = {id(target) for target, _ in targets or ()}
    gradients = _Gradients(seeds, nodes, None if targets is None else asked)
    deliver, collect, own = gradients.deliver, gradients.collect, gradients.own
    place = gradients.place if targets is None else None
    for variable, seed in seeds:
        deliver(*edge_to(variable), seed.clone() if variable.is_leaf else seed, False)  # a leaf keeps it
    for node in sorted(nodes, key=NUMBER, reverse=True):
        grads = [collect(node, index) for index in range(len(node.outputs))]
        edges: Sequence[Edge | None] = node.edges
        if targets is not None:
            edges = [edge if edge and (id(edge[0]) in asked or edge[0] in nodes) else None for edge in edges]
        if any(edges) and grads != [None] * len(grads):
            addend = gradients.take(edges[0]) if node.function.adds_up and edges[0] else None
            with callsite.backward_of(node.line) if node.line else _NO_LINE:
                results = node.input_grads(grads, retain_graph, (id(node), 0) in own, addend, place)
            if callsite.anomaly == (True, True):
                require_no_nan(node.function, node.line, [grad for grad, _ in results])
        else:
            results = [(None, False)] * len(edges)
        for edge, (grad, is_own) in zip(edges, results, strict=True):
            if edge is not None:
                deliver(*edge, grad, is_own)
    return [] if targets is None else [gradients.found.get((id(target), index)) for target, index in targets]


class _Gradients:
    """The gradients of a walk, by (id of the node or leaf, output); leaves accumulate theirs unless some are asked."""

    __slots__ = ("_asked", "_pending", "_sums", "found", "own")

    def __init__(self, seeds: Sequence[tuple[Tensor, NDArray]], nodes: Iterable[Node], asked: set[int] | None) -> None:
        self._asked = asked
        self._sums: dict[tuple[int, int], NDArray] = {}  # so far
        self.own: set[tuple[int, int]] = set()  # those of the sums whose memory nobody else holds
        self.found: dict[tuple[int, int], NDArray] = {}  # those that are asked for
        self._pending: dict[int, int] = {}  # per leaf: edges that have yet to deliver
        starts = [edge_to(variable)[0] for variable, _ in seeds]
        for target in starts + [edge[0] for node in nodes for edge in node.edges if edge]:
            if type(target) is not Node:
                self._pending[id(target)] = self._pending.get(id(target), 0) + 1

    def deliver(self, target: Node | Tensor, index: int, grad: NDArray | None, is_own: bool) -> None:
        """Add a part of a gradient; is_own: nobody else holds its memory."""
        key, sums = (id(target), index), self._sums
        if grad is not None:
            if key not in sums:
                sums[key] = grad
            elif key in self.own:
                sums[key].add_into(grad)
            elif is_own:
                grad.add_into(sums[key])
                sums[key] = grad
            else:
                sums[key] = sums[key].add(grad)
                is_own = True
            if is_own:
                self.own.add(key)
        if type(target) is Node:
            return
        pending = self._pending
        pending[key[0]] -= 1
        if pending[key[0]] == 0 and key in sums:
            total = sums.pop(key)
            if target._hooks:
                total = _run_hooks(target._hooks, target._result_class, total)
                total = total if self._asked else total.clone()  # a hook may have kept it
            if self._asked is None:
                if target._node is not None:
                    raise GraphError("backward: a tensor that was a leaf has since become the result of an op in place")
                if target._requires_grad:  # still
                    _accumulate(target, total)
            else:
                self.found[key] = total

    def place(self, leaf: Tensor) -> NDArray | None:
        """Give the memory that a hook wants a leaf's gradient in, if it is about to be delivered whole, as it stays."""
        hooks, key = leaf._post_accumulate_hooks, id(leaf)
        if not hooks or leaf._hooks or leaf.grad is not None or not leaf._requires_grad:
            return None
        if self._pending[key] > 1 or (key, 0) in self._sums:
            return None
        for hook in hooks:
            place = hook.place() if isinstance(hook, RepeatableHook) else None
            if place is not None and place.shape == leaf.array.shape and place.dtype is leaf.array.dtype:
                return place
        return None

    def take(self, edge: Edge) -> NDArray | None:
        """The gradient so far, which is delivered again as a part of a larger one."""
        target, index = edge
        key = (id(target), index)
        self.own.discard(key)
        return self._sums.pop(key, None)

    def collect(self, node: Node, index: int) -> NDArray | None:
        """The whole gradient of an output, after its hooks."""
        key = (id(node), index)
        total = self._sums.pop(key, None)
        if total is None:
            return None
        if node.hooks:
            total = _run_hooks(node.hooks.get(index, ()), node.result_class, total)
            self.own.discard(key)  # a hook may have kept it
        if self._asked and id(node) in self._asked:
            self.found[key] = total
            self.own.discard(key)
        kept = node.retained[index]() if index in node.retained else None
        if kept is not None:
            _accumulate(cast("Tensor", kept), total.clone())
        return total


def _run_hooks(hooks: Iterable[GradHook], result_class: type[Tensor], grad: NDArray) -> NDArray:
    for hook in tuple(hooks):
        unrecordable(_RUNS_HOOKS)
        with no_grad():
            replaced = hook(result_class(grad))
        grad = grad if replaced is None else as_array(replaced)
    return grad


def _accumulate(variable: Tensor, grad: NDArray) -> None:
    if variable.grad is None:
        variable.grad = variable._like(grad)
    else:
        variable.grad.array.add_into(grad)
    for hook in tuple(variable._post_accumulate_hooks):
        if not isinstance(hook, RepeatableHook):
            unrecordable(_RUNS_HOOKS)
        with no_grad():
            hook(variable)


def _listed(tensors: Tensors) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Variable) else list(tensors)


def _seed(op: str, output: Tensor, gradient: Tensor | None) -> NDArray:
    """The gradient that a walk starts with, checked."""
    output._refresh()
    if not output.requires_grad:
        raise GraphError(f"{op}: the tensor does not require grad and has no graph")
    array = output.array
    if gradient is None:
        if array.numel != 1:
            raise GraphError(
                f"{op}: argument 'gradient' can be left out only for one element, here the shape is {array.shape}"
            )
        if array.dtype.is_complex:
            raise GraphError(f"{op}: argument 'gradient' can be left out only for a real number, here {array.dtype}")
        return NDArray.full(array.shape, 1, array.dtype, array.device)
    if not isinstance(gradient, Variable):
        raise DTypeError(describe(op, "gradient", "a Tensor", type(gradient).__name__))
    if gradient.array.shape != array.shape:
        raise ShapeError(describe(op, "gradient", f"shape {array.shape}", gradient.array.shape))
    return gradient.array.to(array.dtype)


def _recorded_seed(gradient: Tensor | None, output: Tensor, seed: NDArray) -> Tensor:
    """The gradient that a recorded walk starts with: the given one with its graph."""
    return output._like(seed) if gradient is None or gradient.array.dtype is not output.array.dtype else gradient


def _optional(tensors: Tensors | None) -> list[Tensor] | None:
    return None if tensors is None else _listed(tensors)
