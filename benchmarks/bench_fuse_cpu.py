"""PyTorch models on the CPU in PyTorch's own loop: eager, and after genesis.torch.fuse; or compiled by either.

Inference (eval, no_grad; and under inference_mode) and training (a step of SGD with momentum), the model as it stands
(contiguous) and in channels_last. Genesis passes when no fused model takes longer than the eager one in the same order.
fuse() times its first calls and chooses; what is measured are calls after that.

    python benchmarks/bench_fuse_cpu.py [resnet18] [unet] … [--batch 1 4] [--threads 1 2] [--only inference]
    python benchmarks/bench_fuse_cpu.py mixnet_s swiftformer_xs         any other network of torchvision or timm
    python benchmarks/bench_fuse_cpu.py --way compile                   torch.compile and genesis.torch.compile

The networks need their package installed. What is left out keeps the result of an earlier run, with its date.
"""

from __future__ import annotations

import argparse
import copy
import functools
import importlib
import itertools
import statistics
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from harness import Comparison, Side
from torch_networks import UNet, training_step
from zoo_networks import torchvision_models

import genesis.torch

EAGER, FUSED = "torch channels_last", "fused channels_last"
CONTIGUOUS, FUSED_CONTIGUOUS = "torch contiguous", "fused contiguous"
NETWORKS = (
    "resnet18", "resnet50", "mobilenet_v2", "vgg16_bn", "efficientnet_b0", "regnet_y_400mf", "densenet121", "unet",
    "dpn68", "mixnet_s", "ghostnet_100",
)  # fmt: skip
_CHOOSING = 24  # calls
Way = Callable[[torch.nn.Module], torch.nn.Module]
WAYS: dict[str, tuple[Way, Way]] = {  # PyTorch's, and ours
    "fuse": (lambda model: model, genesis.torch.fuse),
    "compile": (torch.compile, genesis.torch.compile),  # type: ignore[dict-item]
}
Step = Callable[[torch.nn.Module, torch.Tensor], Side]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[], help=f"which networks: {', '.join(NETWORKS)}; default all")
    parser.add_argument("--only", choices=("inference", "inference_mode", "training"), help="one of them")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--way", choices=WAYS, default="fuse")
    parser.add_argument("--name", help="of the files; another one for another processor")
    arguments = parser.parse_args()
    comparison = Comparison(arguments.name or f"bench_{arguments.way}_cpu")
    kinds: list[tuple[str, Step]] = [
        ("inference", functools.partial(inference, torch.no_grad)),
        ("inference_mode", functools.partial(inference, torch.inference_mode)),
        ("training", training),
    ]
    for name, batch, threads in itertools.product(arguments.names or NETWORKS, arguments.batch, arguments.threads):
        torch.set_num_threads(threads)
        for kind, step in kinds:
            if arguments.only in (None, kind):
                model, input = create(name, batch)
                case = f"{name} {'×'.join(map(str, input.shape))} {kind}, {threads} threads"
                comparison.measure(
                    case, sides(model, input, step, *WAYS[arguments.way]), arguments.rounds, warmup=_CHOOSING
                )
    comparison.keep_others()
    report(comparison, {"fuse": "eager", "compile": "compiled"}[arguments.way])
    comparison.finish()


def create(name: str, batch: int) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    if name == "unet":
        return UNet(), torch.randn(batch, 1, 128, 128)
    models = torchvision_models()  # which timm imports as well
    known = name in models.list_models()
    model = models.get_model(name) if known else importlib.import_module("timm").create_model(name)
    return model, torch.randn(batch, 3, 224, 224)


def sides(model: torch.nn.Module, input: torch.Tensor, step: Step, theirs: Way, ours: Way) -> dict[str, Side]:
    last = copy.deepcopy(model).to(memory_format=torch.channels_last)
    input_last = input.contiguous(memory_format=torch.channels_last)
    return {
        EAGER: step(theirs(copy.deepcopy(last)), input_last),
        CONTIGUOUS: step(theirs(copy.deepcopy(model)), input),
        FUSED_CONTIGUOUS: step(ours(model), input),
        FUSED: step(ours(last), input_last),
    }


def inference(mode: Callable[[], AbstractContextManager[None]], model: torch.nn.Module, input: torch.Tensor) -> Side:
    model.eval()

    def run() -> torch.Tensor:
        with mode():
            return model(input)  # type: ignore[no-any-return]

    return run


def training(model: torch.nn.Module, input: torch.Tensor) -> Side:
    """Without dropout: its draws take the same time on both sides."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.eval()
    return training_step(model, input, lr=1e-4)


def report(comparison: Comparison, how: str = "eager") -> None:
    """Add how many times faster our models are than PyTorch's in the same order, by the least times.

    Args:
        how: PyTorch's models run.
    """
    speeds: dict[tuple[str, str], list[float]] = {}
    lines = [
        "| network | batch | kind | threads | channels_last | contiguous |",
        "|---|---|---|---|---|---|",
    ]
    for case, rows in itertools.groupby(comparison.rows, key=lambda row: row["case"]):
        least = {row["side"]: row["fastest_ms"] for row in rows}
        name, shape, kind, threads, _ = case.replace(",", "").split()
        figures = []
        for eager, fused in ((EAGER, FUSED), (CONTIGUOUS, FUSED_CONTIGUOUS)):
            if eager in least:  # earlier results have no eager contiguous side
                speeds.setdefault((kind, fused), []).append(least[eager] / least[fused])
            figures.append(f"{least[eager] / least[fused]:.2f}" if eager in least else "")
        lines.append(f"| {name} | {shape.split('×')[0]} | {kind} | {threads} | {' | '.join(figures)} |")
    comparison.notes += [
        "",
        f"The {how} model's least time, divided by ours in the same order:",
        "",
        *lines,
        "",
    ]
    for (kind, side), values in speeds.items():
        line = f"{kind}, {side}: geometric mean {statistics.geometric_mean(values):.2f}, worst {min(values):.2f}"
        comparison.notes.append(f"- {line}")
        print(line)


if __name__ == "__main__":
    sys.exit(main())
