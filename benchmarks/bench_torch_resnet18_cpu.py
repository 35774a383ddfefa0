"""Inference of a PyTorch ResNet-18 on the CPU: eager, compiled with freezing, and genesis.torch.fuse.

    OMP_NUM_THREADS=1 python benchmarks/bench_torch_resnet18_cpu.py

Four images of 224²; the sides take turns. Also how long the first call of each side took.
"""

from __future__ import annotations

import copy
import sys
import time

import torch
import torch._inductor.config
from harness import Comparison
from torch_networks import ResNet18

import genesis.torch


def main() -> int:
    torch._inductor.config.freezing = True
    torch.manual_seed(0)
    model = ResNet18().eval()
    images = torch.randn(4, 3, 224, 224)
    comparison = Comparison("bench_torch_resnet18_cpu", threads=torch.get_num_threads())
    models = {
        "compile, frozen": torch.compile(copy.deepcopy(model)),
        "eager": model,
        "eager channels_last": copy.deepcopy(model).to(memory_format=torch.channels_last),
        "genesis.torch.fuse": genesis.torch.fuse(copy.deepcopy(model)),
    }
    with torch.no_grad():
        expected = model(images)
        for name, side in models.items():
            began = time.perf_counter()
            result = side(images)
            error = ((result - expected).norm() / expected.norm()).item()
            print(f"  {name:<24} first call {time.perf_counter() - began:6.2f} s, differs from eager by {error:.1e}")
        comparison.measure(
            "ResNet-18 inference, 4 × 224²", {name: lambda side=side: side(images) for name, side in models.items()}
        )
    comparison.finish()
    return 0


if __name__ == "__main__":
    sys.exit(main())
