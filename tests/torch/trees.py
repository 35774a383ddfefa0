"""PyTorch's trees of CUDA graphs without a GPU: a graph's inputs and outputs are always in the same memory, and what a
replay may overwrite is overwritten with NaN."""

from __future__ import annotations

import contextlib
import gc
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._inductor import compile_fx, cudagraph_trees

from genesis.settings import override
from genesis.torch import (
    bridge,
    captured_graphs,
    capturing,
    graph_casts,
    graph_linears,
    graph_trees,
    outstanding,
    replaying,
    short_calls,
    step_plans,
)


@pytest.fixture
def trees() -> Iterator[Manager]:
    torch._dynamo.reset()
    with simulated() as manager, override(short_steps=True):
        yield manager


@pytest.fixture
def steps() -> Iterator[Counter[str]]:
    """What ran in the short way."""
    with short_steps() as counts:
        yield counts


@contextlib.contextmanager
def simulated() -> Iterator[Manager]:
    """Graphs that genesis.torch.compile captures go to a simulated manager, as if the CPU were a CUDA device."""
    manager = Manager()
    places: list[tuple[object, str, object]] = [
        (compile_fx, "compile_fx_inner", lambda graph, *_, **how: Half(manager, graph, how)),
        (captured_graphs, "is_captured", lambda how: True),
        (captured_graphs, "_open_handles", lambda: None),
        (bridge, "multiplies", lambda x: x.dtype is torch.float32),
        (capturing, "available", lambda compiler, _: compiler),
        (graph_casts, "_has_launches", lambda x: True),
        *((graph_linears, name, 1) for name in ("_ALIGNED", "_LEAST_FLOPS", "_LEAST_TERMS")),
        (graph_trees, "_have_addresses", _have_addresses),
        (graph_trees, "manager", lambda device: manager),
        (outstanding, "_managers", lambda: [manager]),
        (step_plans, "_DEVICE", "cpu"),
    ]
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))  # of what Inductor compiled
        for place, name, what in places:
            stack.enter_context(mock.patch.object(place, name, what))
        yield manager


def _have_addresses(tensors: Any, addresses: Any, indices: Any) -> bool:
    return all(tensors[index].data_ptr() == addresses[index] for index in indices)


@contextlib.contextmanager
def short_steps() -> Iterator[Counter[str]]:
    """Counts what runs in the short way, on simulated trees or real ones: forwards, backwards, calls without either."""
    counts: Counter[str] = Counter()
    forward, run, call = replaying.Plan.replay_forward, replaying.Plan._run, short_calls.Plan.run

    def counted(self: Any, args: Any) -> Any:
        counts["forward"] += 1
        return forward(self, args)

    def counted_run(self: Any, node: Any, is_backward: bool) -> None:
        counts["backward"] += is_backward
        run(self, node, is_backward)

    def counted_call(self: Any, args: Any) -> Any:
        results = call(self, args)
        counts["call"] += results is not None
        return results

    with (
        mock.patch.multiple(replaying.Plan, replay_forward=counted, _run=counted_run),
        mock.patch.object(short_calls.Plan, "run", counted_call),
    ):
        yield counts


