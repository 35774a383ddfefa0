"""How the steps of a graph become plans: what a step in PyTorch's way shows once its graphs are replayed.

Nothing is assumed of PyTorch's calling conventions that is not seen in the step: tensors are found again by identity or
address. A graph that is in any way out of the ordinary has no plan, and stays PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from genesis.settings import settings
from genesis.torch import graph_trees, native_steps
from genesis.torch.activations import Function
from genesis.torch.graph_trees import Node
from genesis.torch.replaying import ARGUMENT, CONSTANT, SAVED, TANGENT, Counter, Facts, Output, Plan, Source
from genesis.torch.unused_outputs import UnusedOutputs

TRIES = 16  # steps, and plans of which parameters moved
Run = Callable[[list[Tensor]], Sequence[Tensor | None]]


class Metadata(Protocol):
    """The part of AOTAutograd's metadata of a graph with gradients that is read here."""

    input_info: Sequence[object]
    output_info: Sequence[object]
    num_mutated_inp_runtime_indices: int
    num_outputs_aliased: int
    num_intermediate_bases: int
    num_graphsafe_rng_states: int
    is_rng_op_functionalized: bool
    dynamic_outputs: bool
    tokens: dict[object, object]
    bw_donated_idxs: list[int] | None
    mutated_graph_handled_indices_seen_by_autograd: list[int]


class Half:
    """Forward, backward or all of a graph as Inductor has compiled it.

    Attributes:
        inputs: the inputs of the graph that its captured part reads, in its order; None: all.
    """

    def __init__(self, capturable: bool, run: object) -> None:
        maps: Sequence[object] = getattr(run, "partition_maps", None) or ()
        self.run: Run = run  # type: ignore[assignment]
        self.inputs = None if not maps else list(getattr(maps[0], "input_index_mapping", ()))
        self.is_whole = capturable and (not maps or (len(maps) == 1 and None not in (self.inputs or ())))


Look = tuple[int, torch.Size, tuple[int, ...], torch.dtype]  # address, shape, strides


class _Seen:
    """A step in PyTorch's way. It holds no tensor: the trees look at what is alive, and an argument may hold another
    captured graph's pass, which would wait for its backward for ever if this step's does not come.

    Attributes:
        own: how the arguments look; needs: whether they need a gradient.
        outputs: each of the forward's results as an output of its captured part; None: it is none of them.
        looks: how they look.
    """

    def __init__(self, args: tuple[object, ...]) -> None:
        self.own, self.num_results = [look_of(x) for x in args], 0
        self.needs = [isinstance(x, Tensor) and x.requires_grad for x in args]
        self.device = next((x.device for x in args if isinstance(x, Tensor)), None)
        self.forward: Node | None = None
        self.given: list[Look | None] = []
        self.outputs: list[Output | None] = []
        self.looks: list[Look | None] = []


