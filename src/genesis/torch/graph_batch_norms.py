"""Batch norms in Dynamo's graphs that follow no convolution: one op with the activation that takes their result.

Inductor generates and compiles kernels for each number of channels, of which a dense network has as many as layers.
Genesis' are compiled once for all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch.nn import functional

from genesis.torch import batch_norms
from genesis.torch.graph_edits import argument, value_of


def replace_batch_norms(graph: fx.Graph, activation_of: Callable[[fx.Node], str | None]) -> list[str]:
    """Put torch.ops.genesis.batch_norm in the place of norms that are in training. Returns: their names."""
    found = [(node, last) for node in graph.nodes if (last := _activated(node, activation_of)) is not None]
    for norm, last in found:
        names = ("input", "running_mean", "running_var", "weight", "bias")
        input, mean, var, gamma, beta = (argument(norm, i, name) for i, name in enumerate(names))
        momentum, eps = argument(norm, 6, "momentum", 0.1), argument(norm, 7, "eps", 1e-5)
        args = (input, gamma, beta, mean, var, float(momentum), float(eps), activation_of(last))
        with graph.inserting_before(norm):
            results = graph.call_function(torch.ops.genesis.batch_norm, args)
            result = graph.call_function(operator.getitem, (results, 0))
        result.meta["example_value"] = last.meta["example_value"]
        last.replace_all_uses_with(result)
        graph.erase_node(last)
        graph.erase_node(norm)
    return [norm.name for norm, _ in found]


def _activated(node: fx.Node, activation_of: Callable[[fx.Node], str | None]) -> fx.Node | None:
    """The activation that alone takes a norm's result, if the op suits both."""
    if node.target is not functional.batch_norm or len(node.users) != 1:
        return None
    (user,) = node.users
    x, y, activated = (value_of(each) for each in (node.args[0] if node.args else None, node, user))
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and isinstance(activated, Tensor)):
        return None
    if not (x.dtype == y.dtype == activated.dtype) or user.all_input_nodes != [node] or activation_of(user) is None:
        return None
    training, *numbers = (
        argument(node, 5, "training", False),
        argument(node, 6, "momentum", 0.1),
        argument(node, 7, "eps", 1e-5),
    )
    is_constant = training is True and all(isinstance(each, int | float) for each in numbers)
    return user if is_constant and batch_norms.takes(x) else None
