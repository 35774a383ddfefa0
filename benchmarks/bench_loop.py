"""Training loops as people write them, on the host's clock: PyTorch eager, torch.compile, and genesis.torch.compile.

    python benchmarks/bench_loop.py                                        all networks, all sides (an hour, cold)
    python benchmarks/bench_loop.py --networks resnet50 --sides eager reduce-overhead genesis --tune 30
    python benchmarks/bench_loop.py --processes 5      five networks prepare at a time, and are timed in turns

bfloat16 autocast, channels_last (or --contiguous), SGD with momentum, images of random numbers. The loop is unmodified;
its time is that of --steps steps with one synchronization at their end. A side's network is made, run to its first fast
step and then timed in turn with the others. "ready" is the time to that step: until one step took less than 1.2 times
what a step takes in the end; cold, unless --keep-caches, but for byte code. "graph" is the fused step in a CUDA
graph made by hand, without the host: what genesis.torch.compile should come close to. Networks that are not installed
(torchvision) are left out.
With --processes, neither "ready" nor memory is told, and convolutions are tuned before all sides.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gpu_timing
import torch
import turns
from harness import RESULTS, Comparison
from torch import nn
from torch.nn import functional as F
from torch_networks import UNet

import genesis
import genesis.torch
from genesis.torch import native_steps
from genesis.torch.links import running_alone


class Case(NamedTuple):
    """A network by torchvision's name, or one of ours; sizes of its images; 0 classes: a label per pixel of 21."""

    network: str
    batch: int
    size: int = 224
    classes: int = 1000


CASES = {
    "resnet18": Case("resnet18", 256),
    "resnet50": Case("resnet50", 64),
    "resnet50-128": Case("resnet50", 128),
    "resnet101": Case("resnet101", 64),
    "vgg16_bn": Case("vgg16_bn", 64),
    "resnext50": Case("resnext50_32x4d", 64),
    "deeplabv3": Case("deeplabv3_resnet50", 8, 512, 0),
    "unet": Case("unet", 8, 512, 0),
    "mobilenet_v2": Case("mobilenet_v2", 128),
    "hrnet": Case("hrnet_w18_small_v2", 64),
    "tiny": Case("tiny", 4, 16, 10),  # to try this script
}
_PYTORCH = ("eager", "compile", "reduce-overhead")
SIDES = ("eager", "compile", "reduce-overhead", "fused", "genesis", "graph")


def main() -> int:
    arguments = parse()
    on_cuda = arguments.device == "cuda"
    machine = gpu_timing.at_full_speed(tf32=True) if on_cuda else {}
    if arguments.processes > 1:
        return min(turns.run(commands(arguments), arguments.processes), 1)
    turns.inductor_measures_in_turns()
    if sys.dont_write_bytecode:
        print('PYTHONDONTWRITEBYTECODE is set: "ready" may have the compiling of PyTorch\'s modules in it')
    comparison = Loops("bench_loop", **machine)
    comparison.keep_others(arguments.out)
    for name in arguments.networks:
        try:
            if arguments.in_turns:
                tune(CASES[name], arguments)
            loops = {side: made(side, CASES[name], arguments) for side in arguments.sides}
        except ImportError as error:
            print(f"  {name}: left out ({error})")
            continue
        compare(comparison, name, {side: loop for side, loop in loops.items() if loop is not None}, arguments)
        del loops
        torch._dynamo.reset()
        free()
        with turns.alone(arguments.out):
            comparison.keep_others(arguments.out)
            comparison.finish(arguments.out)
    return 0


def commands(arguments: argparse.Namespace) -> Iterator[list[str]]:
    """For each network alone."""
    options = [
        f"--{name}={getattr(arguments, name)}" for name in ("steps", "rounds", "warmup", "tune", "device", "out")
    ]
    options += [f"--{name}" for name in ("report", "contiguous") if getattr(arguments, name)]
    for name in arguments.networks:
        yield [sys.executable, __file__, "--networks", name, "--sides", *arguments.sides, "--in-turns", *options]


