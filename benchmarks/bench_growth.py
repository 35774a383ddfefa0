"""A growth step on a ResNet-50 beside a training step: the second stage becomes a quarter wider, with its optimizer.

    python benchmarks/bench_growth.py [--device cuda] [--batch 8 ...] [--size 128] [--rounds 7]

The growth step is the whole of it: the channel map from a pass over two samples, the copy that rollback would need, the
new parameters, statistics and moments, and the pass that checks that the outputs stayed. Both are timed in turns, the
first of each is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from harness import Comparison

import genesis
from genesis import growth, models, nn, optim


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

    train()
    times: dict[str, list[float]] = {"training step": [], "growth step": []}
    for _ in range(rounds + 1):
        times["training step"].append(milliseconds(train))
        times["growth step"].append(milliseconds(grow))
        growth.rollback(growth.history(model)[-1])
        synchronize()
    return {name: values[1:] for name, values in times.items()}


def milliseconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


if __name__ == "__main__":
    main()
