"""1×1 convolutions with a stride in Dynamo's graphs, whose weight gradient oneDNN writes beyond the ends of arrays."""

from __future__ import annotations

import operator

import torch
from torch import fx

from genesis.torch.graph_edits import argument, call, constant_sizes, put, tensor_of, value_of

_BLOCK = 16  # channels that oneDNN gathers at a time


def skip_pixels(node: fx.Node) -> bool:
    """Give a 1×1 convolution with a stride only the pixels that it takes, and no stride.

    Where images lie in channels-last order, as Inductor has them on the CPU, and 16 does not divide their channels,
    oneDNN gathers these pixels in whole blocks for the weight's gradient, and reads and writes what lies behind.
    Training ends in a segmentation fault, then or later. Source: github.com/uxlfoundation/oneDNN/issues/6035, of fewer
    channels than a block has.
    """
    if node.target is not torch.conv2d:
        return False
    input, weight, stride = argument(node, 0, "input"), argument(node, 1, "weight"), argument(node, 3, "stride", 1)
    if not all(isinstance(value_of(each), torch.Tensor) for each in (node, input, weight)):
        return False
    padding, steps = argument(node, 4, "padding", 0), constant_sizes(stride, 2)
    is_padded = padding != "valid" and constant_sizes(padding, 2) != (0, 0)
    _, channels, *taps = tensor_of(weight).shape
    if is_padded or steps is None or max(steps) == 1 or taps != [1, 1] or channels % _BLOCK == 0:
        return False
    has_gradient = tensor_of(node).requires_grad and tensor_of(weight).requires_grad
    if not has_gradient or tensor_of(node).device.type != "cpu" or tensor_of(input).dim() != 4:
        return False
    graph, everything = node.graph, slice(None)
    bias, groups = argument(node, 2, "bias"), argument(node, 6, "groups", 1)
    with graph.inserting_before(node):
        strides = slice(None, None, steps[0]), slice(None, None, steps[1])
        taken = call(graph, operator.getitem, input, (everything, everything, *strides))
        order = torch._prims_common.suggest_memory_format(tensor_of(input))
        taken = call(graph, torch.Tensor.contiguous, taken, memory_format=order)
        put(call(graph, torch.conv2d, taken, weight, bias, 1, 0, 1, groups), node)
    return True
