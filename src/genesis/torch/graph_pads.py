"""Padding by repeated edges in Dynamo's graphs, whose gradient Inductor lays out in the wrong order on the CPU."""

from __future__ import annotations

import torch
from torch import fx
from torch.nn import functional

from genesis.torch.graph_edits import call, constant_sizes, put, tensor_of

_PADS = {functional.pad, torch._C._nn.pad}


def mend_pad(node: fx.Node, compiler: str) -> bool:
    """Repeat the edges of images and volumes by expanding and concatenating them.

    Inductor calls PyTorch's kernel for the gradient, and takes it for contiguous. On the CPU it is in the order of
    memory of the input, so that a check of it fails where that is channels-last (PyTorch 2.9 to 2.13).
    """
    if node.target not in _PADS or compiler != "inductor":
        return False
    given = {**dict(zip(("input", "pad", "mode"), node.args, strict=False)), **node.kwargs}
    input, sides = given["input"], given["pad"]
    if given.get("mode") != "replicate" or not isinstance(sides, tuple | list) or not isinstance(input, fx.Node):
        return False
    sizes = constant_sizes(sides, len(sides))
    if sizes is None or len(sizes) < 4 or min(sizes) < 0 or tensor_of(node).device.type != "cpu":
        return False
    if not tensor_of(node).requires_grad:
        return False
    with node.graph.inserting_before(node):
        for i in range(len(sizes) // 2):
            input = _pad(input, -1 - i, sizes[2 * i], sizes[2 * i + 1])
        put(input, node)
    return True


def _pad(input: fx.Node, dim: int, before: int, after: int) -> fx.Node:
    graph, parts = input.graph, [input]
    expanded = [-1] * tensor_of(input).dim()
    if before:
        expanded[dim] = before
        parts.insert(0, call(graph, torch.Tensor.expand, call(graph, torch.narrow, input, dim, 0, 1), tuple(expanded)))
    if after:
        expanded[dim] = after
        parts.append(call(graph, torch.Tensor.expand, call(graph, torch.narrow, input, dim, -1, 1), tuple(expanded)))
    return call(graph, torch.cat, parts, dim)
