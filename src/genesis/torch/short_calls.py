"""Calls of a captured graph without gradients, without what PyTorch does around a replay; see replaying.py.

Around the replay of a graph for inference, AOTAutograd's runtime and the trees of CUDA graphs take the host as long as
a small network takes the device for one image. Once PyTorch has replayed a graph, a call here is: compare where the
parameters lie, copy the images in, replay, copy the results out. As for steps, whatever is not the plain call goes
PyTorch's way, and a graph that is in any way out of the ordinary always does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from genesis.settings import settings
from genesis.torch import graph_trees, native_steps
from genesis.torch.activations import Function
from genesis.torch.graph_trees import Node
from genesis.torch.replaying import Inputs, Output, is_intact, pick, pick_outputs
from genesis.torch.step_plans import TRIES, Half, Look, Metadata, device_of, is_ordinary, look_of, outputs_of, replayed


class _Facts(NamedTuple):
    """The constants of a graph's calls.

    Attributes:
        node: PyTorch's recording.
        inputs: the arguments that the captured part reads, in its order.
        results: the outputs, all of which the program gets.
        changed: arguments that the graph changes in place, such as running statistics.
    """

    device: int
    node: Node
    inputs: Sequence[int]
    results: list[Output]
    changed: list[int]


class Plan:
    """A captured graph, as its next calls are to run."""

    def __init__(self, facts: _Facts) -> None:
        self._device, self._node = facts.device, facts.node
        self._manager = graph_trees.manager(facts.device)
        self._inputs = Inputs(facts.node, facts.inputs)
        self._results, self._changed = pick_outputs(facts.results), pick(facts.changed)
        self._num_apart = facts.node.unaliased_in_all_paths.count(True)
        self.is_outdated = False

    def run(self, args: Sequence[Tensor]) -> list[Tensor] | None:
        """The graph's results; None where this call has to go PyTorch's way."""
        if torch._C._are_functorch_transforms_active() or not self._is_ready():
            return None
        if not self._inputs.lie(args):
            self.is_outdated = True
            return None
        torch.autograd.graph.increment_version(self._changed(args))
        self._inputs.copy(args)
        node, manager = self._node, self._manager
        assert manager is not None
        assert node.graph is not None
        graph_trees.step_to(manager, node, "INFERENCE")
        node.graph.replay()
        return [x.clone() for x in self._results(node.cached_tensor_outputs)]

    def _is_ready(self) -> bool:
        """Whether the trees would replay this recording next, and nothing of it is gone."""
        node, manager = self._node, self._manager
        return (
            manager is not None
            and manager is graph_trees.manager(self._device)
            and is_intact(node, self._num_apart)
            and graph_trees.begins(self._device, node)
        )


class Calls:
    """The calls of one of Dynamo's graphs."""

    def __init__(self) -> None:
        self.half: Half | None = None
        self._plan: Plan | None = None
        self._metadata: Metadata | None = None
        self._tries = TRIES if settings.short_steps and graph_trees.known() else 0
        self._own: list[Look | None] | None = None  # how the arguments of a call look from which a plan is to be made

    def follow(self, compiled: Function) -> Function:
        """A compiled graph that takes the short way where there is one."""

        def run(*args: object) -> object:
            plan, self._own = self._plan, None
            if plan is not None:
                results = plan.run(args)
                if results is not None:
                    return results
            if self._tries and (plan is None or plan.is_outdated) and not any(isinstance(x, FakeTensor) for x in args):
                self._own = [look_of(x) for x in args]
            return compiled(*args)

        return run

    def captured(self, capturable: bool, metadata: Metadata | None, compiled: object) -> None:
        """Inductor has compiled the graph, and PyTorch is to capture it."""
        self.half, self._metadata = Half(capturable, compiled), metadata
        if self._tries and torch.cuda.is_available():
            native_steps.prepare()

    def looks(self, given: Sequence[object]) -> list[Look | None]:
        """How the inputs of the graph look, if it is to be known."""
        return [] if self._own is None else [look_of(x) for x in given]

    def ran(self, given: list[Look | None], results: Sequence[object]) -> None:
        """The graph ran in PyTorch's way. results: in the graph's memory."""
        own, self._own = self._own, None
        node = replayed(results)
        if own is None or node is None or node.parent is not None:
            return
        self._tries -= 1
        facts = self._facts(own, given, node, results)
        if facts is None:
            self._tries = 0  # what is constant will not change
        else:
            self._plan = Plan(facts)

    def _facts(
        self, own: list[Look | None], given: list[Look | None], node: Node, results: Sequence[object]
    ) -> _Facts | None:
        """Find what is constant in the calls; None where the graph is out of the ordinary."""
        half, metadata, outputs = self.half, self._metadata, outputs_of(node, results)
        if half is None or metadata is None or not half.is_whole or not is_ordinary(metadata, len(results), False):
            return None
        found = [x for x in outputs if x is not None]
        if own != given or None in own or len(set(found)) != len(results):
            return None
        if any(node.expanded_dims[i] for i in node.non_static_input_idx):
            return None
        inputs = range(len(own)) if half.inputs is None else half.inputs
        changed = list(metadata.mutated_graph_handled_indices_seen_by_autograd)
        return _Facts(device_of(results), node, inputs, found, changed)
