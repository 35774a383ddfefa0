"""U-Net(16) on 4×1×128² and ResNet-18 on 4×3×224², on the CPU, beside PyTorch with the same weights.

Inference: torch.compile with freezing is the reference, for the model as it stands and for genesis.compile. Training (a
step of SGD with momentum): PyTorch eager, model and input in channels_last. Genesis passes when it takes no longer than
the reference.

    python benchmarks/bench_cpu_nets.py [unet] [resnet18] [--only inference] [--precision high] [--threads 2]

In "highest" precision, the default, Genesis adds up the long sums of convolutions in parts; PyTorch's channels_last
kernels don't, nor does Genesis in "high".

What is left out keeps the result of an earlier run, with its date.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from typing import Any

import torch
from harness import Comparison, Side
from torch_networks import ResNet18, UNet

import genesis
from genesis import models, optim

NETWORKS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "unet": (UNet, (4, 1, 128, 128)),
    "resnet18": (ResNet18, (4, 3, 224, 224)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[], help=f"which networks: {', '.join(NETWORKS)}; default all")
    parser.add_argument("--only", choices=("inference", "training"), help="one of the two")
    parser.add_argument("--precision", choices=genesis.precision.PRECISIONS, default="highest")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    genesis.set_float32_precision(arguments.precision)
    suffix = "" if arguments.precision == "highest" else f", {arguments.precision}"
    comparison = Comparison("bench_cpu_nets")
    for name in arguments.names or NETWORKS:
        build, shape = NETWORKS[name]
        torch.manual_seed(0)
        theirs, input = build(), torch.randn(shape)
        ours = models.create(name)
        ours.load_state_dict(theirs.state_dict())
        size = "×".join(map(str, shape))
        if arguments.only != "training":
            comparison.measure(f"{name} {size} inference{suffix}", inference(theirs, ours, input), arguments.rounds)
        if arguments.only != "inference":
            comparison.measure(f"{name} {size} training{suffix}", training(theirs, ours, input), arguments.rounds)
    comparison.keep_others()
    comparison.finish()


def inference(theirs: torch.nn.Module, ours: Any, input: torch.Tensor) -> dict[str, Side]:
    frozen = frozen_compile(copy.deepcopy(theirs).eval(), input)
    eager = copy.deepcopy(theirs).eval().to(memory_format=torch.channels_last)
    channels_last = input.contiguous(memory_format=torch.channels_last)
    model, mine = ours.eval(), genesis.from_torch(input)

    def run_eager() -> torch.Tensor:
        with torch.inference_mode():
            return eager(channels_last)

    compiled = genesis.compile(model)

    def run_genesis() -> Any:
        with genesis.no_grad():
            return model(mine)

    def run_compiled() -> Any:
        with genesis.no_grad():
            return compiled(mine)

    expected = run_eager()
    for run in (run_genesis, run_compiled, run_compiled, run_compiled):  # runs, is recorded, replays
        torch.testing.assert_close(run().to_torch(), expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())
    return {
        "torch.compile, frozen": frozen,
        "torch channels_last": run_eager,
        "genesis": run_genesis,
        "genesis.compile": run_compiled,
    }


def frozen_compile(model: torch.nn.Module, input: torch.Tensor) -> Side:
    import torch._inductor.config as inductor

    inductor.freezing = True
    compiled = torch.compile(model)

    def run() -> object:
        with torch.no_grad():
            return compiled(input)

    run()  # compiles, while freezing is on
    inductor.freezing = False
    return run


def training(theirs: torch.nn.Module, ours: Any, input: torch.Tensor) -> dict[str, Side]:
    eager = copy.deepcopy(theirs).train().to(memory_format=torch.channels_last)
    channels_last = input.contiguous(memory_format=torch.channels_last)
    torch_optimizer = torch.optim.SGD(eager.parameters(), lr=1e-3, momentum=0.9)
    model, mine = ours.train(), genesis.from_torch(channels_last)
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step_torch() -> None:
        loss = eager(channels_last).square().mean()
        torch_optimizer.zero_grad()
        loss.backward()
        torch_optimizer.step()

    def step_genesis() -> None:
        loss = model(mine).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return {
        "torch channels_last": step_torch,
        "genesis": step_genesis,
        "genesis.compile": training_compiled(copy.deepcopy(ours), mine),
    }


def training_compiled(model: Any, input: Any) -> Side:
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(input: Any) -> Any:
        loss = model(input).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    compiled = genesis.compile(step)
    while not compiled.num_recordings:
        compiled(input)
    return lambda: compiled(input)


if __name__ == "__main__":
    sys.exit(main())
