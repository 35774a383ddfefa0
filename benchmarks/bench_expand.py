"""1×1 expansions with batch norm and activation, forward and backward, on a GPU: two ways of Genesis' beside PyTorch's.

    python benchmarks/bench_expand.py            the layers of EfficientNet, MobileNetV2 and V3, RegNet, ResNet and YOLO

"expansion" never writes the convolution's output (ops/conv_bn_relu/expand_1x1.py), "separate" does, as with fewer rows
than LEAST_ROWS; "torch" is PyTorch's layers, with cuDNN's search. bfloat16 autocast, channels-last, a step of each in a
CUDA graph, replayed in turn; convolutions are tuned for --tune seconds a layer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gpu_timing
import torch
from harness import RESULTS, Comparison
from torch import nn

import genesis.torch
from genesis.backends.cuda.ops.conv_bn_relu import expand_1x1

_ROUNDS, _REPLAYS = 9, 5


class Layer(NamedTuple):
    """Images (batch, inputs, size, size) into so many outputs."""

    batch: int
    inputs: int
    outputs: int
    size: int
    activation: type[nn.Module]

    @property
    def name(self) -> str:
        images = f"{self.batch}×{self.inputs}×{self.size}²"
        return f"{images} → {self.outputs}, {self.activation.__name__}"


LAYERS = (
    Layer(64, 16, 96, 112, nn.SiLU),
    Layer(64, 24, 144, 56, nn.SiLU),
    Layer(64, 40, 240, 28, nn.SiLU),
    Layer(64, 16, 64, 112, nn.ReLU),
    Layer(64, 24, 72, 56, nn.ReLU),
    Layer(64, 40, 240, 28, nn.Hardswish),
    Layer(64, 64, 64, 56, nn.ReLU),
    Layer(64, 64, 256, 56, nn.ReLU),
    Layer(64, 32, 192, 28, nn.ReLU6),
    Layer(64, 64, 384, 14, nn.ReLU6),
    Layer(32, 64, 256, 28, nn.SiLU),
    Layer(32, 32, 224, 112, nn.ReLU),
    Layer(16, 64, 64, 80, nn.SiLU),
)


class Step:
    """Forward and backward of a layer, captured; with all that the graph reads."""

    def __init__(self, layer: Layer, is_fused: bool, tune: float) -> None:
        torch.manual_seed(0)
        conv = nn.Conv2d(layer.inputs, layer.outputs, 1, bias=False)
        model = nn.Sequential(conv, nn.BatchNorm2d(layer.outputs), layer.activation())
        self.model = model.cuda().to(memory_format=torch.channels_last)
        if is_fused:
            self.model = genesis.torch.fuse(self.model)
        self.images = self._random(layer.batch, layer.inputs, layer.size).requires_grad_()
        self.grad = self._random(layer.batch, layer.outputs, layer.size)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            self.run()
            if is_fused:
                genesis.tune(self.run, budget=tune, progress=lambda *_: None)
            for _ in range(3):
                self.run()
            stream.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=stream):
                self.results = self.run()
        self.milliseconds()

    def _random(self, batch: int, channels: int, size: int) -> torch.Tensor:
        images = torch.randn(batch, channels, size, size, device="cuda").bfloat16()
        return images.contiguous(memory_format=torch.channels_last)

    def run(self) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cuda", torch.bfloat16):
            y = self.model(self.images)
        return y, *torch.autograd.grad(y, [self.images, *self.model.parameters()], self.grad)

    def milliseconds(self) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(_REPLAYS):
            self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / _REPLAYS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", type=float, default=2, help="seconds for the convolutions of a layer")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    arguments = parser.parse_args()
    comparison = Comparison("bench_expand", **gpu_timing.at_full_speed(tf32=True))
    for layer in LAYERS:
        steps = {"torch": Step(layer, False, 0)}
        for name, least in (("separate", 1 << 62), ("expansion", 0)):
            with mock.patch.object(expand_1x1, "LEAST_ROWS", least):
                steps[name] = Step(layer, True, arguments.tune)
        for name in ("separate", "expansion"):
            compare(layer, steps["torch"].results, steps[name].results)
        times = in_turns({name: step.milliseconds for name, step in steps.items()})
        comparison.add(layer.name, times)
    comparison.finish(arguments.out)
    return 0


def compare(layer: Layer, expected: Any, actual: Any) -> None:
    """Both are as near as bfloat16 lets them be."""
    for index, (theirs, ours) in enumerate(zip(expected, actual, strict=True)):
        error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
        if not error < 2e-2:
            raise SystemExit(f"{layer.name}: result {index} differs by {error:.1e}")


def in_turns(sides: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for index in range(_ROUNDS):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(sides[name]())
    return times


if __name__ == "__main__":
    sys.exit(main())