def tune(case: Case, arguments: argparse.Namespace) -> None:
    """Store the plans of a network's convolutions; cuDNN's search for PyTorch's comes first."""
    loop = Loop(case, genesis.torch.fuse, arguments, warmup=1)  # its kernels are compiled beside other networks'
    with turns.measuring():
        Loop(case, lambda model: model, arguments, warmup=1)
        if arguments.tune:
            with running_alone():
                genesis.tune(loop.backward, budget=arguments.tune, progress=lambda *_: None)
    free()


def compare(comparison: Comparison, name: str, loops: dict[str, Loop], arguments: argparse.Namespace) -> None:
    """Time the sides in turn, and write down what is known."""
    case, names = CASES[name], list(loops)
    times: dict[str, list[float]] = {side: [] for side in names}
    if "genesis" in loops and arguments.device == "cuda":
        native_steps.wait()  # for what is compiled in the background
    with turns.measuring():
        for index in range(arguments.rounds):
            first = index % len(names)
            for side in names[first:] + names[:first]:
                times[side].append(loops[side].milliseconds(arguments.steps))
    title = f"{name}, {'contiguous, ' if arguments.contiguous else ''}batch {case.batch}, {case.size}²"
    comparison.add(title, times)
    for row in comparison.rows:
        if row["case"] == title:
            loop = loops[row["side"]]
            row["loss"] = round(loop.loss.item(), 4)
            if not arguments.in_turns:  # captured sides share a pool of memory: the first one's is what it takes
                row["gigabytes"] = round(loop.gigabytes, 3)
                row["ready_s"] = round(loop.ready_after(statistics.median(times[row["side"]])), 1)
            print(f"  {told(row)}", flush=True)
    if "genesis" in loops and arguments.report:
        print(genesis.torch.report(loops["genesis"].model))


def told(row: dict[str, Any]) -> str:
    alone = f"ready after {row['ready_s']:.1f} s, {row['gigabytes']:.2f} GB, " if "ready_s" in row else ""
    return f"{row['case'].partition(',')[0]} {row['side']}: {alone}loss {row['loss']:.4f}"


class Loops(Comparison):
    """A row for each network and side."""

    def markdown(self) -> str:
        sides = [side for side in SIDES if any(row["side"] == side for row in self.rows)]
        lines = [f"| network | {' | '.join(sides)} | PyTorch's best / genesis |", f"|---|{'---|' * len(sides)}---|"]
        speeds = []
        for case, rows in self._by_case():
            times = [f"{rows[side]['median_ms']:.2f} ms" if side in rows else "" for side in sides]
            theirs = [rows[side]["median_ms"] for side in rows if side in _PYTORCH]
            speed = min(theirs) / rows["genesis"]["median_ms"] if theirs and "genesis" in rows else None
            speeds += [] if speed is None else [speed]
            lines.append(f"| {case} | {' | '.join(times)} | {'' if speed is None else f'{speed:.2f}'} |")
        mean = f"\nGeometric mean: {statistics.geometric_mean(speeds):.2f}\n" if speeds else ""
        notes = [f"\n{told(row)}" for row in self.rows if "loss" in row]
        return self.heading() + "\n".join([*lines, mean, *notes]) + "\n"


class Loop:
    """A model in the loop around it."""

    def __init__(
        self, case: Case, prepare: Callable[[nn.Module], Any], arguments: argparse.Namespace, warmup: int | None = None
    ) -> None:
        self._device = arguments.device
        import_for(case)
        if self._device == "cuda":
            free()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_reserved()
        self._start = time.perf_counter()
        torch.manual_seed(0)
        order = torch.contiguous_format if arguments.contiguous else torch.channels_last
        model = network(case).to(self._device).to(memory_format=order)
        self.optimizer = torch.optim.SGD(
            model.parameters(), lr=1e-3, momentum=0.9, fused=True if self._device == "cuda" else None
        )
        images = torch.randn(case.batch, 3, case.size, case.size, device=self._device)
        self.images = images.to(memory_format=order)
        shape = (case.batch,) if case.classes else (case.batch, case.size, case.size)
        self.labels = torch.randint(0, case.classes or 21, shape, device=self._device)
        self.model = prepare(model)
        self.loss = torch.zeros(())
        self._warm: list[tuple[float, float]] = []  # when a step ended, and what it took, ms
        for _ in range(arguments.warmup if warmup is None else warmup):
            step = self.milliseconds(1)
            self._warm.append((time.perf_counter() - self._start, step))
        self.gigabytes = (torch.cuda.max_memory_reserved() - before) / 1e9 if self._device == "cuda" else 0.0

    def step(self) -> None:
        self.backward()
        self.optimizer.step()

    def backward(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device, torch.bfloat16):
            outputs = self.model(self.images)
            outputs = outputs["out"] if isinstance(outputs, dict) else outputs
            loss = F.cross_entropy(outputs, self.labels)
        loss.backward()
        self.loss = loss.detach()  # whoever keeps the graph alive keeps its nodes on the streams that made them

    def milliseconds(self, steps: int) -> float:
        """A step's, of so many."""
        self._wait()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._wait()
        return (time.perf_counter() - start) / steps * 1e3

    def ready_after(self, milliseconds: float) -> float:
        """Seconds until the end of the first step that is about as fast as they are in the end; alone, with a
        synchronization, a step takes the host's time and the device's."""
        best = min(step for _, step in self._warm)
        fast = 1.2 * max(milliseconds, best)
        return next(end for end, step in self._warm if step <= fast)

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()


