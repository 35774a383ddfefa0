"""`genesis tune MODEL`: find the fastest kernels for a model's convolutions, for all later processes."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import TextIO

import genesis
from genesis import cuda
from genesis.cli.arguments import add_images, images_and_model, positive
from genesis.cuda import plans
from genesis.errors import DeviceError, describe

HELP = "find the fastest kernels for a model's convolutions, and store the result"
TAKES_LESS = "--batch or --size"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a name that models.create() knows: unet, resnet50, …")
    add_images(parser, device="cuda")
    parser.add_argument("--train", action="store_true", help="tune the gradients too")
    parser.add_argument("--budget", type=positive(float), default=60.0, help="seconds, after the model's first run")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write all plans of the device to a file")
    parser.add_argument("--import", dest="source", type=Path, metavar="FILE", help="import plans from such a file")


def run(arguments: argparse.Namespace) -> int:
    if arguments.device != "cpu":
        try:
            cuda.get_device_name(0)
        except DeviceError as error:
            reason = str(error).removeprefix("cuda: ")
            raise DeviceError(f"tune: there is no CUDA device; --device cpu tunes the processor: {reason}") from error
    if arguments.model is None and arguments.source is None and arguments.export is None:
        raise ValueError(describe("tune", "model", "a model's name, --import or --export", "nothing"))
    if arguments.source is not None:
        print(f"{plans.import_plans(arguments.source, arguments.device)} plans from {arguments.source}")
    if arguments.model is not None:
        print(_tune(arguments))
    if arguments.export is not None:
        print(f"{plans.export_plans(arguments.export, arguments.device)} plans to {arguments.export}")
    return 0


def _tune(arguments: argparse.Namespace) -> plans.TuningReport:
    images, model = images_and_model(arguments)
    model.train(arguments.train)
    progress = Progress(sys.stderr)
    with genesis.float32_precision(arguments.precision), genesis.set_grad_enabled(arguments.train):
        report = plans.tune(model, images, budget=arguments.budget, progress=progress)
    progress.end()
    return report


class Progress:
    """Overwrites one line in a terminal; prints a line every few seconds elsewhere."""

    _EVERY = 2.0  # seconds

    def __init__(self, file: TextIO) -> None:
        self._file, self._overwrites = file, file.isatty()
        self._said = -math.inf  # when
        self._length = 0  # of what stands on the line

    def __call__(self, problem: str, done: int, total: int) -> None:
        line, now = f"{problem}: {done} of {total}", time.monotonic()
        if self._overwrites:
            rest = " " * (self._length - len(line))  # of a longer one that was there
            print(f"\r{line}{rest}", end="", file=self._file, flush=True)
            self._length = len(line)
        elif now - self._said >= self._EVERY:
            print(line, file=self._file, flush=True)
            self._said = now

    def end(self) -> None:
        """Start a new line."""
        if self._length:
            print(file=self._file, flush=True)
            self._length = 0
