"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable
from pathlib import Path

import genesis
from genesis.errors import describe
from genesis.segmentation.pictures import MOST_MEGAPIXELS
from genesis.segmentation.training import Plan, Training

_DTYPES = {"float32": genesis.float32, "float16": genesis.float16, "bfloat16": genesis.bfloat16}


WITHOUT_MATPLOTLIB = "the package 'matplotlib' is not installed"
_LARGEST = {int: 2**31 - 1, float: sys.float_info.max}  # larger sizes overflow in libraries below, and mean nothing


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """A type for argparse: a number of this kind above 0."""
    return _number(kind, "a number above 0", lambda value: value > 0)


def from_zero(kind: type[int] | type[float]) -> Callable[[str], float]:
    """A type for argparse: a number of this kind, at least 0."""
    return _number(kind, "a number of at least 0", lambda value: value >= 0)


def share() -> Callable[[str], float]:
    """A type for argparse: a part of a whole."""
    return _number(float, "a number between 0 and 1", lambda value: 0 < value < 1)


def _number(kind: type[int] | type[float], expected: str, is_right: Callable[[float], bool]) -> Callable[[str], float]:
    def parse(text: str) -> int | float:
        value = kind(text)
        if not is_right(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text}")
        if value > _LARGEST[kind]:
            raise argparse.ArgumentTypeError(f"expected at most {_LARGEST[kind]}, got {text}")
        return value

    parse.__name__ = kind.__name__  # what argparse calls it in its own messages
    return parse


def add_training(parser: argparse.ArgumentParser, plan: Plan, out: str) -> None:
    """Add the arguments that `genesis demo` and `genesis train` share.

    Args:
        plan: the defaults.
        out: the default of the folder.
    """
    parser.add_argument("--epochs", type=positive(int), default=plan.epochs, help="number of epochs")
    steps = "batches of crops per epoch; 0: enough to use each picture once"
    parser.add_argument("--steps", type=from_zero(int), default=plan.steps, help=steps)
    parser.add_argument("--lr", type=positive(float), default=plan.lr, help="peak learning rate")
    parser.add_argument("--width", type=positive(int), default=16, help="channels of a U-Net at full resolution")
    grow = "start a U-Net at half the width, and grow it wider and deeper during training"
    parser.add_argument("--grow", action=argparse.BooleanOptionalAction, default=plan.grow, help=grow)
    parser.add_argument("--seed", type=from_zero(int), default=plan.seed, help="a seed always gives the same network")
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, cuda:1")
    add_max_megapixels(parser)
    parser.add_argument("--out", type=Path, default=Path(out), help="output folder")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--resume", action="store_true", help="continue from the checkpoint in that folder")
    begin.add_argument("--overwrite", action="store_true", help="start over, replacing what is in that folder")


def add_max_megapixels(parser: argparse.ArgumentParser) -> None:
    """Add the argument of all commands that read pictures."""
    kind = positive(float)
    parser.add_argument("--max-megapixels", type=kind, default=MOST_MEGAPIXELS, help="refuse larger pictures")


def plan_of(arguments: argparse.Namespace, defaults: Plan) -> Plan:
    """The plan with the values from the command line."""
    given = vars(arguments)
    names = [field.name for field in dataclasses.fields(Plan) if field.name in given]
    return dataclasses.replace(defaults, **{name: given[name] for name in names})


def nothing_left(training: Training) -> str:
    """The message for resuming a finished training."""
    epochs = len(training.history)
    return f"nothing left to do: all {epochs} epochs are done; continue with a larger --epochs"


def add_images(parser: argparse.ArgumentParser, device: str) -> None:
    """Add the arguments of commands that run a model on random images.

    Args:
        device: the default.
    """
    parser.add_argument("--batch", type=positive(int), default=1, help="images per batch")
    parser.add_argument("--size", type=positive(int), nargs="+", default=[224], help="height and width of the images")
    parser.add_argument("--channels", type=positive(int), help="input channels; default: the model's")
    parser.add_argument("--dtype", choices=list(_DTYPES), default="float32", help="dtype of model and images")
    parser.add_argument("--precision", choices=genesis.precision.PRECISIONS, help="float32 precision")
    parser.add_argument("--device", default=device, help="where to compute: cpu, cuda, cuda:1")


def images_and_model(arguments: argparse.Namespace) -> tuple[genesis.Tensor, genesis.nn.Module]:
    """The images and the model that add_images() and `model`, a name for models.create(), ask for."""
    from genesis import models  # takes its time

    command = arguments.command
    if len(arguments.size) > 2:
        shown = " ".join(map(str, arguments.size))
        raise ValueError(describe(command, "size", "height and width, or one number for both", shown))
    height, width = (arguments.size * 2)[:2]
    device, dtype = arguments.device, _DTYPES[arguments.dtype]
    model = models.create(arguments.model)
    channels = arguments.channels or next((p.shape[1] for p in model.parameters() if p.ndim == 4), 3)
    shape = (arguments.batch, channels, height, width)
    if math.prod(shape) * dtype.itemsize >= 2**63:
        raise ValueError(describe(command, "batch", "images that fit into memory", "x".join(map(str, shape))))
    return genesis.randn(shape, device=device, dtype=dtype), model.to(device, dtype)


def read_names(command: str, path: Path) -> tuple[str, ...]:
    """The names of classes in a text file: its lines that are not empty."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(describe(command, "classes", "a text file in UTF-8", path)) from None
    return tuple(line.strip() for line in lines if line.strip())
