"""Nodes of Dynamo's graphs: their values and arguments, and calls in the place of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_map_only

from genesis.torch.activations import Function
from genesis.torch.modes import without_newer_hooks


def value_of(node: object) -> object:
    """The fake tensor of a node, or tuple of them; None for an argument that is no node."""
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def is_plain(value: object) -> TypeGuard[Tensor]:
    """Return whether a node's value is a tensor, and none of a class that has others inside, as quantized weights."""
    return isinstance(value, Tensor) and not is_traceable_wrapper_subclass(value)


def tensor_of(node: object) -> Tensor:
    """The fake tensor of a node that has one."""
    value = value_of(node)
    assert isinstance(value, Tensor)
    return value


def argument(node: fx.Node, position: int, name: str, default: object = None) -> Any:
    """An argument of a call, by position or name."""
    return node.args[position] if len(node.args) > position else node.kwargs.get(name, default)


def call(graph: fx.Graph, function: Function, *args: object, **kwargs: object) -> fx.Node:
    """A call of a function of tensors, whose nodes have values; the new one has too.

    What the function saves of these is no matter of a checkpoint in which the graph is being compiled: when it computes
    again, nothing is compiled, and it would miss them.
    """
    new = graph.call_function(function, args, kwargs)
    with without_newer_hooks(None):
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
