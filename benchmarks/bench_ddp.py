"""Data parallel training on one host: images per second on 1 and on all GPUs, Genesis beside PyTorch.

    torchrun --nproc-per-node 4 benchmarks/bench_ddp.py                                all sides, a quarter of an hour
    torchrun --nproc-per-node 2 benchmarks/bench_ddp.py --batches 128 --sides torch graph --tune 20
    torchrun --nproc-per-node 2 benchmarks/bench_ddp.py --device cpu --networks tiny --steps 1 --rounds 1      to try it

ResNet-50 on random images, bfloat16 autocast, channels_last, SGD with momentum; gradients travel in float32, in buckets
of 25 MiB, on both sides. A time is that of --steps steps with one synchronization at their end; sides take turns. "1"
is rank 0 alone, without DistributedDataParallel, while the others wait. "graph" is Genesis with the whole step in a
CUDA graph, collectives included. Rank 0 prints and writes.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed
from harness import RESULTS, Comparison

import genesis
import genesis.nn.functional as F
from genesis import distributed as dist
from genesis import nn, optim


class Network(NamedTuple):
    """A network of both sides, and the shape of an image."""

    mine: Callable[[], nn.Module]
    theirs: Callable[[], torch.nn.Module]
    image: tuple[int, ...]
    num_classes: int


def resnet50() -> torch.nn.Module:
    import torchvision

    model: torch.nn.Module = torchvision.models.resnet50()
    return model


def tiny(library: Any) -> Any:
    return library.Sequential(library.Conv2d(3, 4, 3), library.ReLU(), library.Flatten(), library.Linear(4 * 36, 10))


NETWORKS = {
    "resnet50": Network(lambda: genesis.models.create("resnet50"), resnet50, (3, 224, 224), 1000),
    "tiny": Network(lambda: tiny(nn), lambda: tiny(torch.nn), (3, 8, 8), 10),
}
SIDES = ("torch", "torch-compile", "eager", "graph")
_WARM = 5  # steps


class Loop:
    """A training loop of one side. is_parallel: within DistributedDataParallel."""

    def __init__(self, network: Network, batch: int, is_parallel: bool, arguments: argparse.Namespace) -> None:
        self.device, self.is_parallel = arguments.device, is_parallel
        self.shape = (batch, *network.image)

    def step(self) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, steps: int) -> float:
        """A step's, of so many."""
        self.wait()
        if self.is_parallel:
            dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.wait()
        return (time.perf_counter() - start) / steps * 1e3


class Theirs(Loop):
    def __init__(
        self, network: Network, batch: int, is_parallel: bool, arguments: argparse.Namespace, compiles: bool
    ) -> None:  # fmt: skip
        super().__init__(network, batch, is_parallel, arguments)
        model: Any = network.theirs().to(arguments.place).to(memory_format=torch.channels_last)
        if is_parallel:
            devices = [arguments.place] if self.device == "cuda" else None
            model = torch.nn.parallel.DistributedDataParallel(model, devices, gradient_as_bucket_view=True)
        fused = True if self.device == "cuda" else None
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=fused)
        self.model: Any = torch.compile(model) if compiles else model
        images = torch.randn(self.shape, device=arguments.place)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, network.num_classes, (batch,), device=arguments.place)
        for _ in range(_WARM):
            self.step()
        self.wait()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()


class Mine(Loop):
    def __init__(
        self, network: Network, batch: int, is_parallel: bool, arguments: argparse.Namespace, captures: bool
    ) -> None:  # fmt: skip
        super().__init__(network, batch, is_parallel, arguments)
        genesis.manual_seed(0)
        model = network.mine().to(self.device)
        self.images = genesis.randn(*self.shape, device=self.device)
        self.labels = genesis.randint(0, network.num_classes, (batch,), device=self.device)
        self.model: nn.Module = model
        if arguments.tune:
            report = genesis.tune(self._loss_and_gradients, budget=arguments.tune)
            print(f"  rank {dist.get_rank()}: {len(report)} problems tuned", flush=True)
            model.zero_grad()
        if is_parallel:
            self.model = nn.parallel.DistributedDataParallel(model)
        self.optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self._graph = genesis.cuda.Graph() if captures else None
        for _ in range(_WARM):
            self._eager_step()
        if self._graph is not None:
            self.wait()
            with genesis.cuda.graph(self._graph):
                self._eager_step()
        for _ in range(_WARM):
            self.step()
        self.wait()

    def step(self) -> None:
        if self._graph is None:
            self._eager_step()
        else:
            self._graph.replay()

    def wait(self) -> None:
        if self.device == "cuda":
            genesis.cuda.synchronize()

    def _eager_step(self) -> None:
        self.optimizer.zero_grad()
        self._loss_and_gradients()
        self.optimizer.step()

    def _loss_and_gradients(self) -> None:
        with genesis.autocast(self.device, dtype=genesis.bfloat16):
            loss = F.cross_entropy(self.model(self.images), self.labels)
        loss.backward()


