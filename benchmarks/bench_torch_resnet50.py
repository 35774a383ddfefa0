"""torchvision's ResNet-50 training in PyTorch, with and without the one line `model = genesis.torch.fuse(model)`.

    python benchmarks/bench_torch_resnet50.py                     eager, compile, Genesis
    python benchmarks/bench_torch_resnet50.py --modes default max-autotune-no-cudagraphs      (eight minutes of tuning)

Batch 128 of 224², bfloat16 autocast, channels_last, SGD with momentum; each side's whole step is captured in a CUDA
graph, and the graphs are replayed in turn. Also how long each side's first steps took, and memory. Results are written
as soon as a side is ready; sides that are not ready after --seconds are left out.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_timing
import torch
import torchvision
from harness import RESULTS, Comparison

import genesis
import genesis.torch

WARMUP = 4  # steps before the capture


def main() -> int:
    arguments = parse()
    comparison = Comparison("bench_torch_resnet50", **gpu_timing.at_full_speed(tf32=True))
    sides: dict[str, Callable[[Any], Any]] = {"torch": lambda model: model, "genesis": genesis.torch.fuse}
    sides |= {f"compile {mode}": lambda model, mode=mode: torch.compile(model, mode=mode) for mode in arguments.modes}
    torch.manual_seed(0)
    images = torch.randn(arguments.batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (arguments.batch,), device="cuda")
    replays: dict[str, Callable[[], None]] = {}
    losses = {}
    deadline = time.monotonic() + arguments.seconds
    for name, prepare in sides.items():  # what takes longest to prepare comes last
        try:
            with time_limit(deadline):
                replays[name], losses[name] = captured(name, prepare, images, labels, arguments)
        except TimeoutError:
            print(f"  {name}: left out, the {arguments.seconds:.0f} seconds are over", flush=True)
            continue
        compare(comparison, replays, losses, arguments)
    return 0


def compare(
    comparison: Comparison, replays: dict[str, Callable[[], None]], losses: dict[str, torch.Tensor],
    arguments: argparse.Namespace,
) -> None:  # fmt: skip
    """Time the sides that are ready, in turn, and write down what is known so far."""
    times: dict[str, list[float]] = {name: [] for name in sorted(replays, key=lambda name: name == "genesis")}
    for index in range(arguments.rounds):
        names = list(replays)
        for name in names[index % len(names) :] + names[: index % len(names)]:
            times[name].append(timed(replays[name]))
    comparison.add(f"ResNet-50 training, batch {arguments.batch}", times)
    for name, values in times.items():
        speed = arguments.batch / statistics.median(values) * 1e3
        print(f"  {name:<40} {speed:8,.0f} images/s   loss {losses[name].item():.4f}")
    comparison.finish(arguments.out)


@contextmanager
def time_limit(deadline: float) -> Iterator[None]:
    """Raises: TimeoutError: in the midst of what runs, when time.monotonic() reaches the deadline."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(deadline - time.monotonic(), 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="*", default=["default"], metavar="MODE", help="of torch.compile")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tune", type=float, default=180, help="seconds for tuning convolutions; 0: heuristics")
    parser.add_argument("--seconds", type=float, default=1200, help="for preparing the sides")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the results")
    return parser.parse_args()


def captured(
    name: str, prepare: Callable[[Any], Any], images: torch.Tensor, labels: torch.Tensor, arguments: argparse.Namespace
) -> tuple[Callable[[], None], torch.Tensor]:
    """The replay of a training step, and its loss."""
    torch.manual_seed(0)
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    model = prepare(model)
    loss_function = torch.nn.CrossEntropyLoss()

    def backward() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_function(model(images), labels)
        loss.backward()
        return loss

    def step() -> torch.Tensor:
        loss = backward()
        optimizer.step()
        return loss

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        if name == "genesis" and arguments.tune:
            began = time.perf_counter()
            report = genesis.tune(backward, budget=arguments.tune)
            complete = sum([each.complete for each in report.outcomes])
            print(f"  {len(report)} convolutions tuned, {complete} to the end, in {time.perf_counter() - began:.2f} s")
        for index in range(WARMUP):
            began = time.perf_counter()
            step()
            torch.cuda.synchronize()
            print(f"  {name}: step {index} took {time.perf_counter() - began:.2f} s", flush=True)
        if hasattr(model, "fusion"):
            print(f"  {str(model.fusion).splitlines()[0]}")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            loss = step()
    torch.cuda.synchronize()
    print(f"  {name}: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB at most so far", flush=True)

    def replay() -> None:
        graph.replay()
        assert alive  # the graph knows the parameters by their addresses only

    alive = model, optimizer
    return replay, loss


def timed(replay: Callable[[], None], repeats: int = 3) -> float:
    """Milliseconds of a replay."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


if __name__ == "__main__":
    sys.exit(main())