class Steps:
    """The steps of one of Dynamo's graphs."""

    def __init__(self, counter: Counter, unused: UnusedOutputs) -> None:
        self.plan: Plan | None = None
        self._unused = unused
        self._counter, self._tries = counter, TRIES if settings.short_steps and graph_trees.known() else 0
        self._halves: dict[bool, Half] = {}
        self._metadata: Metadata | None = None
        self._seen: _Seen | None = None

    def follow(self, compiled: Function) -> Function:
        """A compiled graph that takes the short way where there is one."""

        def run(*args: object) -> object:
            plan, self._seen = self.plan, None
            if plan is not None:
                planned = plan.forward(args)
                if planned is not None:
                    return planned
            if not self._tries or len(self._halves) != 2 or not (plan is None or plan.is_outdated):
                return compiled(*args)
            if any(isinstance(x, FakeTensor) for x in args):  # Dynamo asks for the results' strides (DDPOptimizer)
                return compiled(*args)
            self._tries -= 1
            self._seen = seen = _Seen(args)
            results = compiled(*args)
            seen.num_results = _num_differentiable(results)
            return results

        return run

    def captured(self, capturable: bool, metadata: Metadata | None, compiled: object, is_backward: bool) -> None:
        """Inductor has compiled a half, and PyTorch is to capture it. metadata: of the forward."""
        self._halves[is_backward] = Half(capturable, compiled)
        if not is_backward:
            self._metadata = metadata
        elif self._tries and torch.cuda.is_available():
            native_steps.prepare()

    def inputs_of_backward(self, number: int) -> Sequence[int] | None:
        """Return which of so many inputs the captured part reads, in its order; None where a part is not captured."""
        half = self._halves.get(True)
        if half is None or not half.is_whole:
            return None
        return range(number) if half.inputs is None else half.inputs

    def looks(self, given: Sequence[object]) -> list[Look | None]:
        """How the inputs of a half look, if it is to be known."""
        return [] if self._seen is None else [look_of(x) for x in given]

    def ran_forward(self, given: list[Look | None], results: Sequence[object]) -> None:
        """The forward ran in PyTorch's way. results: in the graphs' memory."""
        seen, node = self._seen, replayed(results)
        if seen is None or node is None or node.parent is not None:
            return
        seen.forward, seen.given, seen.outputs = node, given, outputs_of(node, results)
        seen.looks = [look_of(x) for x in results]

    def ran_backward(self, given: list[Look | None], results: Sequence[object]) -> None:
        """The backward ran in PyTorch's way."""
        seen, self._seen = self._seen, None
        node = replayed(results)
        if seen is None or seen.forward is None or node is None or node.parent is not seen.forward:
            return
        facts = None
        if self._metadata is not None:
            facts = _facts(self._halves, self._metadata, seen, (node, given, results))
        if facts is None:
            self._tries = 0  # what is constant will not change
        else:
            self.plan = Plan(facts, self._counter, self._unused.dependence)


def _facts(
    halves: dict[bool, Half], metadata: Metadata, seen: _Seen, last: tuple[Node, list[Look | None], Sequence[object]]
) -> Facts | None:
    """Find what is constant in the steps; None where a graph is out of the ordinary."""
    backward, given, gradients = last
    forward, own, number = seen.forward, seen.own, seen.num_results
    assert forward is not None
    if not (all(half.is_whole for half in halves.values()) and is_ordinary(metadata, number)):
        return None
    if len(own) != len(gradients) or own != seen.given or None in own:
        return None
    shown, saved = seen.outputs[:number], [x for x in seen.outputs[number:] if x is not None]
    looks = [look for x, look in zip(seen.outputs[number:], seen.looks[number:], strict=True) if x is not None]
    known = {look: Source(ARGUMENT, index) for index, look in reversed(list(enumerate(own)))}
    known |= {look: Source(SAVED, index) for index, look in enumerate(looks) if look is not None and look[0]}
    first = len(given) - number  # of the tangents, which come last
    empty = list(dict.fromkeys(x for x in given[:first] if x is not None and 0 in x[1]))
    known |= {look: Source(CONSTANT, index) for index, look in enumerate(empty)}
    sources = [known.get(x) for x in given[:first]] + [Source(TANGENT, index) for index in range(number)]
    ours = outputs_of(backward, gradients)
    leaves = [i for i, needs in enumerate(seen.needs) if needs]
    wanted = [i for i, x in enumerate(gradients) if x is not None]
    found = [x for x in sources if x is not None]
    if (
        len(found) != len(sources)
        or None in shown
        or not set(wanted) <= set(leaves)
        or any(ours[i] is None for i in wanted)
        or any(node.expanded_dims[i] for node in (forward, backward) for i in node.non_static_input_idx)
    ):
        return None
    reads, part = halves[False].inputs or list(range(len(own))), halves[True].inputs or list(range(len(given)))
    copied = [found[part[i]] for i in backward.non_static_input_idx]
    lies = {reads[i] for i in forward.static_input_idxs}  # where it lay: what plans ask of arguments
    if any(
        kind == ARGUMENT and index not in lies for kind, index in (found[part[i]] for i in backward.static_input_idxs)
    ):
        return None
    kept = sorted({index for kind, index in found if kind == ARGUMENT})
    places = {index: place for place, index in enumerate(kept)}
    found, copied = (
        [Source(kind, places[index]) if kind == ARGUMENT else Source(kind, index) for kind, index in each]
        for each in (found, copied)
    )
    return Facts(
        device_of(gradients), forward, backward, reads, [look and look[2] for look in given[first:]],
        [x for x in shown if x is not None], saved, list(metadata.mutated_graph_handled_indices_seen_by_autograd),
        leaves, [ours[leaf] for leaf in leaves], kept, found, copied, halves[True].run,
        metadata.bw_donated_idxs != [],
        [torch.empty_strided(shape, strides, dtype=dtype, device=seen.device) for _, shape, strides, dtype in empty],
    )  # fmt: skip


