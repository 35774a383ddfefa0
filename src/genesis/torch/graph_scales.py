"""Scales of convolutions' results, and dropout that drops nothing, in Dynamo's graphs."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx
from torch.nn import functional

from genesis.torch import scales
from genesis.torch.graph_edits import value_of

_MULS = {operator.mul, operator.imul, torch.mul, torch.multiply, "mul", "mul_", "multiply", "multiply_"}
_DROPOUTS = {functional.dropout, functional.dropout2d, torch.dropout}


def scaled_by(node: fx.Node) -> tuple[fx.Node, object] | None:
    """The node that this one scales, a convolution or a scale of one, and the factor; None if it does not fold."""
    if node.target not in _MULS or len(node.args) != 2 or node.kwargs:
        return None
    orders = [node.args] if node.target in ("mul_", "multiply_", operator.imul) else [node.args, node.args[::-1]]
    for scaled, factor in orders:
        conv = scaled
        while isinstance(conv, fx.Node) and conv.target in _MULS and conv.args:
            conv = conv.args[0] if isinstance(conv.args[0], fx.Node) else conv.args[-1]
        if not isinstance(scaled, fx.Node) or not isinstance(conv, fx.Node) or conv.target is not torch.conv2d:
            continue
        weight = conv.args[1] if len(conv.args) > 1 else conv.kwargs.get("weight")
        y, of_weight, result = value_of(scaled), value_of(weight), value_of(node)
        value = value_of(factor) if isinstance(factor, fx.Node) else factor
        if isinstance(y, Tensor) and isinstance(of_weight, Tensor) and isinstance(result, Tensor):
            is_trained = isinstance(value, Tensor) and value.requires_grad and result.requires_grad
            fits = result.shape == y.shape and result.dtype == y.dtype and not is_trained
            if fits and scales.folds(y, of_weight, value):
                return scaled, factor
    return None


def folded(graph: fx.Graph, weight: fx.Node, bias: fx.Node | None, factor: fx.node.Argument) -> list[fx.Node | None]:
    """Nodes of the scaled weight and bias."""
    shapes = scales.shapes(value_of(factor))
    results: list[fx.Node | None] = []
    for position, each in enumerate((weight, bias)):
        scaled = None
        if each is not None:
            view = factor if shapes is None else graph.call_method("reshape", (factor, shapes[position]))
            scaled = graph.call_function(torch.mul, (each, view))
            scaled.meta["example_value"] = value_of(each)  # of the same shape and dtype
        results.append(scaled)
    return results


def name_values_once(graph: fx.Graph) -> None:
    """Let one node alone stand for a tensor where PyTorch gives the very same back.

    Dropout in evaluation, or of nothing, does; and a method that changed a convolution's result in place, whose later
    uses take the method's node.
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        changed = node.args[0] if node.op == "call_method" and node.args and node.target in _MULS else None
        if isinstance(changed, fx.Node) and node.target.endswith("_") and changed.target is torch.conv2d:
            changed.replace_all_uses_with(node, lambda user, node=node: order[user] > order[node])
        if node.target in _DROPOUTS and node.args and isinstance(node.args[0], fx.Node):
            given = {**dict(zip(("input", "p", "training"), node.args, strict=False)), **node.kwargs}
            p, training = given.get("p", 0.5), given.get("training", given.get("train", True))
            if type(p) in (int, float) and 0 <= p <= 1 and (p == 0 or training is False):
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
