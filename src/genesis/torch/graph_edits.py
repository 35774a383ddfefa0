"""Nodes of Dynamo's graphs: their values, and calls in the place of others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map_only

from genesis.torch.activations import Function


def tensor_of(node: fx.Node) -> Tensor:
    """The fake tensor of a node that has one."""
    value = node.meta["example_value"]
    assert isinstance(value, Tensor)
    return value


def call(graph: fx.Graph, function: Function, *args: object, **kwargs: object) -> fx.Node:
    """A call of a function of tensors, whose nodes have values; the new one has too."""
    new = graph.call_function(function, args, kwargs)
    new.meta["example_value"] = function(*tree_map_only(fx.Node, tensor_of, args), **kwargs)
    return new


def put(new: fx.Node, node: fx.Node) -> None:
    """Put a node in the place of another, in that one's order of memory, on which views in the graph may rely."""
    value = tensor_of(node)
    if tensor_of(new).stride() != value.stride():
        order = torch._prims_common.suggest_memory_format(value)
        new = call(node.graph, torch.Tensor.contiguous, new, memory_format=order)
    new.meta["example_value"] = value
    node.replace_all_uses_with(new)
    node.graph.erase_node(node)


def constant_sizes(value: object, dims: int) -> tuple[int, ...] | None:
    """The sizes per dimension that one or some integers stand for; None for anything else."""
    values: Sequence[object] = tuple(value) if isinstance(value, tuple | list) else (value,)
    sizes = tuple(each for each in values if isinstance(each, int))
    return {1: sizes * dims, dims: sizes}.get(len(values)) if len(sizes) == len(values) else None
