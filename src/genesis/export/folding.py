"""Batch norms folded into the weights of the convolutions before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genesis.export.graph import Graph

if TYPE_CHECKING:
    import onnx_ir as ir


def fold_batch_norms(graph: Graph, outputs: dict[str, ir.Value]) -> None:
    """Fold each norm whose convolution has constant weights, and whose values nobody else asks for."""
    kept = {id(value) for value in outputs.values()}
    uses = {id(value): len(value.uses()) for value in graph.initializers.values()}
    for norm in [node for node in graph.nodes if node.op_type == "BatchNormalization"]:
        convolved = norm.inputs[0]
        conv = None if convolved is None else convolved.producer()
        if conv is None or conv.op_type != "Conv" or convolved is None or len(convolved.uses()) > 1:
            continue
        weight, bias = conv.inputs[1], conv.inputs[2] if len(conv.inputs) > 2 else None
        constants = [weight, *norm.inputs[1:], *([bias] if bias is not None else [])]
        if id(convolved) in kept or any(each is None or each.const_value is None for each in constants):
            continue
        assert weight is not None
        if uses[id(weight)] > 1:
            continue  # it has further convolutions, without this norm
        _fold(graph, conv, norm, outputs)


def _fold(graph: Graph, conv: ir.Node, norm: ir.Node, outputs: dict[str, ir.Value]) -> None:
    gamma, beta, mean, var = (_elements(value) for value in norm.inputs[1:])
    weight = conv.inputs[1]
    assert weight is not None
    kernel = _elements(weight)
    bias = conv.inputs[2] if len(conv.inputs) > 2 else None
    scale = gamma / np.sqrt(var + norm.attributes["epsilon"].as_float())
    shift = ((0.0 if bias is None else _elements(bias)) - mean) * scale + beta
    dtype = weight.const_value.numpy().dtype
    folded = (kernel * scale.reshape(-1, *[1] * (kernel.ndim - 1))).astype(dtype)
    name = str(weight.name)
    del graph.initializers[name]
    graph.names.discard(name)
    conv.replace_input_with(1, graph.initializer(folded, name))
    if bias is not None and len(bias.uses()) == 1:
        del graph.initializers[str(bias.name)]
        graph.names.discard(str(bias.name))
    shifted = graph.initializer(shift.astype(dtype), f"{name.removesuffix('.weight')}.bias")
    if len(conv.inputs) < 3:
        conv.resize_inputs(3)
    conv.replace_input_with(2, shifted)
    made, convolved = norm.outputs[0], conv.outputs[0]
    made.replace_all_uses_with(convolved)
    for key, output in outputs.items():
        if output is made:
            convolved.name, convolved.type, convolved.shape = made.name, made.type, made.shape
            outputs[key] = convolved
    for index in range(len(norm.inputs)):
        norm.replace_input_with(index, None)
    graph.nodes.remove(norm)


def _elements(value: ir.Value | None) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    assert value is not None
    return value.const_value.numpy().astype(np.float64)


def drop_unused(graph: Graph, outputs: dict[str, ir.Value]) -> None:
    """Remove nodes and constants that no output depends on."""
    kept = {id(value) for value in outputs.values()}
    for node in reversed(graph.nodes):
        if not any(output.uses() or id(output) in kept for output in node.outputs):
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
    graph.nodes = [node for node in graph.nodes if any(output.uses() or id(output) in kept for output in node.outputs)]
    graph.initializers = {
        name: value for name, value in graph.initializers.items() if value.uses() or id(value) in kept
    }
