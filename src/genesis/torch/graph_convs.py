"""Convolutions of Dynamo's graphs that no norm follows: with their sum and activation, or alone.

A ReLU, and a sum before it, are computed in the convolution's own kernel. Other activations take a pass of their own
there, which Inductor makes a part of what comes next; so they are left to it, and the convolution runs alone: by the
plan that Genesis has measured for it, instead of cuDNN's first guess (depthwise, it takes half the time).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch import fx

from genesis.records import ConvGeometry
from genesis.torch import bridge
from genesis.torch.graph_edits import argument, is_plain, tensor_of, value_of
from genesis.torch.graph_orders import in_order
from genesis.torch.graph_scales import folded
from genesis.torch.shapes import Pair


def why_not(node: fx.Node) -> str:
    """Why no op can take the place of a convolution; "" where one can."""
    input, result = value_of(argument(node, 0, "input")), value_of(node)
    weight = value_of(argument(node, 1, "weight"))
    if not (is_plain(input) and is_plain(weight) and is_plain(result) and isinstance(node.args[0], fx.Node)):
        return "its operands are not plain tensors"
    if input.dim() != 4:
        return "its input has no batch dimension"
    if not result.dtype.is_floating_point:
        return f"its dtype is {result.dtype}"
    if not (input.device == weight.device and input.device.type in ("cpu", "cuda")):
        return f"it runs on {input.device}"
    if any(isinstance(size, int) and size < 1 for size in (*result.shape, *input.shape)):
        return "its result is empty"
    return "" if _geometry(node) is not None else "its padding is asymmetric"


def geometry_of(conv: fx.Node) -> ConvGeometry:
    """Stride, padding and dilation as pairs, groups, of a convolution for which why_not() is ""."""
    geometry = _geometry(conv)
    assert geometry is not None
    return geometry


def _geometry(node: fx.Node) -> ConvGeometry | None:
    """None: the padding is asymmetric."""
    stride, padding, dilation = (
        argument(node, position, name, default)
        for position, name, default in ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))
    )
    stride, dilation = _pair(stride), _pair(dilation)
    if isinstance(padding, str):
        kernel = tensor_of(argument(node, 1, "weight")).shape[2:]
        reach = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
        if any(r % 2 for r in reach):
            return None
        padding = tuple(r // 2 for r in reach)
    return ConvGeometry(stride, _pair(padding), dilation, argument(node, 6, "groups", 1))


def _pair(value: int | Sequence[int]) -> Pair:
    return (value[0], value[-1]) if isinstance(value, Sequence) else (value, value)


def operands(
    graph: fx.Graph, conv: fx.Node, keeps_parameters: bool = False, factors: Sequence[fx.node.Argument] = ()
) -> list[fx.Node | None]:
    """Input, weight and bias, scaled and cast to the dtype of the result, which under autocast is not theirs."""
    dtype = tensor_of(conv).dtype
    given = [argument(conv, i, name) for i, name in enumerate(("input", "weight", "bias"))]
    for factor in factors:
        given[1:] = folded(graph, given[1], given[2], factor)
    casts = [
        x is not None and tensor_of(x).dtype != dtype and not (keeps_parameters and i) for i, x in enumerate(given)
    ]
    return [graph.call_method("to", (x, dtype)) if cast else x for x, cast in zip(given, casts, strict=True)]


def put_conv_act(
    graph: fx.Graph, conv: fx.Node, last: fx.Node, residual: fx.Node | None = None, activation: str | None = None,
    keeps: str | None = None, factors: Sequence[fx.node.Argument] = (),
) -> None:  # fmt: skip
    """Put one op in the place of the last layer of a chain, from the convolution on.

    keeps: what the op keeps for its backward, "input" or "result" of the activation.
    """
    with graph.inserting_before(last.next):
        args = (*operands(graph, conv, factors=factors), residual, *geometry_of(conv), activation, keeps)
        both = graph.call_function(torch.ops.genesis.conv_act, args)
        result = in_order(graph, graph.call_function(operator.getitem, (both, 0)), last)
    last.replace_all_uses_with(result)


def runs_alone(conv: fx.Node) -> bool:
    """Does a convolution with which nothing is fused run by a plan of Genesis'? Not where that would reorder images."""
    value, weight = tensor_of(conv), tensor_of(argument(conv, 1, "weight"))
    is_in_order = isinstance(value.stride(1), int) and value.stride(1) == 1
    return is_in_order and bridge.convolves(value, weight, value.dtype, geometry_of(conv).groups)


def run_alone(graph: fx.Graph, conv: fx.Node) -> None:
    put_conv_act(graph, conv, conv)
    graph.erase_node(conv)
