"""A growth step on a ResNet-50 beside a training step: the second stage becomes a quarter wider, with its optimizer.

    python benchmarks/bench_growth.py [--device cuda] [--batch 8] [--size 128] [--rounds 7]

The growth step is the whole of it: the channel map from a pass over two samples, the copy that rollback would need, the
new parameters, statistics and moments, and the pass that checks that the outputs stayed. Both are timed in turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from harness import Comparison

import genesis
from genesis import growth, models, optim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    genesis.manual_seed(0)
    model = models.create("resnet50").to(arguments.device)
    optimizer = optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    images = genesis.randn(arguments.batch, 3, arguments.size, arguments.size, device=arguments.device)
    example = images[:2]

    def synchronize() -> None:
        if arguments.device != "cpu":
            genesis.cuda.synchronize()

    def train() -> None:
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        synchronize()

    def grow() -> None:
        growth.grow_width(model, "layer2", channels=640, optimizer=optimizer, example=example)
        synchronize()

    train()
    where = "cpu" if arguments.device == "cpu" else "gpu"
    about = {} if where == "cpu" else {"gpu": genesis.cuda.get_device_name()}
    comparison = Comparison(f"bench_growth_{where}", **about)
    times: dict[str, list[float]] = {"training step": [], "growth step": []}
    for _ in range(arguments.rounds + 1):
        times["training step"].append(milliseconds(train))
        times["growth step"].append(milliseconds(grow))
        growth.rollback(growth.history(model)[-1])
        synchronize()
    case = f"resnet50 {arguments.batch}×3×{arguments.size}²"
    comparison.add(case, {name: values[1:] for name, values in times.items()})
    comparison.finish()


def milliseconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
