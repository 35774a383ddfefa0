"""Chains of Dynamo's graphs that PyTorch's compiler runs faster on the CPU than one op of ours does.

Unlike fuse(), which measures both ways in its first calls, a compiled graph has one: these are rules from measurements.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx

from genesis.torch import bridge
from genesis.torch.graph_convs import geometry_of
from genesis.torch.graph_edits import argument, tensor_of, value_of

# In MixNet-S, an eighth of whose convolutions would be in such ops, the compiler's loops are faster than these.
_LEAST_SHARE = 0.25
# Of a convolution in training, for each thread. Below, the op's own cost, which threads do not share, is more than it
# saves: in HGNetV2-B0, whose layers have 2e7 on two threads, but not in ResNet-18 with 4e7.
_LEAST_FLOPS = 1.5e7


def why_slower(conv: fx.Node, in_training: bool, activation: str | None, share: float) -> str:
    """Say why a convolution and its norm take longer as one op; "" where they do not.

    In training, 1×1, depthwise and grouped ones do in MobileNetV2 and RegNetY-400MF, and dense ones of more taps do
    not in ResNet-18 (bench_fuse_cpu.py --way compile), unless there is one image, or little to compute. With other
    activations than ReLU these do too (SiLU in YOLOv8-n, ReLU6 in MobileNetV2).

    Args:
        in_training: by the batch's statistics.
        activation: that is fused with them.
        share: of the graph's convolutions that would be in such ops.
    """
    input = value_of(conv.args[0])
    if not isinstance(input, Tensor) or bridge.trains(input):
        return ""
    if not in_training:
        return "" if share >= _LEAST_SHARE else "few of the graph's convolutions have such a norm, too few on a CPU"
    if activation not in (None, "relu"):
        return "in training, PyTorch's compiler runs layers with its activation faster on a CPU"
    weight = tensor_of(argument(conv, 1, "weight"))
    if geometry_of(conv).groups > 1 or weight.shape[2:].numel() == 1:
        return "in training, PyTorch's compiler runs such layers faster on a CPU"
    result = tensor_of(conv)
    if not all(isinstance(size, int) for size in result.shape):
        return ""
    if result.shape[0] == 1:  # it has other kernels then, for which no weight is arranged anew
        return "in training, PyTorch runs layers of one image faster on a CPU"
    is_small = 2 * result.numel() * weight.shape[1:].numel() < _LEAST_FLOPS * torch.get_num_threads()
    return "in training, PyTorch's compiler runs such small layers faster on a CPU" if is_small else ""
