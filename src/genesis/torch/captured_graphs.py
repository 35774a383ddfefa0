"""Graphs that Inductor has compiled and PyTorch captures, with copies of what leaves them.

A captured graph's results lie in memory that its next replay overwrites. So results and gradients are copied here, and
nobody but autograd holds anything else. AOTAutograd's cache keeps compiled graphs on the disk, and brings them back in
another process without asking Inductor, so that what is to be copied is kept with them.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import torch
import torch._functorch.config
from torch import Tensor, fx
from torch._inductor.output_code import CompiledFxGraph

from genesis.frames import in_room_beside
from genesis.torch import graph_trees
from genesis.torch.graph_calls import Call, calls_of
from genesis.torch.graph_casts import cast_at_once
from genesis.torch.graph_folds import fold_at_once
from genesis.torch.graph_passes import add_gradients_in_the_op
from genesis.torch.recordings import Recording
from genesis.torch.replaying import Counter
from genesis.torch.short_calls import Calls
from genesis.torch.step_plans import Metadata, Steps, device_of, is_capturable
from genesis.torch.tuning import Tuning
from genesis.torch.unused_outputs import NOTHING, Dependence, UnusedOutputs

Run = Callable[[list[object]], Sequence[object]]


class Compilation(NamedTuple):
    """The compilation of one of Dynamo's graphs: its report, its counter, its steps, its calls without gradients, its
    outputs without a use, and the tuning of its convolutions, if that is asked for."""

    recording: Recording
    waiting: Counter
    steps: Steps
    calls: Calls
    unused: UnusedOutputs
    tuning: Tuning | None = None


_underway: ContextVar[Compilation | None] = ContextVar("_underway", default=None)


@contextmanager
def compiling(compilation: Compilation) -> Iterator[None]:
    """Within it, the graphs that come from the cache belong to a compilation."""
    token = _underway.set(compilation)
    try:
        yield
    finally:
        _underway.reset(token)


class GraphFacts(NamedTuple):
    """The facts of a graph that are known before Inductor compiles it.

    Attributes:
        mode: "forward", "backward" or "inference".
        leaving: the outputs that the program gets, but for those that are inputs.
        saved: the outputs in the graph's memory that autograd keeps for the backward.
        is_capturable: whether a capture has all of it.
        dependence: of a backward's gradients on those of the outputs.
        metadata: of a forward, AOTAutograd's; None where that is not known.
        calls: of Genesis' ops.
    """

    mode: str
    leaving: list[int]
    saved: list[int]
    is_capturable: bool
    dependence: Dependence
    metadata: Metadata | None
    calls: list[Call]


class CapturedGraph(CompiledFxGraph):
    """A graph that Inductor has compiled. After it has been read from the cache, it is followed as it was at first."""

    facts: GraphFacts
    num_nodes = 0  # of the graph before it was compiled
    is_replayed = False  # a CUDA graph runs, not op after op

    def __call__(self, inputs: Sequence[object]) -> object:
        if self.is_replayed:
            return super().__call__(inputs)
        return in_room_beside(self.num_nodes, super().__call__, inputs)

    def post_compile(self, *args: object) -> None:
        """Called by PyTorch after it has read the graph; how is the last argument."""
        super().post_compile(*args)
        how, compilation = args[-1], _underway.get()
        assert isinstance(how, dict)
        if compilation is None:
            raise RuntimeError("this graph was compiled by genesis.torch.compile, and is of no use elsewhere")
        _hand_on(self.facts, compilation)
        self.is_replayed = is_captured(how)
        if self.is_replayed:
            _follow(self, self.facts, compilation)


@contextmanager
def foretold(tuning: Tuning | None) -> Iterator[None]:
    """Within it, tuning is told the calls of forward and backward as soon as AOTAutograd has traced both: Inductor gets
    the forward a second later, and the backward when it has compiled that."""
    config = torch._functorch.config
    if tuning is None or not hasattr(config, "joint_custom_pass"):
        yield
        return
    users: Callable[[fx.GraphModule, object], fx.GraphModule] | None = config.joint_custom_pass

    def tell(joint: fx.GraphModule, inputs: object) -> fx.GraphModule:
        joint = joint if users is None else users(joint, inputs)
        copy = fx.Graph()
        copy.output(copy.graph_copy(joint.graph, {}))
        add_gradients_in_the_op(copy)
        tuning.add(calls_of(copy))
        return joint

    with config.patch(joint_custom_pass=tell):
        yield


def compile_inner(
    compilation: Compilation, graph: fx.GraphModule, inputs: Sequence[object], **how: object
) -> object:  # fmt: skip
    """Inductor's compile_fx_inner, and copies of what leaves a captured graph."""
    from torch._inductor.compile_fx import compile_fx_inner

    compilation.recording.cached = False
    if how.get("is_backward") and add_gradients_in_the_op(graph.graph):
        graph.recompile()
    facts = _facts(graph, how)  # now: later all gradients seem to depend on each other, and Inductor changes the graph
    if cast_at_once(graph.graph) + fold_at_once(graph.graph):
        graph.recompile()
    _hand_on(facts, compilation)
    num_nodes = len(graph.graph.nodes)
    compiled = compile_fx_inner(graph, inputs, **how)
    if type(compiled) is CompiledFxGraph:
        compiled.__class__ = CapturedGraph
        compiled.facts, compiled.num_nodes = facts, num_nodes
        compiled.is_replayed = is_captured(how)
    if is_captured(how):
        _follow(compiled, facts, compilation)
    return compiled


def _hand_on(facts: GraphFacts, compilation: Compilation) -> None:
    """Tell those who need the facts of a graph before it runs."""
    if facts.mode == "backward":
        compilation.unused.dependence = facts.dependence
    if compilation.tuning is not None:
        compilation.tuning.add(facts.calls)


