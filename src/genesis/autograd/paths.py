"""The nodes of a graph that a walk backwards visits."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from genesis.autograd.graph import Edge, Node

if TYPE_CHECKING:
    from genesis.tensor import Tensor

NUMBER = operator.attrgetter("number")  # a node is younger, and its number higher, than those of its inputs


def reachable(roots: Iterable[Node | None]) -> dict[Node, None]:
    nodes: dict[Node, None] = {}
    stack = [root for root in roots if root is not None]
    while stack:
        node = stack.pop()
        if node not in nodes:
            nodes[node] = None
            stack.extend([target for target, _ in filter(None, node.edges) if type(target) is Node])
    return nodes


def leaves(roots: Iterable[Node | None]) -> list[Tensor]:
    """The leaves that the graph ends at."""
    edges = (edge for node in reachable(roots) for edge in node.edges if edge is not None)
    found = {id(target): target for target, _ in edges if type(target) is not Node}
    return list(found.values())


def leading_to(nodes: Iterable[Node], targets: Sequence[Edge]) -> dict[Node, None]:
    """The nodes whose gradients are asked for or lead to such a one."""
    wanted = {id(target) for target, _ in targets}
    kept: dict[Node, None] = {}
    for node in sorted(nodes, key=NUMBER):
        wanted_here = id(node) in wanted
        for edge in node.edges:
            if wanted_here:
                break
            wanted_here = edge is not None and (id(edge[0]) in wanted or edge[0] in kept)
        if wanted_here:
            kept[node] = None
    return kept
