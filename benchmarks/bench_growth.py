"""A growth step on a ResNet-50 beside a training step: the second stage becomes a quarter wider, with its optimizer.

    python benchmarks/bench_growth.py [--device cuda] [--batch 8 ...] [--size 128] [--rounds 7]

The growth step is the whole of it: the channel map, the copy that rollback would need, the new parameters, statistics
and moments, and the passes over two samples that check that the outputs stayed. A growth leaves its map for the next
one; the first growth step is one without, whose first pass makes the map. All are timed in turns, the first of each is
left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from harness import Comparison

import genesis
from genesis import growth, models, nn, optim
from genesis.growth.known import KnownMap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    genesis.manual_seed(0)
    model = models.create("resnet50").to(arguments.device)
    optimizer = optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    where = "cpu" if arguments.device == "cpu" else "gpu"
    about = {} if where == "cpu" else {"gpu": genesis.cuda.get_device_name()}
    comparison = Comparison(f"bench_growth_{where}", **about)
    for batch in arguments.batch:
        images = genesis.randn(batch, 3, arguments.size, arguments.size, device=arguments.device)
        case = f"resnet50 {batch}×3×{arguments.size}²"
        comparison.add(case, measure(model, optimizer, images, arguments.rounds))
    comparison.finish()


def measure(
    model: nn.Module, optimizer: optim.Optimizer, images: genesis.Tensor, rounds: int
) -> dict[str, list[float]]:
    """Milliseconds of each step."""

    def synchronize() -> None:
        if images.is_cuda:
            genesis.cuda.synchronize(images.device)

    def train() -> None:
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        synchronize()

    def grow() -> None:
        growth.grow_width(model, "layer2", channels=640, optimizer=optimizer, example=images[:2])
        synchronize()

    def grow_first() -> None:
        growth.history(model).known = KnownMap()
        grow()

    train()
    times: dict[str, list[float]] = {"training step": [], "growth step": [], "first growth step": []}
    for _ in range(rounds + 1):
        for case, step in (("first growth step", grow_first), ("growth step", grow)):
            times["training step"].append(milliseconds(train))
            times[case].append(milliseconds(step))
            growth.rollback(growth.history(model)[-1])
            synchronize()
    return {name: values[1:] for name, values in times.items()}


def milliseconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
