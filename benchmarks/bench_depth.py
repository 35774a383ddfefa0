"""A network's time by how deep the program's own calls are, on the CPU: see genesis/frames.py.

CPython keeps frames in chunks of 16 KiB. Where a chunk ends within the loop over a network's ops, each call maps memory
and unmaps it. "without room" is Genesis with frames.in_room() switched off.

    python benchmarks/bench_depth.py [regnet_y_400mf] [resnet18] …       networks of torchvision, compiled
    python benchmarks/bench_depth.py --batch 4 --threads 1
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import torch
from bench_fuse_cpu import create
from harness import Comparison, Side

import genesis
import genesis.torch
from genesis import frames

DEPTHS = range(0, 180, 6)  # calls: more than a chunk has room for
_CALLS = 8
_NAMES = ("regnet_y_400mf", "efficientnet_b0", "mobilenet_v2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=_NAMES)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    comparison = Comparison("bench_depth", threads=arguments.threads)
    for name in arguments.names:
        add(comparison, f"{name} b{arguments.batch}, compiled", compiled(name, arguments.batch))
    add(comparison, f"Genesis' ResNet-18 b{arguments.batch} 64², eager", eager(arguments.batch))
    comparison.finish()


def add(comparison: Comparison, case: str, sides: dict[str, Side]) -> None:
    """Two rows: the median of all depths, and the worst one."""
    for side in sides.values():
        for _ in range(24):  # compile, tune
            side()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for depth in DEPTHS:
        for name, side in sides.items():
            times[name].append(at(depth, side))
    comparison.add(f"{case}, median of {len(DEPTHS)} depths", times)
    comparison.add(f"{case}, worst of {len(DEPTHS)} depths", {name: [max(found)] for name, found in times.items()})


def at(depth: int, side: Side) -> float:
    """Milliseconds of a call below so many others."""
    if depth:
        return at(depth - 1, side)
    found = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        side()
        found.append((time.perf_counter() - start) * 1e3)
    return statistics.median(found)


def compiled(name: str, batch: int) -> dict[str, Side]:
    model, input = create(name, batch)
    model, input = (each.to(memory_format=torch.channels_last) for each in (model.eval(), input))
    theirs, ours = torch.compile(copy.deepcopy(model)), genesis.torch.compile(model)

    def run(network: Callable[[torch.Tensor], object]) -> Side:
        @torch.no_grad()
        def call() -> object:
            return network(input)

        return call

    return {"torch": run(theirs), "genesis without room": without_room(run(ours)), "genesis": run(ours)}


def eager(batch: int) -> dict[str, Side]:
    model, input = genesis.models.create("resnet18").eval(), genesis.randn(batch, 3, 64, 64)

    @genesis.no_grad()
    def call() -> object:
        return model(input)

    return {"genesis without room": without_room(call), "genesis": call}


def without_room(side: Side) -> Side:
    def call() -> object:
        with _always_room():
            return side()

    return call


@contextlib.contextmanager
def _always_room() -> Iterator[None]:
    """Have in_room() believe that there is."""
    known = frames._thread
    frames._thread = SimpleNamespace(top=ctypes.c_size_t(0), limit=ctypes.c_size_t(1 << 40))  # type: ignore[assignment]
    try:
        yield
    finally:
        frames._thread = known


if __name__ == "__main__":
    main()