class Captured(Loop):
    """The fused step by hand: forward, backward and optimizer in one CUDA graph; no host is in the way."""

    graph: torch.cuda.CUDAGraph | None = None

    def milliseconds(self, steps: int) -> float:
        if self.graph is None and len(self._warm) >= 4:
            self._capture()
        return super().milliseconds(steps)

    def step(self) -> None:
        if self.graph is None:
            super().step()
        else:
            self.graph.replay()

    def _capture(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                super().step()
        graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=stream):
            super().step()
        self.graph = graph


def made(side: str, case: Case, arguments: argparse.Namespace) -> Loop | None:
    """A side, ready; None where it cannot be."""
    ways: dict[str, Callable[[nn.Module], Any]] = {
        "eager": lambda model: model,
        "compile": torch.compile,
        "reduce-overhead": lambda model: torch.compile(model, mode="reduce-overhead"),
        "fused": genesis.torch.fuse,
        "genesis": lambda model: genesis.torch.compile(model, tune=None if arguments.in_turns else arguments.tune),
        "graph": genesis.torch.fuse,
    }
    if not arguments.keep_caches:  # a folder of its own: what another side has compiled is not there
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="bench_loop_")
    try:
        return (Captured if side == "graph" else Loop)(case, ways[side], arguments)
    except ImportError:
        raise
    except Exception as error:  # one side's failure is a result
        print(f"  {case.network} {side}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        free()
        return None


def network(case: Case) -> nn.Module:
    if case.network == "unet":
        return UNet(3, 21, 32, 4)
    if case.network == "tiny":
        layers = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(8, case.classes))
    if case.network.startswith("hrnet"):
        import timm

        return timm.create_model(case.network)
    import torchvision

    if case.classes == 0:
        return torchvision.models.segmentation.__dict__[case.network](weights=None, weights_backbone=None)
    return torchvision.models.__dict__[case.network]()


def import_for(case: Case) -> None:
    """Import where a network is from, which may take longer than some networks take to compile."""
    if case.network.startswith("hrnet"):
        import timm  # noqa: F401
    elif case.network not in ("unet", "tiny"):
        import torchvision  # noqa: F401


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", default=[name for name in CASES if name != "tiny"], choices=CASES)
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=SIDES)
    parser.add_argument("--steps", type=int, default=20, help="in a row, per measurement")
    parser.add_argument("--rounds", type=int, default=7, help="measurements per side, in turn")
    parser.add_argument("--warmup", type=int, default=10, help="steps of each side before the first measurement")
    parser.add_argument("--tune", type=float, default=20, help="seconds for tuning convolutions; 0: what takes none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--contiguous", action="store_true", help="models and images as PyTorch makes them")
    parser.add_argument("--processes", type=int, default=1, help="that prepare at the same time, and measure in turns")
    parser.add_argument("--in-turns", action="store_true", help=argparse.SUPPRESS)  # one of these processes
    parser.add_argument("--keep-caches", action="store_true", help="of Inductor: measure the second process")
    parser.add_argument("--report", action="store_true", help="print what became of the network")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