def made(side: str, network: Network, batch: int, is_parallel: bool, arguments: argparse.Namespace) -> Loop:
    if side.startswith("torch"):
        return Theirs(network, batch, is_parallel, arguments, compiles=side == "torch-compile")
    return Mine(network, batch, is_parallel, arguments, captures=side == "graph" and arguments.device == "cuda")


def timed(
    name: str, batch: int, sides: Sequence[str], is_parallel: bool, arguments: argparse.Namespace
) -> dict[str, list[float]]:  # fmt: skip
    """Milliseconds of a step of each side, in turn."""
    loops = {side: made(side, NETWORKS[name], batch, is_parallel, arguments) for side in sides}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for index in range(arguments.rounds):
        first = index % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            times[side].append(loops[side].milliseconds(arguments.steps))
    del loops
    gc.collect()
    torch._dynamo.reset()
    if arguments.device == "cuda":
        genesis.cuda.empty_cache()
        torch.cuda.empty_cache()
    return times


def add(comparison: Comparison, case: str, times: dict[str, list[float]], images: int) -> dict[str, float]:
    """Rows of a case. Returns: images per second by side, of so many images a step."""
    comparison.add(case, times)
    speeds = {side: images / statistics.median(values) * 1e3 for side, values in times.items()}
    for row in comparison.rows:
        if row["case"] == case:
            row["images_per_second"] = round(speeds[row["side"]], 1)
    return speeds


def measure(comparison: Comparison, name: str, batch: int, arguments: argparse.Namespace) -> None:
    size, is_first = dist.get_world_size(), dist.get_rank() == 0
    alone: dict[str, float] = {}
    if is_first and arguments.alone:
        times = timed(name, batch, arguments.alone, False, arguments)
        alone = add(comparison, f"{name}, batch {batch}, 1", times, batch)
    dist.barrier()
    times = timed(name, batch, arguments.sides, True, arguments)
    if not is_first:
        return
    for side, speed in add(comparison, f"{name}, batch {batch} a process, {size}", times, batch * size).items():
        scale = f"{speed / alone[side]:.2f}" if side in alone else ""
        one = f"{alone[side]:,.0f}" if side in alone else ""
        comparison.notes.append(f"| {name} | {batch} | {side} | {one} | {speed:,.0f} | {scale} |")
        print(comparison.notes[-1], flush=True)
    comparison.finish(arguments.out)


def main() -> int:
    arguments = parse()
    on_cuda = arguments.device == "cuda"
    machine: dict[str, Any] = {"processes": int(os.environ["WORLD_SIZE"])}
    if on_cuda:
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        genesis.cuda.set_device(local)
        arguments.place = torch.device("cuda", local)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        machine |= {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    if os.environ["RANK"] != "0":
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    backend = "nccl" if on_cuda else "gloo"
    torch.distributed.init_process_group(backend, device_id=arguments.place if on_cuda else None)
    dist.init_process_group(backend)
    comparison = Comparison("bench_ddp", **machine)
    columns = f"network | batch a process | side | images/s, 1 | images/s, {dist.get_world_size()} | times one's"
    comparison.notes += [f"\n| {columns} |", "|---|---|---|---|---|---|"]
    for name in arguments.networks:
        for batch in arguments.batches:
            measure(comparison, name, batch, arguments)
    dist.barrier()
    dist.destroy_process_group()
    torch.distributed.destroy_process_group()
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", default=["resnet50"], choices=NETWORKS)
    parser.add_argument("--batches", nargs="*", type=int, default=[128, 32], help="of each process")
    parser.add_argument("--sides", nargs="*", default=list(SIDES), choices=SIDES)
    parser.add_argument("--alone", nargs="*", choices=SIDES, help="those measured on 1 too; all of --sides by default")
    parser.add_argument("--steps", type=int, default=20, help="in a row, per measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tune", type=float, default=0, help="seconds for tuning convolutions, per network and batch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    arguments.place = torch.device(arguments.device)  # PyTorch's models and images, of this rank
    arguments.alone = arguments.sides if arguments.alone is None else arguments.alone
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
