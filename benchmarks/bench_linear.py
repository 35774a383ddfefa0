"""Linear layers in full float32 on a GPU: PyTorch's beside torch.ops.genesis.linear, which compiled models call.

    python benchmarks/bench_linear.py
    python benchmarks/bench_linear.py --tune 30 --layers vit-small-up convnext-56-up
    python benchmarks/bench_linear.py --dry-run                 no GPU: a tiny layer

Layers of ConvNeXt, ViT, GPT-2 and MLPs, forward and as a training step: the result and the gradients of input, weight
and bias. Times are replays of captured graphs, in turns. First Genesis tunes all of them for --tune seconds; 0 shows
its guesses. An error is the largest distance of results and gradients from float64's, over their norm.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import gpu_timing
import torch
from harness import RESULTS, Comparison, Work
from harness import interleaved as by_the_clock
from torch import Tensor
from torch.nn import functional

import genesis
import genesis.torch
from genesis.torch import linears as linears  # registers the op


class Layer(NamedTuple):
    name: str
    rows: int
    inputs: int
    outputs: int

    def __str__(self) -> str:
        return f"{self.name}, {self.rows} rows of {self.inputs} to {self.outputs}"


LAYERS = (
    Layer("convnext-56-up", 50176, 96, 384),
    Layer("convnext-56-down", 50176, 384, 96),
    Layer("convnext-14-up", 3136, 384, 1536),
    Layer("convnext-14-down", 3136, 1536, 384),
    Layer("convnext-7-down", 784, 3072, 768),
    Layer("vit-small-qkv", 6304, 384, 1152),
    Layer("vit-small-project", 6304, 384, 384),
    Layer("vit-small-up", 6304, 384, 1536),
    Layer("vit-base-up", 6304, 768, 3072),
    Layer("gpt2-up", 8192, 768, 3072),
    Layer("gpt2-down", 8192, 3072, 768),
    Layer("wide", 2048, 4096, 4096),
    Layer("mlp", 512, 1024, 1024),
    Layer("mlp-small", 128, 784, 512),
    Layer("classifier", 64, 2048, 1000),
)
_TINY = (Layer("tiny", 6, 8, 4),)
Apply = Callable[[Tensor, Tensor, Tensor], Tensor]
_SIDES: dict[str, Apply] = {"torch": functional.linear, "genesis": torch.ops.genesis.linear}


def main() -> int:
    arguments = parse()
    device = "cpu" if arguments.dry_run else "cuda"
    machine = gpu_timing.at_full_speed(tf32=False) if device == "cuda" else {}
    comparison = Comparison("bench_linear", **machine)
    layers = _TINY if arguments.dry_run else [each for each in LAYERS if each.name in arguments.layers]
    given = {layer: operands(layer, device) for layer in layers}
    if arguments.tune:
        step = _SIDES["genesis"]
        genesis.tune(lambda: [trained(step, *each) for each in given.values()], budget=arguments.tune)
    with gpu_timing.many_captures() if device == "cuda" else nullcontext():
        for layer, each in given.items():
            measure(comparison, layer, each, device)
    comparison.finish(arguments.out)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [layer.name for layer in LAYERS]
    parser.add_argument("--layers", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument("--tune", type=float, default=0, metavar="SECONDS", help="for all of them (default: 0)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    parser.add_argument("--dry-run", action="store_true", help="a tiny layer, without a GPU")
    return parser.parse_args()


def operands(layer: Layer, device: str) -> tuple[Tensor, ...]:
    """Input, weight, bias, and the gradient of the result."""
    torch.manual_seed(0)
    shapes = (layer.rows, layer.inputs), (layer.outputs, layer.inputs), (layer.outputs,), (layer.rows, layer.outputs)
    x, weight, bias, grad = (torch.randn(shape, device=device) for shape in shapes)
    weight /= math.sqrt(layer.inputs)
    return *(each.requires_grad_() for each in (x, weight, bias)), grad


def forward(apply: Apply, x: Tensor, weight: Tensor, bias: Tensor, _: Tensor) -> Sequence[Tensor]:
    with torch.no_grad():
        return [apply(x, weight, bias)]


def trained(apply: Apply, x: Tensor, weight: Tensor, bias: Tensor, grad: Tensor) -> Sequence[Tensor]:
    y = apply(x, weight, bias)
    return [y.detach(), *torch.autograd.grad(y, (x, weight, bias), grad)]


def measure(comparison: Comparison, layer: Layer, given: tuple[Tensor, ...], device: str) -> None:
    exact = trained(functional.linear, *(each.detach().double().requires_grad_() for each in given))
    errors: list[str] = []
    for kind, call, products in ("forward", forward, 1), ("step", trained, 3):
        case = f"{layer}, {kind}"
        sides = {name: (lambda apply=apply, call=call: call(apply, *given)) for name, apply in _SIDES.items()}
        if device == "cuda":
            times = gpu_timing.interleaved({name: [side] for name, side in sides.items()}, rounds=9)
        else:
            times = by_the_clock(sides, rounds=1)
        work = Work(num_operations=2 * products * layer.rows * layer.inputs * layer.outputs)
        comparison.add(case, times, kind, work)
        for row in comparison.rows:
            if row["case"] == case:
                row["error"] = distance(sides[row["side"]](), exact)
                errors.append(f"{row['side']} {row['error']:.1e}")
    print(f"      errors: {', '.join(errors)}", flush=True)


def distance(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """The largest of all results' relative distances."""
    each = ((a.double() - b).norm() / b.norm() for a, b in zip(found, exact, strict=False))
    return max(map(float, each))


if __name__ == "__main__":
    sys.exit(main())
