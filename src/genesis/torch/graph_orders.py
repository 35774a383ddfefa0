"""The order of memory of images between the fused ops of Dynamo's graphs: theirs, channels-last.

A fused op's result is copied into the order that PyTorch's layers would give it, of which other code may know. Another
fused op takes what was copied: in a model that is not in channels-last, only what PyTorch's own ops read is copied.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor, fx

from genesis.torch import conv_act as conv_act  # these register the ops
from genesis.torch import graph_ops as graph_ops
from genesis.torch import pooling as pooling

_COPY = "genesis_copy"  # of a fused op's result: marks nodes
_OPS = {torch.ops.genesis.conv_bn_relu, torch.ops.genesis.conv_act, torch.ops.genesis.conv_bn_relu_inference}
_POOL = torch.ops.genesis.max_pool2d  # whose result is in the order of its input


def in_order(graph: fx.Graph, result: fx.Node, like: fx.Node) -> fx.Node:
    """The channels-last result of an op in the order of memory of the node that it replaces."""
    value = like.meta.get("example_value")
    assert isinstance(value, Tensor)
    result.meta["example_value"] = value
    if isinstance(value.stride(1), int) and value.stride(1) == 1:
        return result
    copy = graph.call_method("contiguous", (result,))  # of what AOTAutograd's cache must know to be a tensor
    copy.meta |= {"example_value": value, _COPY: True}
    return copy


def pass_on_channels_last(graph: fx.Graph, is_changed: Callable[[fx.Node], bool]) -> None:
    """Have fused ops take the results of others without the copies of these, unless something changes a copy."""
    copies = [node for node in graph.nodes if _COPY in node.meta]
    for node in list(graph.nodes):
        if node.op == "call_function" and (node.target in _OPS or node.target is _POOL):
            taken = [x for x in node.all_input_nodes if _COPY in x.meta and not is_changed(x)]
            for copy in taken:
                node.replace_input_with(copy, copy.all_input_nodes[0])
            if taken and node.target is _POOL:
                copies += _copied(graph, node)
    for copy in reversed(copies):
        if not copy.users:
            graph.erase_node(copy)


def _copied(graph: fx.Graph, pool: fx.Node) -> list[fx.Node]:
    """Copies of a pooling's result for all its users."""
    found = []
    for result in [x for x in pool.users if x.target is operator.getitem and x.args[1] == 0]:
        users = list(result.users)
        with graph.inserting_after(result):
            copy = in_order(graph, result, result)
        for user in users:
            user.replace_input_with(result, copy)
        found.append(copy)
    return found
