"""`genesis bench MODEL`: time a model on this machine, in inference and in training."""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Mapping

import genesis
from genesis import cuda, optim
from genesis.cli.arguments import add_images, images_and_model, positive
from genesis.cli.info import num_cores, processor
from genesis.errors import describe

HELP = "time a model on this machine: inference, inference compiled, and a training step"
TAKES_LESS = "--batch or --size"
_WARM = 3  # calls until a kind of run has compiled, recorded and allocated what it needs

Run = Callable[[], object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a name that models.create() knows: unet, resnet50, …")
    add_images(parser, device="cpu")
    parser.add_argument("--only", choices=list(_KINDS), nargs="+", default=list(_KINDS), help="kinds of run to time")
    parser.add_argument("--seconds", type=positive(float), default=20.0, help="approximate duration of the measurement")
    parser.add_argument("--rounds", type=positive(int), default=50, help="most calls of each kind")


def run(arguments: argparse.Namespace) -> int:
    with genesis.float32_precision(arguments.precision):
        images, model = images_and_model(arguments)
        runs = _runs(model, images, arguments.only)
        print(f"{arguments.model} on {tuple(images.shape)} {images.dtype.name}, {_device(images)}")
        times = _interleaved(runs, images, arguments.seconds, arguments.rounds)
    print(f"{'':<22} {'median':>10} {'fastest':>10} {'images/s':>10}   {'calls':>5}")
    for kind, seconds in times.items():
        median = statistics.median(seconds)
        rate = arguments.batch / median
        print(f"{kind:<22} {_time(median):>10} {_time(min(seconds)):>10} {rate:>10,.1f}   {len(seconds):>5}")
    return 0


def _inference(model: Callable[[genesis.Tensor], object], images: genesis.Tensor) -> Run:
    def infer() -> object:
        with genesis.no_grad():
            return model(images)

    return infer


def _compiled(model: genesis.nn.Module, images: genesis.Tensor) -> Run:
    return _inference(genesis.compile(copy.deepcopy(model).eval()), images)


def _training(model: genesis.nn.Module, images: genesis.Tensor) -> Run:
    model = copy.deepcopy(model).train()
    optimizer = optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        _loss(model(images)).backward()
        optimizer.step()

    return step


_KINDS: dict[str, Callable[[genesis.nn.Module, genesis.Tensor], Run]] = {
    "inference": lambda model, images: _inference(copy.deepcopy(model).eval(), images),
    "compiled": _compiled,
    "training": _training,
}
_NAMES = {"inference": "inference", "compiled": "inference, compiled", "training": "training step"}


def _runs(model: genesis.nn.Module, images: genesis.Tensor, kinds: list[str]) -> dict[str, Run]:
    if images.device.type == "cuda":  # genesis.compile is for the CPU: its row would say the same as the first
        kinds = [kind for kind in kinds if kind != "compiled"]
        if not kinds:
            raise ValueError(describe("bench", "only", "a kind that exists on CUDA", "compiled"))
    return {_NAMES[kind]: _KINDS[kind](model, images) for kind in kinds}


def _loss(output: genesis.Tensor | Mapping[str, genesis.Tensor]) -> genesis.Tensor:
    """Something that depends on every output: a segmentation model has several."""
    first, *others = output.values() if isinstance(output, Mapping) else [output]
    return sum([other.square().mean() for other in others], start=first.square().mean())


def _interleaved(runs: Mapping[str, Run], images: genesis.Tensor, budget: float, rounds: int) -> dict[str, list[float]]:
    """Seconds of each call of each kind; the kinds take turns, so that a busy moment hits them all."""
    for call in runs.values():
        for _ in range(_WARM):
            call()
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + budget
    for _ in range(rounds):
        for name, call in runs.items():
            _wait(images)
            start = time.perf_counter()
            call()
            _wait(images)
            times[name].append(time.perf_counter() - start)
        if time.perf_counter() >= end:
            break
    return times


def _wait(images: genesis.Tensor) -> None:
    if images.device.type == "cuda":
        cuda.synchronize(images.device)


def _device(images: genesis.Tensor) -> str:
    if images.device.type == "cuda":
        return cuda.get_device_name(images.device)
    return f"{processor()}, {num_cores()} cores"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
