"""Calls in Dynamo's graphs of which PyTorch's compilers or kernels compute a wrong gradient, a crash, or slow ones."""

from __future__ import annotations

from torch import fx

from genesis.torch.graph_linears import replace_product
from genesis.torch.graph_pads import mend_pad
from genesis.torch.graph_pools import mend_average
from genesis.torch.graph_resizes import gather_resize
from genesis.torch.graph_strides import skip_pixels


def mend(module: fx.GraphModule, compiler: str = "inductor") -> int:
    """Put calls with better gradients in the place of others, in a graph and the bodies of its checkpoints.

    Args:
        compiler: of the graph: Inductor has faults of its own, and calls fewer of PyTorch's kernels than others do.
    Returns: how many were changed.
    """
    number = 0
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            calls = [node for node in part.graph.nodes if node.op == "call_function"]
            changed = sum(
                mend_average(node, compiler)
                or mend_pad(node, compiler)
                or gather_resize(node)
                or skip_pixels(node)
                or replace_product(node)
                for node in calls
            )
            if changed:
                part.recompile()
            number += changed
    return number
