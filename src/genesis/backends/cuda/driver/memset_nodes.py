"""Memset nodes of a captured graph, replaced by nodes of a kernel that fills."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from cuda.bindings import driver as cu

from genesis.backends.cuda.driver.interface import Function
from genesis.backends.cuda.driver.results import check

_TYPE = cu.CUgraphNodeType
_OF_MEMORY = (_TYPE.CU_GRAPH_NODE_TYPE_MEM_ALLOC, _TYPE.CU_GRAPH_NODE_TYPE_MEM_FREE)
_KERNEL = _TYPE.CU_GRAPH_NODE_TYPE_KERNEL
_EARLY_PORT = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, a macro of cuda.h
_MOST_BYTES = 1 << 20  # beside longer memsets, the way to them and on counts little
_THREADS, _WORDS_OF_BLOCK = 256, 1024
_ARGUMENTS = (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)

Neighbours: TypeAlias = tuple[cu.CUresult, list[cu.CUgraphNode], list[cu.CUgraphEdgeData], int]


class Fill(NamedTuple):
    """Words of four bytes that a memset writes."""

    address: int
    word: int
    num_words: int


def replace(graph: cu.CUgraph, kernel: Callable[[], Function | None], overlaps: bool) -> None:
    """Put a kernel in the place of each short memset of whole words.

    Args:
        kernel: gives kernel(address, word, num_words), for any number of blocks of 256 threads; or None.
        overlaps: it may come up while a kernel before it runs, see launch/overlap.py.
    """
    nodes = _nodes(graph)
    kinds = [check(cu.cuGraphNodeGetType(node), "look at a graph's node") for node in nodes]
    if any(kind in _OF_MEMORY for kind in kinds):  # nodes of such a graph cannot be destroyed
        return
    memsets = [node for node, kind in zip(nodes, kinds, strict=True) if kind == _TYPE.CU_GRAPH_NODE_TYPE_MEMSET]
    found = [(node, fill) for node in memsets if (fill := _fill(node)) is not None]
    function = kernel() if found else None
    if function is None:
        return
    for node, fill in found:
        _replace(graph, node, _launch(function, fill), overlaps)


def _nodes(graph: cu.CUgraph) -> Sequence[cu.CUgraphNode]:
    count = check(cu.cuGraphGetNodes(graph), "count a graph's nodes")[1]
    return check(cu.cuGraphGetNodes(graph, count), "list a graph's nodes")[0] if count else []


def _fill(node: cu.CUgraphNode) -> Fill | None:
    """The words that a node writes; None if that stays with the driver."""
    memset = check(cu.cuGraphMemsetNodeGetParams(node), "look at a memset")
    size, address = int(memset.elementSize), int(memset.dst)
    num_bytes = int(memset.width) * size
    if int(memset.height) != 1 or not 0 < num_bytes <= _MOST_BYTES or num_bytes % 4 or address % 4:
        return None
    word = int.from_bytes(int(memset.value).to_bytes(4, "little")[:size] * (4 // size), "little")
    return Fill(address, word, num_bytes // 4)


def _launch(function: Function, fill: Fill) -> cu.CUDA_KERNEL_NODE_PARAMS:
    launch = cu.CUDA_KERNEL_NODE_PARAMS()
    launch.func = function
    launch.gridDimX, launch.gridDimY, launch.gridDimZ = -(-fill.num_words // _WORDS_OF_BLOCK), 1, 1
    launch.blockDimX, launch.blockDimY, launch.blockDimZ = _THREADS, 1, 1
    launch.kernelParams = (tuple(fill), _ARGUMENTS)
    return launch


def _replace(graph: cu.CUgraph, node: cu.CUgraphNode, launch: cu.CUDA_KERNEL_NODE_PARAMS, overlaps: bool) -> None:
    """Put a kernel between a node's neighbours, and take the node away."""
    what = "replace a memset"
    before, into = _neighbours(cu.cuGraphNodeGetDependencies, node)
    if overlaps and len(before) == 1 and check(cu.cuGraphNodeGetType(before[0]), what) == _KERNEL:
        into = [_early()]
    after, out = _neighbours(cu.cuGraphNodeGetDependentNodes, node)
    added = check(cu.cuGraphAddKernelNode(graph, [], 0, launch), what)
    every = [added] * len(before), [added] * len(after)
    check(cu.cuGraphAddDependencies(graph, before, every[0], into, len(before)), what)
    check(cu.cuGraphAddDependencies(graph, every[1], after, out, len(after)), what)
    check(cu.cuGraphDestroyNode(node), what)


def _early() -> cu.CUgraphEdgeData:
    """From a kernel to one that comes up before it has ended."""
    edge = cu.CUgraphEdgeData()
    edge.from_port = _EARLY_PORT
    edge.type = cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC.value
    return edge


def _neighbours(
    ask: Callable[[cu.CUgraphNode, int], Neighbours], node: cu.CUgraphNode
) -> tuple[list[cu.CUgraphNode], list[cu.CUgraphEdgeData]]:
    """Nodes on one side of a node, and the edges to them."""
    what = "look at a graph's edges"
    count = check(ask(node, 0), what)[2]
    if not count:
        return [], []
    nodes, edges, _ = check(ask(node, count), what)
    return nodes, edges
