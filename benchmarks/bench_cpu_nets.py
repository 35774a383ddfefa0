"""Networks on the CPU, beside PyTorch, ONNX Runtime and OpenVINO with the same weights.

Inference: torch.compile with freezing, ONNX Runtime and OpenVINO where they are installed, for the model as it stands
and for genesis.compile. Training (a step of SGD with momentum): PyTorch eager, model and input in channels_last or
contiguous. Genesis passes when it takes no longer than the fastest of them.

    python benchmarks/bench_cpu_nets.py [unet] [resnet18] … [--only inference] [--precision high] [--threads 2]

All are trained too, but DeepLabV3 on one image, which PyTorch refuses. In "highest" precision, the default, Genesis
adds up the long sums of convolutions in parts; the kernels of the others don't.

The result is written after each network. What is left out keeps the result of an earlier run, with its date. Processes
may share the files: on a machine with many cores, networks run side by side, each on two cores of its own:

    taskset -c 2,3 python benchmarks/bench_cpu_nets.py resnet50 --name bench_cpu_nets_intel --seconds 240
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from cpu_networks import NETWORKS, create
from cpu_peers import peers
from harness import RESULTS, Comparison, Side
from torch_networks import training_step
from turns import alone

import genesis
from genesis import optim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[], help=f"which networks: {', '.join(NETWORKS)}; default all")
    parser.add_argument("--only", choices=("inference", "training"), help="one of the two")
    parser.add_argument("--precision", choices=genesis.precision.PRECISIONS, default="highest")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--name", default="bench_cpu_nets", help="of the files; another one for another processor")
    parser.add_argument("--out", type=Path, default=RESULTS, help="their folder")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no network after so long")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    genesis.set_float32_precision(arguments.precision)
    comparison = Comparison(arguments.name)
    end = time.monotonic() + arguments.seconds
    for kind in [arguments.only] if arguments.only else ["inference", "training"]:
        for name in arguments.names or NETWORKS:
            if kind == "training" and name == "deeplabv3-b1":  # its pooled batch norm would have one number per channel
                continue
            if time.monotonic() > end:
                print(f"  {name}: {kind} not begun, after {arguments.seconds:.0f} s")
                continue
            measure(comparison, name, kind, arguments)
            with alone(arguments.out):
                comparison.keep_others(arguments.out)
                comparison.notes = fastest(comparison)
                comparison.finish(arguments.out)
    print("\n".join(comparison.notes[-2:]))


def measure(comparison: Comparison, name: str, kind: str, arguments: argparse.Namespace) -> None:
    """Measure one network."""
    theirs, ours, input = create(name)
    if kind == "inference":
        sides = inference(theirs, ours, input, peers(ours.eval(), input, arguments.threads))
    else:
        sides = training(theirs, ours, input)
    case = f"{name.removesuffix('-b1')} {'×'.join(map(str, input.shape))} {kind}"
    suffix = "" if arguments.precision == "highest" else f", {arguments.precision}"
    comparison.measure(case + suffix, sides, arguments.rounds)


def fastest(comparison: Comparison) -> list[str]:
    """How many times faster genesis.compile is than the fastest of the others, in Markdown."""
    speeds: dict[str, list[float]] = {}
    notes = ["", "genesis.compile beside the fastest of the others:", ""]
    for case, rows in itertools.groupby(comparison.rows, key=lambda row: row["case"]):
        medians = {row["side"]: row["median_ms"] for row in rows}
        others = [median for side, median in medians.items() if not side.startswith("genesis")]
        speed = min(others) / medians["genesis.compile"]
        speeds.setdefault(case.split()[2].removesuffix(","), []).append(speed)
        notes.append(f"{case}: {speed:.2f}")
    for kind, values in speeds.items():
        notes.append(f"{kind}: geometric mean {statistics.geometric_mean(values):.2f}, worst {min(values):.2f}")
    return notes


def inference(
    theirs: torch.nn.Module, ours: Any, input: torch.Tensor, others: dict[str, Side] | None = None
) -> dict[str, Side]:
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
        **({} if others is None else others),
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
    channels_last = input.contiguous(memory_format=torch.channels_last)
    model, mine = ours.train(), genesis.from_torch(channels_last)
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step_genesis() -> None:
        loss = model(mine).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return {
        "torch channels_last": training_torch(theirs, channels_last, torch.channels_last),
        "torch contiguous": training_torch(theirs, input, torch.contiguous_format),
        "genesis": step_genesis,
        "genesis.compile": training_compiled(copy.deepcopy(ours), mine),
    }


def training_torch(model: torch.nn.Module, input: torch.Tensor, order: torch.memory_format) -> Side:
    return training_step(copy.deepcopy(model).train().to(memory_format=order), input, lr=1e-3)


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
