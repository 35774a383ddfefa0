"""DeepLabV3-ResNet50, 21 classes, 512×512, inference, beside PyTorch with the same weights.

    python benchmarks/bench_deeplab.py [--threads 2] [--rounds 7]        on the CPU, batch 1, float32
    python benchmarks/bench_deeplab.py --device cuda [--batches 1 8] [--dtypes float16 bfloat16] [--tune 25]

On the CPU, the reference is torch.compile with freezing; PyTorch's eager mode in channels_last is shown too. On a GPU
there are PyTorch's modes one by one (eager in channels_last and compiled with freezing, each replayed as a CUDA graph;
torch.compile's own "reduce-overhead"), and the fastest of them is the reference. PyTorch tunes its convolutions by
cudnn.benchmark, Genesis by genesis.tune. Genesis runs eagerly, and replayed as one CUDA graph of PyTorch's, taken by
benchmarks/gpu_timing.py. Times on a GPU are by events around one call.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from bench_cpu_nets import inference
from harness import RESULTS, Comparison, Side
from torch_segmentation import deeplabv3_resnet50

import genesis
from genesis import models, nn
from genesis.segmentation.recipe import Recipe
from genesis.segmentation.segmenter import for_inference

SIZE = 512


class TorchMap(torch.nn.Module):
    """The network's map alone, which both sides give."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)["out"]


class Map(nn.Module):
    """The same of Genesis."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: genesis.Tensor) -> genesis.Tensor:
        return self.model(x)["out"]


def networks() -> tuple[torch.nn.Module, nn.Module]:
    """Both networks with one set of random weights, and statistics under which no layer's values grow without end.

    The blocks' last norms are scaled down, as training scales them: with 1 there, random blocks multiply a rounding in
    16 bits so often that a tenth of the result is noise, on both sides, and nothing could be compared.
    """
    torch.manual_seed(0)
    theirs = deeplabv3_resnet50()
    with torch.no_grad():
        for name, module in theirs.named_modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.momentum = None  # the mean over all batches
            if name.endswith("bn3"):
                module.weight.fill_(0.2)
        theirs(torch.randn(4, 3, 96, 96))
    ours = models.deeplabv3_resnet50()
    ours.load_state_dict(theirs.state_dict())
    return TorchMap(theirs).eval(), Map(ours).eval()


def on_the_cpu(threads: int, rounds: int) -> None:
    torch.set_num_threads(threads)
    comparison = Comparison("bench_deeplab_cpu", threads=threads)
    theirs, ours = networks()
    sides = inference(theirs, ours, torch.randn(1, 3, SIZE, SIZE))
    comparison.measure(f"deeplabv3_resnet50 1×3×{SIZE}×{SIZE} float32", sides, rounds, warmup=1)
    comparison.finish()


def on_a_gpu(rounds: int, batches: list[int], dtypes: list[str], mode: str, tune: float, out: Path) -> None:
    import gpu_timing

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False  # for the float32 result that both are compared with
    comparison = Comparison("bench_deeplab_gpu", gpu=torch.cuda.get_device_name(), compile_mode=mode)
    for dtype in (getattr(torch, name) for name in dtypes):
        for batch in batches:
            torch.compiler.reset()
            with gpu_timing.shared_stream(), torch.no_grad():
                times = timed(gpu_sides(dtype, batch, mode, tune), rounds)
            best = min((side for side in times if side.startswith("torch")), key=lambda s: statistics.median(times[s]))
            case = f"deeplabv3_resnet50 {batch}×3×{SIZE}×{SIZE} {str(dtype).removeprefix('torch.')}"
            comparison.add(case, {best: times.pop(best), **times})
            comparison.finish(out)  # a case takes a minute: a run that is cut keeps what it has


def gpu_sides(dtype: torch.dtype, batch: int, mode: str, tune: float) -> dict[str, Side]:
    """Every way to run the network once, each warm, compiled, captured and checked against float32."""
    import gpu_timing
    import torch._inductor.config as inductor

    theirs, ours = networks()
    input = torch.randn(batch, 3, SIZE, SIZE)
    reference = theirs.cuda()
    expected = reference(input.cuda())
    eager = copy.deepcopy(reference).to(dtype).to(memory_format=torch.channels_last)
    channels_last = input.cuda().to(dtype).contiguous(memory_format=torch.channels_last)
    inductor.freezing = True
    compiled = torch.compile(copy.deepcopy(eager), mode=mode)
    overhead = torch.compile(copy.deepcopy(eager), mode="reduce-overhead")

    recipe = Recipe("deeplabv3_resnet50", {}, (), None, None)
    precision = str(dtype).removeprefix("torch.")
    network = Map(for_inference(ours.model, recipe, "cuda", precision).model).eval()
    mine = genesis.from_torch(channels_last)
    with genesis.no_grad():
        report = genesis.tune(network, mine, budget=tune)
    print(f"  {len(report)} convolutions tuned, {sum([each.complete for each in report.outcomes])} of them to the end")

    def run_genesis() -> Any:
        with genesis.no_grad():
            return network(mine)

    calls: dict[str, Side] = {
        "torch eager": lambda: eager(channels_last),
        "torch compiled": lambda: compiled(channels_last),
        "torch reduce-overhead": lambda: overhead(channels_last),
        "genesis eager": run_genesis,
    }
    errors: dict[str, float] = {}
    for name, call in calls.items():
        for _ in range(3):
            result = call()
        errors[name] = distance(result if isinstance(result, torch.Tensor) else result.to_torch(), expected)
    check(errors, torch.finfo(dtype).eps)
    captured = {
        "torch eager, graph": gpu_timing.captured([calls["torch eager"]], 1).replay,
        "torch compiled, graph": gpu_timing.captured([calls["torch compiled"]], 1).replay,
        "torch reduce-overhead": calls["torch reduce-overhead"],
        "genesis eager": run_genesis,
        "genesis, graph": gpu_timing.captured([run_genesis], 1).replay,
    }
    inductor.freezing = False
    return captured


def distance(result: torch.Tensor, expected: torch.Tensor) -> float:
    return ((result.float() - expected).norm() / expected.norm()).item()


def check(errors: Mapping[str, float], eps: float) -> None:
    """Each result as near to float32 as PyTorch's eager mode is, which rounds after every layer; half as much again is
    the play that another order of sums has."""
    print("  relative distance from float32:", ", ".join(f"{name} {error:.2g}" for name, error in errors.items()))
    allowed = 1.5 * min(errors["torch eager"], 32 * eps)
    wrong = {name: error for name, error in errors.items() if not error <= allowed}
    if wrong:
        raise AssertionError(f"farther from float32 than {allowed:.2g}: {wrong}")


def timed(sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call of each side, the sides in turns, beginning with another one each time."""
    names = list(sides)
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + 2):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            sides[name]()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: values[2:] for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="on the CPU")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8], help="on a GPU")
    parser.add_argument("--dtypes", nargs="+", choices=("float16", "bfloat16"), default=["float16", "bfloat16"])
    parser.add_argument(
        "--mode", choices=("default", "max-autotune-no-cudagraphs"), default="default",
        help="torch.compile's on a GPU, beside reduce-overhead; the second compiles for minutes",
    )  # fmt: skip
    parser.add_argument("--tune", type=float, default=25, help="seconds for tuning convolutions, on a GPU, per case")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results, on a GPU")
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        on_the_cpu(arguments.threads, arguments.rounds)
    else:
        on_a_gpu(arguments.rounds, arguments.batches, arguments.dtypes, arguments.mode, arguments.tune, arguments.out)


if __name__ == "__main__":
    sys.exit(main())
