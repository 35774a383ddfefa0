"""The training loops that bench_ddp.py compares: PyTorch and Genesis, eager and compiled, on one GPU and on several.

ResNet-50 or U-Net(32, 4) on random images, bfloat16 autocast, channels_last, SGD with momentum; gradients travel in
float32, in buckets of 25 MiB, on both sides. "torch-genesis" is PyTorch's loop around `genesis.torch.compile(model)`,
"torch-genesis-buckets" with Dynamo's graphs ended where buckets of gradients end, "torch-genesis-own-buffers" with
running statistics of each rank's own. "compiled" is Genesis with the whole step in `genesis.compile`, "graph" with it
in a CUDA graph captured by hand, collectives included in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from cpu_networks import ResNet50
from torch_networks import UNet

import genesis
import genesis.nn.functional as F
import genesis.torch
from genesis import distributed as dist
from genesis import nn, optim
from genesis.torch import native_steps


class Network(NamedTuple):
    """A network of both sides, the shape of an image, and of its labels."""

    mine: Callable[[], nn.Module]
    theirs: Callable[[], torch.nn.Module]
    image: tuple[int, ...]
    num_classes: int
    labels: tuple[int, ...] = ()


class Place(NamedTuple):
    """Where a loop runs: "cuda" or "cpu", and this rank's device of PyTorch's; is_parallel: in all processes."""

    device: str
    of_torch: torch.device
    is_parallel: bool


def _tiny(library: Any) -> Any:
    return library.Sequential(library.Conv2d(3, 4, 3), library.ReLU(), library.Flatten(), library.Linear(4 * 36, 10))


def _unet(library: Callable[..., Any]) -> Any:
    return library(in_channels=3, num_classes=21, width=32, depth=4)


NETWORKS = {
    "resnet50": Network(lambda: genesis.models.create("resnet50"), ResNet50, (3, 224, 224), 1000),
    "unet": Network(lambda: _unet(genesis.models.unet), lambda: _unet(UNet), (3, 256, 256), 21, (256, 256)),
    "tiny": Network(lambda: _tiny(nn), lambda: _tiny(torch.nn), (3, 8, 8), 10),
}
SIDES = (
    "torch", "torch-compile", "torch-genesis", "torch-genesis-buckets", "torch-genesis-own-buffers",
    "eager", "compiled", "graph",
)  # fmt: skip
_TAKE_OVER = 5  # steps
_WARM = 6  # steps: genesis.compile captures in the fourth, genesis.torch.compile replays from the third on


class Loop:
    """A training loop of one side."""

    def __init__(self, network: Network, batch: int, place: Place) -> None:
        self.place, self.batch, self.network = place, batch, network

    def step(self) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        if self.place.device == "cuda":
            torch.cuda.synchronize()

    def milliseconds(self, steps: int) -> float:
        """A step's, of so many with one synchronization at their end, after some that take over from another loop."""
        for _ in range(_TAKE_OVER):
            self.step()
        self.wait()
        if self.place.is_parallel:
            dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.wait()
        return (time.perf_counter() - start) / steps * 1e3


class Theirs(Loop):
    """PyTorch's, as `side` says."""

    def __init__(self, network: Network, batch: int, place: Place, side: str) -> None:
        super().__init__(network, batch, place)
        model: Any = network.theirs().to(place.of_torch).to(memory_format=torch.channels_last)
        if side.startswith("torch-genesis"):
            model = genesis.torch.compile(model)
        if place.is_parallel:
            devices = [place.of_torch] if place.device == "cuda" else None
            options: dict[str, Any] = {"broadcast_buffers": False} if side.endswith("own-buffers") else {}
            model = torch.nn.parallel.DistributedDataParallel(model, devices, gradient_as_bucket_view=True, **options)
        fused = True if place.device == "cuda" else None
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=fused)
        self.model: Any = torch.compile(model) if side == "torch-compile" else model
        images = torch.randn((batch, *network.image), device=place.of_torch)
        self.images = images.to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, network.num_classes, (batch, *network.labels), device=place.of_torch)
        buckets = "ddp_optimizer" if side == "torch-genesis-buckets" else True
        with torch._dynamo.config.patch(optimize_ddp=buckets):
            for _ in range(_WARM):
                self.step()
        if side.startswith("torch-genesis") and place.device == "cuda":
            native_steps.wait()  # for what is compiled in the background
        self.wait()

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.place.device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()


class Mine(Loop):
    """Genesis', as `side` says."""

    def __init__(self, network: Network, batch: int, place: Place, side: str) -> None:
        super().__init__(network, batch, place)
        genesis.manual_seed(0)
        model = network.mine().to(place.device)
        self.images = genesis.randn(batch, *network.image, device=place.device)
        self.labels = genesis.randint(0, network.num_classes, (batch, *network.labels), device=place.device)
        self.model: nn.Module = nn.parallel.DistributedDataParallel(model) if place.is_parallel else model
        self.optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        self._run: Callable[[], object] = genesis.compile(self._eager_step) if side == "compiled" else self._eager_step
        for _ in range(_WARM):
            self._run()
        if side == "graph" and place.device == "cuda":
            self.wait()
            graph = genesis.cuda.Graph()
            with genesis.cuda.graph(graph):
                self._eager_step()
            self._run = graph.replay
            for _ in range(_WARM):
                self._run()
        self.wait()

    def step(self) -> None:
        self._run()

    def wait(self) -> None:
        if self.place.device == "cuda":
            genesis.cuda.synchronize()

    def _eager_step(self) -> None:
        self.optimizer.zero_grad()
        with genesis.autocast(self.place.device, dtype=genesis.bfloat16):
            loss = F.cross_entropy(self.model(self.images), self.labels)
        loss.backward()
        self.optimizer.step()


def made(side: str, network: str, batch: int, place: Place) -> Loop:
    """A side's loop, warm."""
    if side.startswith("torch"):
        return Theirs(NETWORKS[network], batch, place, side)
    return Mine(NETWORKS[network], batch, place, side)