class Manager:
    """A tree of recordings. A graph's first call warms up, its second records."""

    def __init__(self) -> None:
        self.current_node: Any = None
        self.path_state: Any = cudagraph_trees.ExecutionState.NONE
        self.mode: Any = None
        self.running_forwards_with_pending_backwards = False
        self.roots: dict[Half, list[Node]] = defaultdict(list)
        self.num_recorded = self.num_replayed = 0

    def update_generation(self) -> None:
        pass

    def run(self, half: Half, inputs: list[Any]) -> list[Any]:
        if self.current_node is not None and not self.running_forwards_with_pending_backwards and half.mode != "b":
            assert _are_dead(self.current_node.path()), "a new step, and something is alive"
            self.current_node = None
        results = self._run(half, inputs)
        self.running_forwards_with_pending_backwards = half.mode == "f" or (
            half.mode == "i" and self.running_forwards_with_pending_backwards
        )
        return results

    def _run(self, half: Half, inputs: list[Any]) -> list[Any]:
        if not half.is_warm:
            half.is_warm = True
            return half.compute(inputs)
        nodes = self.roots[half] if self.current_node is None else self.current_node.children[half]
        node = next((node for node in nodes if node.fits(inputs)), None)
        if node is None:
            if self.path_state is cudagraph_trees.ExecutionState.EXECUTION:
                self._end_if_it_seems_dead()
            nodes = self.roots[half] if self.current_node is None else self.current_node.children[half]
            node = Node(self, half, inputs)
            nodes.append(node)
            self.num_recorded += 1
            self.path_state = cudagraph_trees.ExecutionState.RECORDING
        else:
            self.path_state = cudagraph_trees.ExecutionState.EXECUTION
        self.current_node = node
        return node.run(inputs)

    def try_end_curr_execution(self) -> None:
        """Called by steps that run without PyTorch."""
        assert self.current_node is not None
        assert self.path_state is cudagraph_trees.ExecutionState.EXECUTION
        is_dead = _are_dead(self.current_node.path())
        if is_dead or not self.running_forwards_with_pending_backwards:
            assert is_dead, "a new step, and something is alive"
            self.current_node = None

    def _end_if_it_seems_dead(self) -> None:
        """Where nothing of the path that was replayed seems to be alive, a recording may get its memory."""
        path = [] if self.current_node is None else self.current_node.path()
        if all(node.all_seem_dead() for node in path):
            for node in path:
                _overwrite(node.memory())
            self.current_node = None


class Node:
    """A recording."""

    def __init__(self, manager: Manager, half: Half, inputs: list[Any]) -> None:
        self._manager, self._half, self.parent = manager, half, manager.current_node
        self.wrapped_function = types.SimpleNamespace(id=half)
        self.children: dict[Half, list[Node]] = defaultdict(list)
        managed = {} if self.parent is None else {x.data_ptr() for n in self.parent.path() for x in n.memory()}
        self.static_input_idxs = [
            i for i, x in enumerate(inputs) if i in half.static or (isinstance(x, Tensor) and x.data_ptr() in managed)
        ]
        self.static_input_data_ptrs = [x.data_ptr() if i in self.static_input_idxs else None for i, x in _all(inputs)]
        self.non_static_input_idx = [i for i in range(len(inputs)) if i not in self.static_input_idxs]
        self.expanded_dims = [compile_fx.get_expanded_dims(x) for x in inputs]
        static = self.static_input_idxs
        self.reconstructed_inputs = [
            _not_owning(x) if i in static else compile_fx.static_input(x.detach()) for i, x in _all(inputs)
        ]
        self.cached_tensor_outputs: list[Tensor | None] = []
        self.unaliased_in_all_paths: list[bool] = []
        self.graph = types.SimpleNamespace(replay=self.replay)

    def path(self) -> list[Node]:
        return [*([] if self.parent is None else self.parent.path()), self]

    def memory(self) -> list[Tensor]:
        return [x for x in self.cached_tensor_outputs if x is not None]

    def all_dead(self) -> bool:
        memory = self.memory()
        return not any(sys.getrefcount(x) > _OURS or _uses(x) > _USES for x in memory)

    def all_seem_dead(self) -> bool:
        """As PyTorch's trees see it (2.11 to 2.13): a reference by C++ is taken for the cache's own."""
        memory = self.memory()
        return not any(sys.getrefcount(x) - (x._use_count() > 1) > _OURS or _uses(x) > _USES for x in memory)

    def overwrite_dead(self) -> None:
        memory = self.memory()
        _overwrite([x for x in memory if sys.getrefcount(x) <= _OURS and _uses(x) <= _USES])

    def fits(self, inputs: list[Any]) -> bool:
        return all(inputs[i].data_ptr() == self.static_input_data_ptrs[i] for i in self.static_input_idxs)

    def run(self, inputs: list[Any]) -> list[Any]:
        for index in self.non_static_input_idx:
            one, other, dims = self.reconstructed_inputs[index], inputs[index], self.expanded_dims[index]
            compile_fx.index_expanded_dims_and_copy_(one, other.detach(), dims)
        inputs.clear()
        self.replay()
        return list(self.cached_tensor_outputs)

    def replay(self) -> None:
        self._manager.num_replayed += 1
        results = self._half.compute(list(self.reconstructed_inputs))
        if not self.cached_tensor_outputs:
            self.cached_tensor_outputs = [compile_fx.static_input(x).data for x in results]
            self.unaliased_in_all_paths = [True] * len(results)
        later = [node for nodes in self.children.values() for node in nodes]
        while later:
            node = later.pop()
            later += [each for nodes in node.children.values() for each in nodes]
            _overwrite(node.memory())
        if self._half.mode == "b":
            for node in self.path()[:-1]:
                node.overwrite_dead()
        for kept, result in zip(self.memory(), results, strict=True):
            kept.data.copy_(result)


