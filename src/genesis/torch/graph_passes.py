"""Rewritings of recorded graphs that spare launches and passes over memory."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx


def count_batches_at_once(graph: fx.Graph) -> int:
    """Batch norms' counters, which nobody else uses in a graph of Dynamo's, grow by one launch. Returns: how many."""
    found = [node for node in graph.nodes if _counts_a_batch(node)]
    if len(found) < 2:
        return 0
    with graph.inserting_before(found[0]):
        graph.call_function(torch._foreach_add_, ([node.args[0] for node in found], 1))
    for node in found:
        graph.erase_node(node)
    return len(found)


def _counts_a_batch(node: fx.Node) -> bool:
    if node.target not in ("add_", operator.iadd) or len(node.args) != 2 or node.args[1] != 1 or node.kwargs:
        return False
    counter = node.args[0]
    if node.users or not isinstance(counter, fx.Node) or counter.op != "placeholder" or len(counter.users) != 1:
        return False
    value = counter.meta.get("example_value")
    return isinstance(value, Tensor) and value.dtype is torch.int64 and value.dim() == 0


def add_gradients_in_the_op(graph: fx.Graph) -> int:
    """Let the backward of conv_bn_relu add another gradient of its input, while its own is in registers.

    Returns: in how many places of a backward graph.
    """
    from genesis.torch import graph_ops as graph_ops  # registers the op

    order = {node: index for index, node in enumerate(graph.nodes)}
    number = 0
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.add.Tensor and len(node.args) == 2 and not node.kwargs:
            pair = _gradient_and_addend(node, order)
            if pair is not None:
                _add_in(graph, node, *pair, order)
                number += 1
    return number


def _gradient_and_addend(node: fx.Node, order: dict[fx.Node, int]) -> tuple[fx.Node, fx.Node] | None:
    """Return, of a sum, the gradient that a backward has just computed, and the other, which was there before."""
    for gradient, addend in (node.args, node.args[::-1]):
        if not (isinstance(gradient, fx.Node) and isinstance(addend, fx.Node)) or gradient is addend:
            continue
        values = [_described(x) for x in (gradient, addend, node)]
        if not (_is_input_gradient(gradient) and len(gradient.users) == 1 and values[0] == values[1] == values[2]):
            continue
        if values[0] is not None and order[addend] < order[_op_of(gradient)]:
            return gradient, addend
    return None


def _described(node: fx.Node) -> tuple[object, ...] | None:
    value = node.meta.get("val")
    return (value.shape, value.stride(), value.dtype, value.device) if isinstance(value, Tensor) else None


def _is_input_gradient(node: fx.Node) -> bool:
    return (
        node.target is operator.getitem
        and node.args[1] == 0
        and _op_of(node).target is torch.ops.genesis.conv_bn_relu_backward.default
    )


def _op_of(item: fx.Node) -> fx.Node:
    assert isinstance(item.args[0], fx.Node)
    return item.args[0]


def _add_in(graph: fx.Graph, total: fx.Node, gradient: fx.Node, addend: fx.Node, order: dict[fx.Node, int]) -> None:
    op = _op_of(gradient)
    with graph.inserting_before(op):
        new = graph.call_function(torch.ops.genesis.conv_bn_relu_backward_add.default, (addend, *op.args))
    new.meta = _meta_with(addend, op)
    order[new] = order[op]
    op.replace_all_uses_with(new)
    total.replace_all_uses_with(gradient)
    graph.erase_node(total)
    graph.erase_node(op)


def _meta_with(addend: fx.Node, op: fx.Node) -> dict[str, object]:
    """Return what is known of op, which has one more argument: Inductor lays them out as they were when recorded."""
    meta = dict(op.meta)
    if "eager_input_vals" in meta:
        args, kwargs = meta["eager_input_vals"]
        meta["eager_input_vals"] = (addend.meta["val"], *args), kwargs
    return meta
