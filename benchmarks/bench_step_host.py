"""What a step of an unmodified PyTorch loop costs the host around genesis.torch.compile, by parts: a GPU waits for it.

    python benchmarks/bench_step_host.py                    on a GPU, with images too small to matter
    python benchmarks/bench_step_host.py --free             on the device of free_cuda, where everything is free

Networks are those of zoo_networks.py, and the loss is that of bench_zoo.py. Sides take turns; the figures are medians
in microseconds. "ordinary" is genesis.torch.compile with all of PyTorch's runtime around each replay, as before there
were short steps (genesis.torch.replaying). "optimizer" and "zero_grad" are PyTorch's own.
"guards" is "short" with PyTorch's guards of each parameter, as before genesis.torch.parameter_guards; from PyTorch 2.13
on there is no such side. "first" is the whole of a step that comes after another side's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from zoo_networks import NETWORKS, Network

_KNOWN = {network.name: network for network in NETWORKS}
_SIDES = ("ordinary", "short", "guards")


class Side:
    """A model and its loop."""

    def __init__(self, network: Network, name: str, optimizer: str) -> None:
        import genesis.torch
        from genesis.settings import override
        from genesis.torch import dynamo

        model = network.build().cuda().to(memory_format=torch.channels_last)
        self._optimizer: Any = (
            torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
            if optimizer == "sgd"
            else torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        )
        self.num_parameters = len(list(model.parameters()))
        self._model = genesis.torch.compile(model)
        self._images = torch.zeros(4, 3, 96, 96, device="cuda").to(memory_format=torch.channels_last)
        self._labels = torch.zeros(4, dtype=torch.int64, device="cuda")
        self.parts: dict[str, list[float]] = {}
        guard_kinds = (lambda inputs: None) if name == "guards" else dynamo.guard_kinds
        with override(short_steps=name != "ordinary"), mock.patch.object(dynamo, "guard_kinds", guard_kinds):
            for _ in range(8):  # it is compiled
                self.step()
        self.num_chains = len(genesis.torch.report(self._model).fused)
        self.parts.clear()

    def step(self) -> None:
        clock = [time.perf_counter()]
        self._optimizer.zero_grad(set_to_none=True)
        clock.append(time.perf_counter())
        with torch.autocast("cuda", torch.bfloat16):
            outputs = [each for each in tree_leaves(self._model(self._images)) if isinstance(each, Tensor)]
            clock.append(time.perf_counter())
            parts = [F.cross_entropy(x, self._labels) if x.ndim == 2 else x.float().square().mean() for x in outputs]
        loss = torch.stack(parts).sum()
        clock.append(time.perf_counter())
        loss.backward()
        clock.append(time.perf_counter())
        self._optimizer.step()
        clock.append(time.perf_counter())
        names = ("zero_grad", "forward", "loss", "backward", "optimizer")
        for name, start, end in zip(names, clock, clock[1:], strict=False):
            self.parts.setdefault(name, []).append((end - start) * 1e6)
        self.parts.setdefault("step", []).append((clock[-1] - clock[0]) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", choices=_KNOWN, metavar="NAME", help="of zoo_networks.py")
    parser.add_argument("--sides", nargs="+", choices=_SIDES, default=["ordinary", "short"])
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--steps", type=int, default=20, help="in a row")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--free", action="store_true", help="on a device where everything is free; see free_cuda")
    arguments = parser.parse_args()
    if arguments.free:
        sys.path.insert(0, str(Path(__file__).parent))
        import free_cuda

        free_cuda.install()
    from genesis.torch import native_steps

    native_steps.wait()
    for network in arguments.networks or ("resnet101", "resnet50", "mobilenet_v2"):
        sides = {name: Side(_KNOWN[network], name, arguments.optimizer) for name in arguments.sides}
        for _ in range(arguments.rounds):
            for side in sides.values():
                torch.cuda.synchronize()
                for _ in range(arguments.steps):
                    side.step()
                side.parts.setdefault("first", []).append(side.parts["step"][-arguments.steps])
        first = next(iter(sides.values()))
        print(f"{network}, {arguments.optimizer}: {first.num_parameters} parameters, {first.num_chains} chains; µs")
        for name, side in sides.items():
            parts = "  ".join(f"{part} {statistics.median(t):.0f}" for part, t in side.parts.items())
            print(f"  {name:<9}", parts, flush=True)
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
