"""Memset nodes that become kernel nodes, on a graph that stands in for the driver's; and on a GPU what they write."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("cuda.bindings.driver")

from cuda.bindings import driver as cu

import genesis
from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.cuda_graphs import Captured
from genesis.backends.cuda.runtime import fills

KERNEL, MEMSET, COPY, FREE = (
    getattr(cu.CUgraphNodeType, f"CU_GRAPH_NODE_TYPE_{name}") for name in ("KERNEL", "MEMSET", "MEMCPY", "MEM_FREE")
)
FULL, EARLY = (0, 0), (1, 1)  # an edge's port, and its type
SUCCESS = cu.CUresult.CUDA_SUCCESS


def fill(address: int = 0x1000, value: int = 0, size: int = 1, width: int = 4, height: int = 1) -> Any:
    memset = cu.CUDA_MEMSET_NODE_PARAMS()
    memset.dst, memset.value, memset.elementSize, memset.width, memset.height = address, value, size, width, height
    return memset


class Graph:
    """Nodes by number: their types, parameters and edges."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *nodes: Any) -> None:
        """nodes: types, or parameters of memsets; each depends on the one before."""
        self.kinds = {
            i: MEMSET if isinstance(node, cu.CUDA_MEMSET_NODE_PARAMS) else node for i, node in enumerate(nodes)
        }
        self.parameters: dict[int, Any] = dict(enumerate(nodes))
        self.edges = {(i, i + 1): FULL for i in range(len(nodes) - 1)}
        calls: dict[str, Callable[..., tuple[Any, ...]]] = {
            "cuGraphGetNodes": lambda graph, count=0: (list(self.kinds)[:count], len(self.kinds)),
            "cuGraphNodeGetType": lambda node: (self.kinds[node],),
            "cuGraphMemsetNodeGetParams": lambda node: (self.parameters[node],),
            "cuGraphNodeGetDependencies": functools.partial(self._neighbours, 0),
            "cuGraphNodeGetDependentNodes": functools.partial(self._neighbours, 1),
            "cuGraphAddKernelNode": self._add,
            "cuGraphAddDependencies": self._connect,
            "cuGraphDestroyNode": self._destroy,
            "cuGraphDestroy": lambda graph: self.kinds.clear() or (),
        }
        for name, call in calls.items():
            monkeypatch.setattr(cu, name, lambda *arguments, call=call: (SUCCESS, *call(*arguments)))

    def _neighbours(self, side: int, node: int, count: int = 0) -> tuple[Any, ...]:
        found = [edge for edge in self.edges if edge[1 - side] == node]
        return [edge[side] for edge in found][:count], [data(*self.edges[edge]) for edge in found][:count], len(found)

    def _add(self, graph: object, before: list[int], count: int, launch: Any) -> tuple[int]:
        number = max(self.kinds) + 1
        self.kinds[number], self.parameters[number] = KERNEL, launch
        return (number,)

    def _connect(
        self, graph: object, sources: list[int], targets: list[int], edges: list[Any], count: int
    ) -> tuple[()]:
        assert count == len(sources)
        for source, target, edge in zip(sources, targets, edges, strict=True):
            self.edges[source, target] = edge.from_port, edge.type
        return ()

    def _destroy(self, node: int) -> tuple[()]:
        del self.kinds[node]
        self.edges = {ends: edge for ends, edge in self.edges.items() if node not in ends}
        return ()

    def replace(self, overlaps: bool = True, kernel: Any = 0x77) -> None:
        Captured(self, lambda: None).replace_memsets(lambda: kernel, overlaps)


def data(port: int, kind: int) -> Any:
    edge = cu.CUgraphEdgeData()
    edge.from_port, edge.type = port, kind
    return edge


