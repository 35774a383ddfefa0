"""Genesis' own training loops on CUDA, on the host's clock: eager, genesis.compile(step), and the device alone.

    python benchmarks/bench_compile.py                      ResNet-50, batch 64, bfloat16 autocast; an MLP; on a GPU
    python benchmarks/bench_compile.py --cases mlp --steps 500
    GENESIS_CUDA=simulated python benchmarks/bench_compile.py --cases tiny --steps 2 --rounds 1       to try this script

Each side's time is that of --steps steps with one synchronization at their end, in turn with the others. "device" is
what a replay takes on the device, "replay, host" what it takes on the host, with guards and copies.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from harness import RESULTS, Comparison

import genesis
import genesis.nn.functional as F
from genesis import nn, optim


class Case(NamedTuple):
    """A network, the shape of a batch, how many classes there are, and the dtype of its autocast."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    num_classes: int
    autocast: genesis.dtype | None


CASES = {
    "resnet50": Case(lambda: genesis.models.create("resnet50"), (64, 3, 224, 224), 1000, genesis.bfloat16),
    "mlp": Case(
        lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)),
        (128, 784), 10, None,
    ),
    "tiny": Case(lambda: nn.Linear(4, 3), (2, 4), 3, None),
}  # fmt: skip


class Loop:
    def __init__(self, case: Case, is_compiled: bool) -> None:
        genesis.manual_seed(0)
        self._model = case.build().to("cuda")
        self._optimizer = optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._autocast = case.autocast
        self._x = genesis.randn(*case.shape, device="cuda")
        self._target = genesis.randint(0, case.num_classes, (case.shape[0],), device="cuda")
        self.step: Any = genesis.compile(self._step) if is_compiled else self._step
        self.loss = 0.0

    def _step(self, x: genesis.Tensor, target: genesis.Tensor) -> genesis.Tensor:
        self._optimizer.zero_grad()
        with genesis.autocast("cuda", dtype=self._autocast, enabled=self._autocast is not None):
            loss = F.cross_entropy(self._model(x), target)
        loss.backward()
        self._optimizer.step()
        return loss

    def milliseconds(self, steps: int) -> float:
        genesis.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step(self._x, self._target)
        genesis.cuda.synchronize()
        milliseconds = (time.perf_counter() - start) / steps * 1e3
        self.loss = loss.item()
        return milliseconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=["resnet50", "mlp"], choices=CASES)
    parser.add_argument("--steps", type=int, default=50, help="in a row, per measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    comparison = Comparison("bench_compile", gpu=genesis.cuda.get_device_name())
    for name in given.cases:
        loops = {side: Loop(CASES[name], side == "compiled") for side in ("eager", "compiled")}
        times: dict[str, list[float]] = {side: [] for side in loops}
        for loop in loops.values():
            loop.milliseconds(10)
        for index in range(given.rounds):
            for side in sorted(loops, reverse=bool(index % 2)):
                times[side].append(loops[side].milliseconds(given.steps))
        comparison.add(f"{name}, {CASES[name].shape}", times)
        losses = {side: loop.loss for side, loop in loops.items()}
        lines = [f"{name}: losses {losses}", *str(loops["compiled"].step.report()).splitlines()]
        print("\n".join(lines), flush=True)
        comparison.notes += [f"\n{line}" for line in lines]
    comparison.finish(given.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
