"""1×1 convolutions with a stride in Dynamo's graphs, whose weight gradient oneDNN writes beyond the ends of arrays."""

from __future__ import annotations

import operator

import torch
from torch import Tensor, fx

from genesis.torch.graph_edits import argument, call, constant_sizes, put, tensor_of, value_of


def skip_pixels(node: fx.Node) -> bool:
    """Give a 1×1 convolution with a stride only the pixels that it takes, and no stride.

    Training such layers ends in a segmentation fault on the CPU, at once or later, where images lie in channels-last
    order, as Inductor has them: see genesis.backends.cpu.conv.skips_pixels.
    """
    if node.target is not torch.conv2d:
        return False
    input, weight, bias = argument(node, 0, "input"), argument(node, 1, "weight"), argument(node, 2, "bias")
    if not all(isinstance(value_of(each), torch.Tensor) for each in (node, input, weight)):
        return False
    has_gradient = tensor_of(node).requires_grad and tensor_of(weight).requires_grad
    if not has_gradient or tensor_of(node).device.type != "cpu" or tensor_of(input).dim() != 4:
        return False
    padding = argument(node, 4, "padding", 0)
    sides = (0, 0) if padding == "valid" else constant_sizes(padding, 2)
    steps = constant_sizes(argument(node, 3, "stride", 1), 2)
    if sides is None or steps is None or not _overwrites_memory(tensor_of(weight), steps, sides):
        return False
    with node.graph.inserting_before(node):
        pixels = slice(None), slice(None), *(slice(None, None, step) for step in steps)
        order = torch._prims_common.suggest_memory_format(tensor_of(input))
        taken = call(node.graph, operator.getitem, input, pixels)
        taken = call(node.graph, torch.Tensor.contiguous, taken, memory_format=order)
        put(call(node.graph, torch.conv2d, taken, weight, bias, 1, 0, 1, argument(node, 6, "groups", 1)), node)
    return True


def _overwrites_memory(weight: Tensor, steps: tuple[int, ...], sides: tuple[int, ...]) -> bool:
    from genesis.backends.cpu.conv import skips_pixels  # the CPU's backend: not before a tensor is there

    return skips_pixels(tuple(weight.shape), (steps[0], steps[1]), (sides[0], sides[1]))
