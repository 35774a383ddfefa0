"""What a short genesis.tune is worth: torchvision's networks, each with empty caches, in a process of its own.

    python benchmarks/bench_tuning.py                                 20 seconds for resnet18, resnet50, mobilenet_v2
    python benchmarks/bench_tuning.py --models resnet50 --budgets 2 5 20 60 --against 120
    GENESIS_COMPILERS=0 python benchmarks/bench_tuning.py             compiling in threads

A step is forward, loss and backward of the fused model on a GPU: bfloat16 autocast, channels_last; its time is that of
its CUDA graph, in which nothing waits for Python. For each budget: how many of its problems were tuned, how many to the
end, how many candidates were measured and kernels compiled, in how many seconds of all compilers together; how long
tuning took, with the model's first call and without; the step after, and how fast it is relative to the step without
tuning and to that after the budget of --against, each in a process of its own with empty caches. At last, a second
process on the caches of the largest budget: how long genesis.tune(resume=False) takes, and what it compiles.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

_MODELS = ["resnet18", "resnet50", "mobilenet_v2"]
_STEPS, _WARM = 20, 3


def main() -> int:
    arguments = parse()
    if arguments.one:
        print(json.dumps(measured(arguments.models[0], arguments.budgets[0], arguments)))
        return 0
    for model in arguments.models:
        compare(model, arguments)
    return 0


def compare(model: str, arguments: argparse.Namespace) -> None:
    print(
        f"{model}\n  budget      tuned   to the end   candidates   compiled            took (first call)"
        "       step   speed   quality"
    )
    with tempfile.TemporaryDirectory() as folder:
        untuned = in_a_process(model, 0.0, arguments)["step"]
        best = in_a_process(model, arguments.against, arguments, folder)
        for budget in arguments.budgets:
            show(budget, in_a_process(model, budget, arguments), untuned, best["step"])
        show(arguments.against, best, untuned, best["step"])
        again = in_a_process(model, arguments.against, arguments, folder)
    print(
        f"  second process: {again['seconds']:.1f} s, {again['all']} problems to tune, "
        f"{again['compiled']} kernels compiled by others and {again['misses']} by itself",
        flush=True,
    )


def show(budget: float, row: dict[str, Any], untuned: float, best: float) -> None:
    compiled = f"{row['compiled']} in {row['compile_seconds']:.0f} s"
    took = f"{row['seconds'] - row['first']:.1f} s ({row['first']:.1f} s)"
    print(
        f"{budget:>6g} s {row['tuned']:>5} / {row['all']:<4} {row['complete']:>8} {row['candidates']:>12} "
        f"{compiled:>16} {took:>20} {row['step']:>9.2f} ms {untuned / row['step']:>6.2f}x {best / row['step']:>8.3f}",
        flush=True,
    )


def in_a_process(model: str, budget: float, arguments: argparse.Namespace, folder: str | None = None) -> dict[str, Any]:
    """With caches that are empty, or in a folder: Genesis', Triton's and the driver's."""
    with contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory() as folder:
        caches = {
            "GENESIS_CACHE_DIR": f"{folder}/genesis", "TRITON_CACHE_DIR": f"{folder}/triton",
            "CUDA_CACHE_PATH": f"{folder}/driver",
        }  # fmt: skip
        command = [
            sys.executable, __file__, "--one", "--models", model, "--budgets", str(budget), "--batch",
            str(arguments.batch), "--size", str(arguments.size), "--dtype", arguments.dtype,
        ]  # fmt: skip
        run = subprocess.run(command, env={**os.environ, **caches}, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


def measured(name: str, budget: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """budget: 0 tunes nothing."""
    import torch
    import torchvision

    import genesis
    import genesis.torch

    torch.manual_seed(0)
    model = genesis.torch.fuse(getattr(torchvision.models, name)().cuda().to(memory_format=torch.channels_last))
    images = torch.randn(arguments.batch, 3, arguments.size, arguments.size, device="cuda")
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (arguments.batch,), device="cuda")
    lowered = arguments.dtype != "float32"

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", getattr(torch, arguments.dtype), enabled=lowered):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()

    if budget == 0:
        return {"step": milliseconds(step)}
    from triton import knobs

    misses: list[str] = []  # compiled in this process
    knobs.compilation.listener = lambda **told: None if told["cache_hit"] else misses.append(told["src"].name)
    ends: list[float] = []

    def first() -> None:
        step()
        torch.cuda.synchronize()
        ends.append(time.perf_counter())

    start = time.perf_counter()
    report = genesis.tune(first, budget=budget, resume=False)
    seconds, num_misses = time.perf_counter() - start, len(misses)
    return {
        "tuned": len(report), "all": len(report) + report.num_left, "seconds": seconds, "first": ends[0] - start,
        "complete": sum(outcome.complete for outcome in report.outcomes), "misses": num_misses,
        "candidates": sum(outcome.num_measured for outcome in report.outcomes),
        "compiled": report.num_compiled, "compile_seconds": report.compile_seconds, "step": milliseconds(step),
    }  # fmt: skip


def milliseconds(step: Callable[[], None]) -> float:
    """The median of a few replays of a step's CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(_WARM):
            step()
        with torch.cuda.graph(graph, stream=stream):
            step()
    times = []
    for _ in range(_STEPS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=_MODELS, help="of torchvision")
    parser.add_argument("--budgets", type=float, nargs="+", default=[20.0], help="seconds")
    parser.add_argument("--against", type=float, default=120.0, help="seconds, whose result is the measure of quality")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in this process
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
