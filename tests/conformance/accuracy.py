"""How far float32 is from float64: no result or gradient of any op more than twice as far as PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

ROUNDING = 2.4e-7  # two units in the last place, of a result's norm
# The GPU's kernels add up in float32 where PyTorch on the CPU does in float64, or they round more on the way.
GPU_ROUNDING = {
    # Exponentials of scores s are powers of two, whose exponents s·log₂e are rounded: |s|·2⁻²⁴, with |s| up to 15.
    "nn.functional.scaled_dot_product_attention": 1e-6,
    "addbmm": 4e-7,  # products in three passes, scaled and summed over the batch
    "linalg.vector_norm": 6e-7,  # its gradient has powers, which are exponentials of logarithms
    "conv_bn_relu": 4e-7,  # a convolution may have 3e-7, the norm comes on top
}
# Weights of two observations cancel: their gradient is zero, and what is computed for it rounding alone.
NOT_MEASURED = {"cov"}

Distances = list[tuple[float, float]]  # of a call's results and gradients from float64's: Genesis', PyTorch's


def is_measured(op: Any, dtype: torch.dtype) -> bool:
    return dtype is torch.float32 and op.name not in NOT_MEASURED


def rounding(name: str, device: str) -> float:
    return ROUNDING if device == "cpu" else GPU_ROUNDING.get(name, ROUNDING)


def check(calls: Iterable[Distances], rounding: float = ROUNDING) -> None:
    """The root mean square over calls, of each result and gradient.

    PyTorch's own samples are small, so that single roundings decide: an op's distances are taken together.
    """
    found: dict[int, Distances] = {}
    for call in calls:
        for index, pair in enumerate(call):
            found.setdefault(index, []).append(pair)
    for index, pairs in found.items():
        ours, theirs = (math.sqrt(sum(each[side] ** 2 for each in pairs) / len(pairs)) for side in (0, 1))
        assert ours <= max(2 * theirs, rounding), f"result or gradient {index}: {ours:.2g}, PyTorch {theirs:.2g}"
