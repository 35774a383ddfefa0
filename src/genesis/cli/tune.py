"""`genesis tune MODEL`: measure which kernels compute a model's convolutions fastest, for all later processes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import genesis
from genesis import cuda
from genesis.cli.arguments import add_images, images_and_model, positive
from genesis.cuda import plans
from genesis.errors import DeviceError, describe

HELP = "measure which kernels compute a model's convolutions fastest, and remember them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", help="a name that models.create() knows: unet, resnet50, …")
    add_images(parser, device="cuda")
    parser.add_argument("--train", action="store_true", help="the gradients too")
    parser.add_argument("--budget", type=positive(float), default=60.0, help="seconds that it may take")
    parser.add_argument("--export", type=Path, metavar="FILE", help="write all plans of the device to a file")
    parser.add_argument("--import", dest="source", type=Path, metavar="FILE", help="take over plans from such a file")


def run(arguments: argparse.Namespace) -> int:
    if not cuda.is_available():
        raise DeviceError("tune: there is no CUDA device, and nothing to tune elsewhere")
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
    with genesis.float32_precision(arguments.precision), genesis.set_grad_enabled(arguments.train):
        return plans.tune(model, images, budget=arguments.budget, progress=_show)


def _show(problem: str, done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{problem}: {done} of {total}", end=end, file=sys.stderr, flush=True)
