"""Norms that are folded into weights, in graphs for inference: one launch for all of them, where each had its own.

A fold reads parameters and running statistics, as they are at each replay, and none of what the graph computes. So all
run in one op at the beginning; with one image, a fold took half as long as the convolution that it was for.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, fx

from genesis.shapes import channels_last_strides
from genesis.torch.backend import TYPES
from genesis.torch.conv_act import conv_act_values
from genesis.torch.opaque import define, laid_out
from genesis.torch.ops import GEOMETRY
from genesis.torch.shapes import empty_output, geometry_of
from genesis.torch.signatures import FoldedArguments

_MOST = 1 << 20  # elements of a weight: for more, a launch is little, and memory that is held longer is much
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_VECTORS = slice(2, 7)  # bias, gamma, beta, mean, variance, among the arguments of conv_bn_relu_inference


def fold_at_once(graph: fx.Graph) -> int:
    """Fold norms in one op at the beginning. Returns: how many convolutions these were for."""
    groups: defaultdict[tuple[torch.dtype, torch.dtype], list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.target is torch.ops.genesis.conv_bn_relu_inference.default and _is_simple(node):
            groups[_value(node.args[1]).dtype, _value(node.args[0]).dtype].append(node)
    first = next(node for node in graph.nodes if node.op not in ("placeholder", "get_attr"))
    number = 0
    for (_, dtype), nodes in groups.items():
        if len(nodes) > 1:
            _fold(graph, nodes, dtype, first)
            number += len(nodes)
    return number


def _is_simple(node: fx.Node) -> bool:
    """Are weight, bias and norm inputs of the graph on CUDA, of one dtype, and few?"""
    operands = [each for each in node.args[1:7] if each is not None]
    if not all(isinstance(each, fx.Node) and each.op == "placeholder" for each in operands):
        return False
    weight, *vectors = map(_value, operands)
    return (
        _has_launches(weight)
        and weight.dtype in _TYPES
        and _value(node.args[0]).dtype in _TYPES
        and all(each.dtype is weight.dtype and each.is_contiguous() for each in vectors)
        and all(isinstance(size, int) for size in weight.shape)
        and 0 < weight.numel() <= _MOST
    )


def _has_launches(x: Tensor) -> bool:
    return _has_kernel(x)


def _has_kernel(x: Tensor) -> bool:
    if not x.is_cuda:
        return False
    from genesis.backends.cuda.ops.conv_bn_folded import many

    return many.is_available(x.device.index or 0)


def _value(node: object) -> Tensor:
    assert isinstance(node, fx.Node)
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _fold(graph: fx.Graph, nodes: Sequence[fx.Node], dtype: torch.dtype, before: fx.Node) -> None:
    """Put one op, and convolutions with what it gives, in the place of convolutions with norms."""
    weights = [node.args[1] for node in nodes]
    given = [[each is not None for each in node.args[_VECTORS]] for node in nodes]
    vectors = [each for node in nodes for each in node.args[_VECTORS] if each is not None]
    eps = [node.args[8] for node in nodes]
    flat = [present for each in given for present in each]
    with graph.inserting_before(before):
        folds = graph.call_function(torch.ops.genesis.fold_norms.default, (weights, vectors, flat, eps, dtype))
        folds.meta["val"] = found = _shapes_folds([_value(each) for each in weights], [], flat, [], dtype)
        parts = [graph.call_function(operator.getitem, (folds, index)) for index in range(2 * len(nodes))]
        for part, value in zip(parts, found, strict=True):
            part.meta["val"] = value
    for index, node in enumerate(nodes):
        input, residual = node.args[0], node.args[7]
        with graph.inserting_before(node):
            args = (input, parts[2 * index], parts[2 * index + 1], residual, *node.args[9:])
            conv = graph.call_function(torch.ops.genesis.conv_folded.default, args)
        conv.meta = {key: value for key, value in node.meta.items() if key != "eager_input_vals"}  # of other arguments
        node.replace_all_uses_with(conv)
        graph.erase_node(node)


# --- the ops ----------------------------------------------------------------------------------------------------------
def _folds(
    weights: Sequence[Tensor], vectors: Sequence[Tensor], given: Sequence[bool], eps: Sequence[float],
    dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """Folded weight and bias of each layer.

    Args:
        vectors: of all layers those of bias, gamma, beta, mean and variance that are given.
        given: which are, five for each layer.
    """
    made = _shapes_folds(weights, vectors, given, eps, dtype)
    rest = iter(vectors)
    layers = [[next(rest) if present else None for present in given[i : i + 5]] for i in range(0, len(given), 5)]
    if not _has_kernel(weights[0]):
        for index, (weight, layer) in enumerate(zip(weights, layers, strict=True)):
            _fold_by_pytorch(made[2 * index], made[2 * index + 1], weight, layer, eps[index])
        return made
    from genesis.backends.cuda.ops.conv_bn_folded import many

    folds = [
        many.Layer(
            tuple([0 if x is None else x.data_ptr() for x in (*made[2 * index : 2 * index + 2], weight, *layer)]),
            tuple(weight.shape), weight.stride(), eps[index],
        )
        for index, (weight, layer) in enumerate(zip(weights, layers, strict=True))
    ]  # fmt: skip
    device = weights[0].device
    stream = torch.cuda.current_stream(device).cuda_stream
    many.fold(device.index or 0, stream, folds, TYPES[weights[0].dtype], TYPES[dtype])
    return made


def _fold_by_pytorch(
    folded: Tensor, folded_bias: Tensor, weight: Tensor, layer: Sequence[Tensor | None], eps: float
) -> None:
    bias, gamma, beta, mean, var = layer
    assert mean is not None
    assert var is not None
    scale = 1 / torch.sqrt(var.float() + eps)
    if gamma is not None:
        scale = scale * gamma.float()
    shift = ((0 if bias is None else bias.float()) - mean.float()) * scale
    folded.copy_(weight.float() * scale[:, None, None, None])
    folded_bias.copy_(shift if beta is None else shift + beta.float())


def _shapes_folds(
    weights: Sequence[Tensor], vectors: Sequence[Tensor], given: Sequence[bool], eps: Sequence[float],
    dtype: torch.dtype,
) -> list[Tensor]:  # fmt: skip
    """Folded weights are dense, with channels innermost."""
    found = []
    for weight in weights:
        strides = channels_last_strides(tuple(weight.shape))
        found.append(torch.empty_strided(weight.shape, strides, dtype=dtype, device=weight.device))
        found.append(weight.new_empty(weight.shape[0], dtype=dtype))
    return found


define("fold_norms(Tensor[] weights, Tensor[] vectors, bool[] given, float[] eps, ScalarType dtype) -> Tensor[]",
       _folds, _shapes_folds)  # fmt: skip


def _conv_folded(*args: *FoldedArguments) -> Tensor:
    input, weight, bias, residual = args[:4]
    y = conv_act_values(input, weight, bias, residual, geometry_of(*args[4:8]), args[8])
    return laid_out(y, _shapes_conv_folded(*args))


def _shapes_conv_folded(*args: *FoldedArguments) -> Tensor:
    return empty_output(*args[:2], *args[4:7])


define(
    f"conv_folded(Tensor input, Tensor weight, Tensor bias, Tensor? residual, {GEOMETRY}) -> Tensor",
    _conv_folded,
    _shapes_conv_folded,
)