def launched(launch: Any) -> tuple[int, int, int]:
    """The arguments of a kernel's node."""
    table = ctypes.cast(launch.kernelParams, ctypes.POINTER(ctypes.c_void_p))
    types = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32
    address, word, count = (ctypes.cast(table[i], ctypes.POINTER(kind)).contents.value for i, kind in enumerate(types))
    return address, word, count


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_kernel_stands_between_the_neighbours(monkeypatch: pytest.MonkeyPatch, overlaps: bool) -> None:
    graph = Graph(monkeypatch, KERNEL, fill(), KERNEL, COPY, fill(), fill(), KERNEL)
    graph.replace(overlaps)
    early = EARLY if overlaps else FULL  # only after kernels
    assert list(graph.kinds.values()) == [KERNEL, KERNEL, COPY, *[KERNEL] * 4]
    assert graph.edges == {
        (0, 7): early, (7, 2): FULL, (2, 3): FULL, (3, 8): FULL, (8, 9): early, (9, 6): FULL,
    }  # fmt: skip


def test_a_memset_with_many_neighbours_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(monkeypatch, KERNEL, COPY, fill(), KERNEL, KERNEL)
    graph.edges = {(0, 2): FULL, (1, 2): FULL, (2, 3): FULL, (2, 4): FULL}
    graph.replace()
    assert graph.edges == {(0, 5): FULL, (1, 5): FULL, (5, 3): FULL, (5, 4): FULL}
    alone = Graph(monkeypatch, fill())
    alone.replace()
    assert (alone.kinds, alone.edges) == ({1: KERNEL}, {})


@pytest.mark.parametrize(
    ("memset", "words"),
    [
        (fill(0x1004, 0xAB, 1, 12), (0x1004, 0xABABABAB, 3)),
        (fill(0x1000, 0x1234, 2, 6), (0x1000, 0x12341234, 3)),
        (fill(0x1000, 0x12345678, 4, 1 << 18), (0x1000, 0x12345678, 1 << 18)),
        (fill(0x1002, 0, 1, 4), None),
        (fill(0x1000, 0, 1, 5), None),
        (fill(0x1000, 0, 2, 3), None),
        (fill(0x1000, 0, 1, 4, height=2), None),
        (fill(0x1000, 0, 1, 0), None),
        (fill(0x1000, 0, 4, (1 << 18) + 1), None),
    ],
)
def test_what_is_written(monkeypatch: pytest.MonkeyPatch, memset: Any, words: tuple[int, int, int] | None) -> None:
    graph = Graph(monkeypatch, memset)
    graph.replace()
    if words is None:
        assert graph.kinds == {0: MEMSET}
        return
    launch = graph.parameters[1]
    assert launched(launch) == words
    assert (launch.gridDimX, launch.blockDimX) == (-(-words[2] // 1024), 256)


def test_graphs_that_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for nodes, kernel in (((fill(), FREE), 0x77), ((fill(), KERNEL), None), ((), 0x77)):
        graph = Graph(monkeypatch, *nodes)
        before = dict(graph.kinds), dict(graph.edges)
        graph.replace(kernel=kernel)
        assert (graph.kinds, graph.edges) == before


def test_a_graph_that_cannot_be_changed_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Graph(monkeypatch, fill())
    monkeypatch.setattr(cu, "cuGraphAddKernelNode", lambda *_: (cu.CUresult.CUDA_ERROR_INVALID_VALUE, None))
    monkeypatch.setattr(cu, "cuGetErrorString", lambda error: (SUCCESS, b"the reason"))
    with pytest.raises(KernelError, match="replace a memset: CUDA_ERROR_INVALID_VALUE: the reason"):
        graph.replace()
    assert not graph.kinds


@pytest.mark.gpu
def test_replays_fill_memory_in_its_turn() -> None:
    assert fills._kernel(0) is not None
    sizes = [1, 3, 4, 7, 1024, 1025, 250_000, 300_000]
    xs = [genesis.ones(size, device="cuda") for size in sizes]
    bytes_ = [genesis.ones(size, device="cuda", dtype=genesis.uint8) for size in sizes]
    g = genesis.cuda.Graph()
    with genesis.cuda.graph(g):
        before = [x * 2 for x in (*xs, *bytes_)]
        for x in (*xs, *bytes_):
            x.zero_()
        after = [x + 3 for x in (*xs, *bytes_)]
    for _ in range(2):
        for x in (*xs, *bytes_):
            x.fill_(5)
        g.replay()
        assert all((x == 10).all().item() for x in before)
        assert all((x == 0).all().item() for x in (*xs, *bytes_))
        assert all((x == 3).all().item() for x in after)
