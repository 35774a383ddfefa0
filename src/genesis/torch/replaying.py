"""Steps of a captured graph without what PyTorch does around a replay.

A step of torch.compile(mode="reduce-overhead") hands everything that the backward reads from graph to graph as tensors,
several hundred of a deep network: through the runtime of AOTAutograd, autograd's saved variables, and the checks of the
trees of CUDA graphs. All of it lies where it lay in the step before. So, once PyTorch has recorded a forward and its
backward and has replayed both, a step here is: compare the parameters' addresses, copy the images in, replay, copy the
results out; and likewise for the gradients. The trees are told what runs and what is still needed, so that any other
graph may come between forward and backward. Wherever a step is not the plain one, PyTorch's own way is taken.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor

from genesis.torch import graph_trees, native_steps, outstanding
from genesis.torch.graph_trees import Node
from genesis.torch.second_gradients import refused
from genesis.torch.unused_outputs import Dependence

Pick = Callable[[Sequence[Tensor]], list[Tensor]]
Outputs = Callable[[Sequence[Tensor | None]], list[Tensor]]


class Counter(Protocol):
    """Counts forward passes since the last backward pass.

    saved_by_hooks: what the last of them saved went through hooks, such as a checkpoint's.
    """

    num_forwards: int
    saved_by_hooks: bool


class Source(NamedTuple):
    """The origin of an input of the backward graph: one of the four kinds, and a number."""

    kind: int
    number: int


ARGUMENT, SAVED, TANGENT, CONSTANT = range(4)
_FEW = 2  # tensors that are copied one by one: the kernel for many gives a single image to a few programs


class Output(NamedTuple):
    """An output of a captured part, by number.

    view: the shape, strides and offset in its memory with which it leaves, if not its own.
    """

    number: int
    view: tuple[torch.Size, tuple[int, ...], int] | None = None


class Facts(NamedTuple):
    """The constants of the steps of a graph.

    Attributes:
        forward, backward: PyTorch's recordings.
        inputs: the arguments that the captured part of the forward reads, in its order.
        strides: of the results' gradients as the backward graph reads them.
        results: the forward's outputs that the program gets; saved: those that the backward reads.
        changed: arguments that the graph changes in place.
        leaves: arguments that need a gradient; gradients: of each the output of the backward, or None.
        kept: arguments that the backward reads.
        given: the inputs of the backward graph; copied: those that its captured part copies.
        run: the backward graph in PyTorch's way.
        reuses: the backward reuses the memory of what it reads.
        constants: inputs of the backward that have no elements.
    """

    device: int
    forward: Node
    backward: Node
    inputs: list[int]
    strides: list[tuple[int, ...] | None]
    results: list[Output]
    saved: list[Output]
    changed: list[int]
    leaves: list[int]
    gradients: list[Output | None]
    kept: list[int]
    given: list[Source]
    copied: list[Source]
    run: Callable[[list[Tensor]], Sequence[Tensor | None]]
    reuses: bool
    constants: list[Tensor]


class Inputs:
    """The inputs of a recording: some lie where they lay, as parameters do, and the others are copied in.

    arguments: of the graph, those that its captured part reads, in its order.
    """

    def __init__(self, node: Node, arguments: Sequence[int]) -> None:
        self._lasting = pick([arguments[i] for i in node.static_input_idxs])
        self._addresses = native_steps.as_bytes(node.static_input_data_ptrs[i] or 0 for i in node.static_input_idxs)
        self._copied = pick([arguments[i] for i in node.non_static_input_idx])
        self._images = [_tensor(node.reconstructed_inputs[i]) for i in node.non_static_input_idx]

    def lie(self, args: Sequence[Tensor]) -> bool:
        """Whether those that are not copied lie where they lay."""
        return native_steps.addresses(self._lasting(args)) == self._addresses

    def copy(self, args: Sequence[Tensor]) -> None:
        _copy(self._images, self._copied(args))


class Plan:
    """Forward and backward of a captured graph, as its next steps are to run."""

    def __init__(self, facts: Facts, counter: Counter, dependence: Dependence) -> None:
        self.facts, self.counter = facts, counter
        self._dependence = Dependence(dependence.num, [dependence.bits[leaf] for leaf in facts.leaves])
        forward, backward = facts.forward, facts.backward
        self.is_outdated = False
        self._manager = graph_trees.manager(facts.device)
        self._leaves, self._kept = pick(facts.leaves), pick(facts.kept)
        self._inputs = Inputs(forward, facts.inputs)
        self._tangents = [_tensor(backward.reconstructed_inputs[i]) for i in backward.non_static_input_idx]
        self._changed = pick(facts.changed)
        self._results, self._saved = pick_outputs(facts.results), pick_outputs(facts.saved)
        self._unused = [(x.shape, x.dtype, x.device) for x in self._results(forward.cached_tensor_outputs)]
        self._num_apart = forward.unaliased_in_all_paths.count(True), backward.unaliased_in_all_paths.count(True)
        wanted = [(position, output) for position, output in enumerate(facts.gradients) if output is not None]
        self._positions, self._gradients = [x for x, _ in wanted], pick_outputs([x for _, x in wanted])

    def forward(self, args: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """The graph's results; None where this step has to go PyTorch's way."""
        if not graph_trees.saves_as_usual() or outstanding.any_waits() or not self._is_ready():
            return None
        if not self._inputs.lie(args):
            self.is_outdated = True
            return None
        results: tuple[Tensor, ...] = _apply(self, args, *self._leaves(args))
        return results

    def _is_ready(self) -> bool:
        """Whether the trees are where they are between two steps: after this graph's backward, or another's."""
        forward, backward, device = self.facts.forward, self.facts.backward, self.facts.device
        if self._manager is None or self._manager is not graph_trees.manager(device):
            return False
        if graph_trees.replayed(device) is not backward and not graph_trees.begins(device, forward):
            return False
        return is_intact(forward, self._num_apart[0]) and is_intact(backward, self._num_apart[1])

    def replay_forward(self, args: Sequence[Tensor]) -> tuple[Pass, tuple[Tensor, ...]]:
        node = self.facts.forward
        torch.autograd.graph.increment_version(self._changed(args))
        self._inputs.copy(args)
        self._run(node, is_backward=False)
        self.counter.num_forwards += 1
        kept = self._kept(args)
        one = Pass(self._saved(node.cached_tensor_outputs), kept)
        return one, tuple(x.clone() for x in self._results(node.cached_tensor_outputs))

    def backward(self, one: Pass, tangents: Sequence[Tensor | None]) -> tuple[list[Tensor | None], bool]:
        """The gradients of the leaves, and whether they are in memory that the next replay overwrites.

        tangents: those of the results; None: a loss does not use it.
        """
        if all(x is not None for x in tangents):  # `in` would ask tensors whether they equal None, by an op of PyTorch
            return self._backward(one, cast("Sequence[Tensor]", tangents))
        full = [
            torch.zeros(shape, dtype=dtype, device=device) if x is None else x
            for x, (shape, dtype, device) in zip(tangents, self._unused, strict=True)
        ]
        is_none = self._dependence.is_none(tangents)
        gradients, in_graph = self._backward(one, full)
        return [None if unused else x for unused, x in zip(is_none, gradients, strict=True)], in_graph

    def _backward(self, one: Pass, tangents: Sequence[Tensor]) -> tuple[list[Tensor | None], bool]:
        one.check()
        keeps = torch._C._autograd._get_current_graph_task_keep_graph()
        if keeps and self.facts.reuses:
            raise RuntimeError(
                "genesis.torch.compile: this backward was compiled to reuse the memory of what it reads, which "
                "requires retain_graph=False and create_graph=False (torch._functorch.config.donated_buffer)."
            )
        facts = self.facts
        is_next = graph_trees.replayed(facts.device) is facts.forward
        if keeps or not is_next or not is_intact(facts.backward, self._num_apart[1]):
            given = one.find(facts.given, [*map(_with_strides, tangents, facts.strides)], facts.constants)
            if not keeps:
                one.end()  # as the trees look at what is alive
            results = facts.run(given)  # another graph ran since the forward, or the backward may come again
            return [results[leaf] for leaf in facts.leaves], False
        _copy(self._tangents, one.find(facts.copied, tangents, facts.constants))
        one.end()
        self._run(facts.backward, is_backward=True)
        self.counter.num_forwards = 0
        gradients: list[Tensor | None] = [None] * len(facts.leaves)
        for position, x in zip(self._positions, self._gradients(facts.backward.cached_tensor_outputs), strict=True):
            gradients[position] = x
        return gradients, True

    def _run(self, node: Node, is_backward: bool) -> None:
        assert self._manager is not None
        assert node.graph is not None
        graph_trees.step_to(self._manager, node, "BACKWARD" if is_backward else "FORWARD")
        node.graph.replay()


class Pass:
    """The values that a forward leaves to its backward. The trees do not overwrite them as long as they are held."""

    __slots__ = ("_looks", "_saved", "kept")

    def __init__(self, saved: list[Tensor], kept: list[Tensor]) -> None:
        self._saved: list[Tensor] | None = saved
        self.kept, self._looks = kept, native_steps.looks(kept)

    def check(self) -> None:
        """Raises: RuntimeError: what was saved is gone, or what the backward reads has changed."""
        if self._saved is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time, after its saved values have been freed. Specify "
                "retain_graph=True if you need to backward through the graph a second time."
            )
        if native_steps.looks(self.kept) != self._looks:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                "parameter or input of a model that genesis.torch.compile has captured"
            )

    def find(self, sources: Sequence[Source], *rest: Sequence[Tensor]) -> list[Tensor]:
        """The tensors that come from these sources. rest: tangents and constants."""
        assert self._saved is not None
        places = self.kept, self._saved, *rest
        return [places[kind][number] for kind, number in sources]

    def end(self) -> None:
        self._saved, self.kept = None, []


class _Step(torch.autograd.Function):
    """A step as a node of autograd. Its edges lead to the leaves' nodes, in the order of the gradients."""

    @staticmethod
    def forward(ctx: _Context, plan: Plan, args: Sequence[Tensor], *_: Tensor) -> tuple[Tensor, ...]:
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        ctx.one, results = plan.replay_forward(args)
        return results

    @staticmethod
    def backward(ctx: _Context, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            with torch.no_grad():
                gradients, in_graph = ctx.plan.backward(ctx.one, tangents)
                found = _copied(gradients) if in_graph else gradients
            return None, None, *refused("genesis.torch.compile", "a recording gives values only", found, tangents, ctx)
        gradients, in_graph = ctx.plan.backward(ctx.one, tangents)
        if native_steps.accumulate(ctx, gradients, in_graph):
            return ()
        return None, None, *(_copied(gradients) if in_graph else gradients)


class _Context(Protocol):
    """PyTorch's context of a step."""

    plan: Plan
    one: Pass

    def set_materialize_grads(self, value: bool) -> None: ...


# Function.apply looks at each argument for wrappers of functorch that are dead; where functorch is, steps are others.
_apply = super(torch.autograd.Function, _Step).apply


def is_intact(node: Node, num_apart: int) -> bool:
    """Whether a recording has all that it had. num_apart: its outputs in memory of their own."""
    apart = node.unaliased_in_all_paths.count(True)
    return node.graph is not None and bool(node.cached_tensor_outputs) and apart == num_apart


def pick(numbers: Sequence[int]) -> Pick:
    """Items of a sequence, in one call."""
    if len(numbers) < 2:
        return lambda items: [items[number] for number in numbers]
    get = operator.itemgetter(*numbers)
    return lambda items: list(get(items))


def pick_outputs(outputs: Sequence[Output]) -> Outputs:
    chosen = pick([output.number for output in outputs])
    views = [(position, output.view) for position, output in enumerate(outputs) if output.view is not None]

    def run(items: Sequence[Tensor | None]) -> list[Tensor]:
        found = chosen(items)
        for position, (shape, strides, offset) in views:
            found[position] = found[position].as_strided(shape, strides, offset)
        return found

    return run


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    if len(targets) > _FEW:
        torch._foreach_copy_(targets, sources)
        return
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _with_strides(x: Tensor, strides: tuple[int, ...] | None) -> Tensor:
    """Give Inductor's code what it takes for granted: an expanded gradient, as that of a sum, becomes a full one."""
    if strides is None or x.stride() == strides:
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)


def _tensor(x: object) -> Tensor:
    assert isinstance(x, Tensor)
    return x


def _copied(gradients: list[Tensor | None]) -> list[Tensor | None]:
    """Copies in memory of their own, bit for bit; one call allocates and copies all of a dtype."""
    positions: dict[torch.dtype, list[int]] = {}
    for position, x in enumerate(gradients):
        if x is not None:
            positions.setdefault(x.dtype, []).append(position)
    copies = list(gradients)
    for numbers in positions.values():
        for position, x in zip(numbers, torch._foreach_mul([gradients[i] for i in numbers], 1), strict=True):
            copies[position] = x
    return copies
