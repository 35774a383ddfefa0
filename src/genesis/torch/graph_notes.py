"""Remarks on a fused graph for the report: where float32 is computed otherwise than PyTorch would."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from genesis.torch import bridge
from genesis.torch.graph_edits import value_of

_CONVOLUTIONS = ("conv_act", "conv_bn_relu")


def notes(graph: fx.Graph) -> list[str]:
    """Say how many linear layers run on tensor cores, and that convolutions do not round as PyTorch's."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    num_linear = sum(node.target is torch.ops.genesis.linear for node in calls)
    found = [f"{num_linear} products of float32 keep all bits on tensor cores"] if num_linear else []
    convolutions = {getattr(torch.ops.genesis, name) for name in _CONVOLUTIONS}
    inputs = [value_of(node.args[0]) for node in calls if node.target in convolutions]
    if any(isinstance(x, Tensor) and bridge.keeps_more_bits(x) for x in inputs):
        found.append(
            "convolutions of float32 keep all bits, where PyTorch rounds to TF32, as Genesis does after "
            'genesis.set_float32_precision("high")'
        )
    return found