def _facts(graph: fx.GraphModule, how: dict[str, object]) -> GraphFacts:
    outputs = next(node for node in reversed(graph.graph.nodes) if node.op == "output")
    is_node = [isinstance(x, fx.Node) and x.op != "placeholder" for x in outputs.args[0]]
    visible = outputs.meta.get("user_visible_output_idxs") or ()
    leaving = [index for index in visible if is_node[index]]
    mode = "backward" if how.get("is_backward") else "inference" if how.get("is_inference") else "forward"
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    static = how.get("static_input_idxs") or ()
    assert isinstance(static, Iterable)
    lasting = {placeholders[index] for index in static}
    saved = [
        index
        for index, x in enumerate(outputs.args[0])
        if mode == "forward" and isinstance(x, fx.Node) and x not in lasting and index not in visible
    ]
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None and mode != "backward" else None
    depends = Dependence.of(graph.graph) if mode == "backward" else NOTHING
    return GraphFacts(mode, leaving, saved, is_capturable(graph), depends, metadata, calls_of(graph.graph))


def is_captured(how: dict[str, object]) -> bool:
    """Whether Inductor has handed a graph to PyTorch's trees of CUDA graphs."""
    cudagraphs = how.get("cudagraphs")
    return cudagraphs is not None and bool(cudagraphs)


def _follow(compiled: CompiledFxGraph, facts: GraphFacts, compilation: Compilation) -> None:
    """Put what is to be done around each replay into the place of a captured graph's function."""
    recording, waiting, steps, calls = compilation[:4]
    recording.captured = True
    mode, leaving = facts.mode, facts.leaving
    if mode == "inference":
        calls.captured(facts.is_capturable, facts.metadata, compiled)
    else:
        steps.captured(facts.is_capturable, facts.metadata, compiled, mode == "backward")
    assert compiled.current_callable is not None
    run: Run = compiled.current_callable
    if mode == "backward":
        run = _Backward(run, waiting, steps)
    num_calls = itertools.count()

    def call(inputs: list[object]) -> list[object]:
        if next(num_calls) == 1:  # PyTorch records at the second call
            _settle()
        _open_handles()
        looks = calls.looks(inputs) if mode == "inference" else steps.looks(inputs)
        results = list(run(inputs))
        if mode == "inference":
            calls.ran(looks, results)
        elif mode == "backward":
            waiting.num_forwards = 0
            steps.ran_backward(looks, results)
        else:
            waiting.num_forwards += 1
            waiting.saved_by_hooks = graph_trees.goes_through_hooks()
            steps.ran_forward(looks, results)
            _show_that_they_live(results, facts.saved)
        _copy(results, leaving)
        return results

    compiled.current_callable = call


class _Backward:
    """A captured backward, which runs as in its first call where something stands in the way of its recordings."""

    def __init__(self, run: Run, waiting: Counter, steps: Steps) -> None:
        self._run, self._waiting, self._steps = run, waiting, steps
        self._function: object = None  # the number by which the trees know the graph

    def __call__(self, inputs: list[object]) -> Sequence[object]:
        number, order = len(inputs), self._steps.inputs_of_backward(len(inputs))
        if order is None:
            return self._run(inputs)
        if self._records_in_vain(inputs, order):
            return self._run_without_recordings(inputs)
        try:
            results = self._run(inputs)
        except RuntimeError as error:
            given = graph_trees.inputs_of_refused(error)
            if given is None:
                raise
        else:
            if self._function is None:
                self._function = graph_trees.function_of(device_of(results))
            return results
        by_index = dict(zip(order, given, strict=True))
        return self._run_without_recordings([by_index.get(index) for index in range(number)])

    def _records_in_vain(self, inputs: list[object], order: Sequence[int]) -> bool:
        return (
            self._waiting.saved_by_hooks
            and self._function is not None
            and graph_trees.records_in_vain(device_of(inputs), self._function, inputs, order)
        )

    def _run_without_recordings(self, inputs: list[object]) -> Sequence[object]:
        with graph_trees.without_recordings():
            return self._run(inputs)


def _settle() -> None:
    """Better kernels that are being built would come too late for a capture."""
    planner = sys.modules.get("genesis.backends.cuda.engine.planner")
    if planner is not None:
        planner.settle()


def _open_handles() -> None:
    """PyTorch makes a cuBLAS handle per thread, which no capture permits: a checkpoint's second forward comes in
    autograd's thread, and may be captured before anything else of cuBLAS ran there."""
    device = torch.cuda.current_device()
    if device not in _opened.devices:
        torch.cuda.current_blas_handle()
        _opened.devices.add(device)


class _Opened(threading.local):
    def __init__(self) -> None:
        self.devices: set[int] = set()


_opened = _Opened()


def _show_that_they_live(results: list[object], saved: Sequence[int]) -> None:
    """Put aliases in the place of tensors that autograd will keep.

    The trees return the same tensors at each replay, and take those for dead that nobody holds but autograd (PyTorch
    2.11 to 2.13): a graph that is recorded before the backward then gets their memory. Aliases they count.
    """
    for index in saved:
        x = results[index]
        if isinstance(x, Tensor):
            results[index] = x.data


def _copy(results: list[object], leaving: Sequence[int]) -> None:
    """Put copies in the place of results, one for each tensor."""
    tensors = {id(x): x for x in (results[index] for index in leaving) if isinstance(x, Tensor)}
    originals = list(tensors.values())
    if not originals:
        return
    copies = [torch.empty_like(x) for x in originals]
    torch._foreach_copy_(copies, originals)
    by_original = dict(zip(tensors, copies, strict=True))
    for index in leaving:
        results[index] = by_original.get(id(results[index]), results[index])