class Half:
    """A graph that Inductor has compiled. Its captured part has its inputs in another order, and gives the results that
    lie where none of its inputs always lies."""

    def __init__(self, manager: Manager, graph: Any, how: dict[str, Any]) -> None:
        self._manager, self._graph, self._boxed_call = manager, graph, True
        self.mode = "b" if how.get("is_backward") else "i" if how.get("is_inference") else "f"
        self.is_warm = False
        nodes = list(graph.graph.nodes)
        self._given = [node for node in nodes if node.op == "placeholder"]
        self._order = list(reversed(range(len(self._given))))
        self._results = list(nodes[-1].args[0])
        self.static = {self._order.index(i) for i in how.get("static_input_idxs") or ()}
        self.partition_maps = [types.SimpleNamespace(input_index_mapping=self._order)]
        self.current_callable = self._call

    def __call__(self, inputs: Any) -> Any:
        return self.current_callable(inputs)

    def _is_given(self, result: Any) -> bool:
        return result is None or (result in self._given and self._order.index(self._given.index(result)) in self.static)

    def compute(self, inputs: list[Any]) -> list[Any]:
        given = [inputs[self._order.index(i)] for i in range(len(self._given))]
        for node, x in zip(self._given, given, strict=True):
            if isinstance(x, Tensor):  # Inductor's code takes them for granted, and asserts them
                expected = node.meta["val"]
                assert x.shape == expected.shape, f"{node}: {x.shape} instead of {expected.shape}"
                assert _strides(x) == _strides(expected), f"{node}: {x.stride()} instead of {expected.stride()}"
        results = self._graph(*given)
        del given
        inputs.clear()
        return [x for x, node in zip(results, self._results, strict=True) if not self._is_given(node)]

    def _call(self, inputs: list[Any]) -> list[Any]:
        given = dict(zip(self._given, inputs, strict=True))
        part = [inputs[i] for i in self._order]
        inputs.clear()
        results = iter(self._manager.run(self, part))
        return [None if x is None else given[x] if self._is_given(x) else next(results) for x in self._results]


def _are_dead(nodes: list[Node]) -> bool:
    """Is all that recordings gave gone? Circles of an error's frames hold it until they are collected."""
    if all(node.all_dead() for node in nodes):
        return True
    gc.collect()
    return all(node.all_dead() for node in nodes)


_OURS = 4  # references to a result: two lists, a loop, and the call that counts
_USES = 2  # of its memory: by the tensor, and by the object that counts


def _uses(x: Tensor) -> int:
    return torch._C._storage_Use_Count(x.untyped_storage()._cdata)


def _not_owning(x: Tensor) -> Tensor:
    """The tensor, as a recording knows it: by its address."""
    memory = x.untyped_storage()
    there = torch._C._construct_storage_from_data_pointer(memory.data_ptr(), x.device, memory.nbytes())
    return torch.empty(0, dtype=x.dtype).set_(there, x.storage_offset(), x.shape, x.stride())


def _all(inputs: list[Any]) -> Any:
    return list(enumerate(inputs))


def _strides(x: Tensor) -> list[int]:
    return [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size != 1]


def _overwrite(memory: list[Tensor]) -> None:
    for x in memory:
        if x.is_floating_point():
            x.data.fill_(float("nan"))  # no version of a tensor shows what a replay does
