"""Group norms in Dynamo's graphs, where one op with the activation moves no more memory than Inductor's kernels would.

Inductor computes what stands before and after a norm element by element (a convolution's bias, a sum, a cast) in the
norm's own passes over memory, which an op that is opaque to it cannot. So norms are replaced between convolutions
alone, the first one without a bias; there the op reads and writes channels-last images as often as Inductor does, and
the activation's gradient is not written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple, TypeGuard

import torch
from torch import Tensor, fx
from torch.fx.node import Argument
from torch.nn import functional

from genesis.torch import norms
from genesis.torch.graph_edits import value_of

_NAMES = ("input", "num_groups", "weight", "bias", "eps")


class GroupNorm(NamedTuple):
    """A group norm, the activation that alone takes its result, and how that is called."""

    norm: fx.Node
    last: fx.Node
    activation: str | None


def replace_group_norms(graph: fx.Graph, activation_of: Callable[[fx.Node], str | None]) -> list[str]:
    """Put torch.ops.genesis.group_norm in the place of norms that it suits. Returns: their names."""
    found = [each for node in graph.nodes if (each := _find(node, activation_of)) is not None]
    for norm, last, activation in found:
        input, num_groups, weight, bias, eps = _arguments(norm)
        assert isinstance(eps, int | float)  # _find has asked
        with graph.inserting_before(norm):
            args = (input, num_groups, weight, bias, float(eps), activation)
            results = graph.call_function(torch.ops.genesis.group_norm, args)
            result = graph.call_function(operator.getitem, (results, 0))
        result.meta["example_value"] = last.meta["example_value"]
        last.replace_all_uses_with(result)
        for node in dict.fromkeys((last, norm)):
            graph.erase_node(node)
    return [each.norm.name for each in found]


def _find(node: fx.Node, activation_of: Callable[[fx.Node], str | None]) -> GroupNorm | None:
    if node.target is not functional.group_norm:
        return None
    input, num_groups, weight, bias, eps = _arguments(node)
    x, y, *parameters = (value_of(each) for each in (input, node, weight, bias))
    if not (_is_image(x) and norms.has_kernels(x) and _is_image(y, any_order=True) and y.dtype == x.dtype):
        return None
    given = [value for value, each in zip(parameters, (weight, bias), strict=True) if each is not None]
    tensors = [each for each in given if isinstance(each, Tensor)]
    if len(tensors) < len(given) or not norms.fits(x, num_groups, tensors):
        return None
    last, activation = node, None
    if len(node.users) == 1:
        (user,) = node.users
        activation = activation_of(user) if user.all_input_nodes == [node] else None
        activated = value_of(user)
        if activation is not None and isinstance(activated, Tensor) and activated.dtype == x.dtype:
            last = user
        else:
            activation = None
    suits = isinstance(eps, int | float) and _is_unbiased_conv(input) and last.users
    return GroupNorm(node, last, activation) if suits and all(_is_conv_of(user, last) for user in last.users) else None


def _arguments(node: fx.Node) -> list[Argument]:
    """Return those of _NAMES."""
    given = dict(zip(_NAMES, node.args, strict=False))
    every = {"weight": None, "bias": None, "eps": 1e-5, **given, **node.kwargs}
    return [every.get(name) for name in _NAMES]


def _is_image(value: object, any_order: bool = False) -> TypeGuard[Tensor]:
    """Whether this is a tensor of known size, channels last."""
    if not isinstance(value, Tensor) or value.dim() != 4 or not all(isinstance(size, int) for size in value.shape):
        return False
    return any_order or value.is_contiguous(memory_format=torch.channels_last)


def _is_unbiased_conv(node: Argument) -> bool:
    return isinstance(node, fx.Node) and node.target is torch.conv2d and _bias(node) is None


def _is_conv_of(node: fx.Node, input: fx.Node) -> bool:
    """Whether this convolves the input alone, and gives channels last whatever the input's order is."""
    operands = (node.args[0] if node.args else None, *node.args[1:], *node.kwargs.values())
    alone = operands[0] is input and sum(each is input for each in operands) == 1
    return node.target is torch.conv2d and alone and _is_image(value_of(node)) and _is_image(_weight(node))


def _weight(node: fx.Node) -> object:
    return value_of(node.args[1] if len(node.args) > 1 else node.kwargs.get("weight"))


def _bias(node: fx.Node) -> Argument:
    return node.args[2] if len(node.args) > 2 else node.kwargs.get("bias")