def look_of(x: object) -> Look | None:
    return (x.data_ptr(), x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else None


def outputs_of(node: Node, results: Sequence[object]) -> list[Output | None]:
    """The results of a half as outputs of its captured part, or parts of these, found by their addresses."""
    outputs = list(enumerate(node.cached_tensor_outputs))
    own = {x.data_ptr(): (number, x) for number, x in outputs if x is not None and x.numel()}
    spans = [(x.untyped_storage(), number, x) for number, x in outputs if x is not None and x.numel()]
    found: list[Output | None] = []
    for result in results:
        known = None
        if isinstance(result, Tensor) and result.numel():
            address = result.data_ptr()
            around = ((number, x) for s, number, x in spans if s.data_ptr() <= address < s.data_ptr() + s.nbytes())
            known = own.get(address) or next(around, None)  # half of the channels, say
        found.append(None if known is None else _as_output(*known, result))
    return found


def _as_output(number: int, whole: Tensor, result: Tensor) -> Output | None:
    """A result that lies in an output of this number; None: it is of another dtype."""
    if result.dtype is not whole.dtype:
        return None
    if look_of(result) == look_of(whole):
        return Output(number)
    offset = (result.data_ptr() - whole.untyped_storage().data_ptr()) // whole.itemsize
    return Output(number, (result.shape, result.stride(), offset))


def device_of(results: Sequence[object]) -> int:
    """The index of the device that tensors are on."""
    return next((x.device.index or 0 for x in results if isinstance(x, Tensor)), 0)


def replayed(results: Sequence[object]) -> Node | None:
    return graph_trees.replayed(device_of(results))


def is_ordinary(metadata: Metadata, num_results: int, with_gradients: bool = True) -> bool:
    """Whether the runtime of AOTAutograd has nothing to do but to call the graphs. (It hides from autograd that results
    are views of others, by new ones; those of a plan are copies.)"""
    return (
        len(metadata.output_info) == num_results
        and all(getattr(x, "requires_grad", None) is with_gradients for x in metadata.output_info)
        and not metadata.num_mutated_inp_runtime_indices
        and not metadata.num_outputs_aliased
        and not metadata.num_intermediate_bases
        and not metadata.num_graphsafe_rng_states
        and not metadata.is_rng_op_functionalized
        and not metadata.dynamic_outputs
        and not metadata.tokens
    )


def is_capturable(graph: fx.GraphModule) -> bool:
    """Whether everything in a graph can run in a capture, so that nothing of it runs beside its captured part."""
    from torch._inductor import config

    if getattr(config, "custom_should_partition_ops", None):
        return False
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    for node in graph.graph.nodes:
        if node.op == "call_function":
            target = node.target
            if getattr(target, "__name__", "") in ("auto_functionalized", "auto_functionalized_v2"):
                target = node.args[0]  # an op that changes its arguments
            if isinstance(target, torch._ops.HigherOrderOperator):
                return False
            if unsafe is not None and unsafe in getattr(target, "tags", ()):
                return False
        values = tree_leaves(node.meta.get("val"))
        if any(isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool) for x in values):
            return False
        if any(isinstance(x, Tensor) and x.device.type != _DEVICE for x in values):
            return False
    return True


_DEVICE = "cuda"  # where captures are


def _num_differentiable(results: object) -> int:
    """How many results a graph has; -1 if one is no tensor with a gradient."""
    if not isinstance(results, tuple | list):
        return -1
    return len(results) if all(isinstance(x, Tensor) and x.grad_fn is not None for x in results) else -1
