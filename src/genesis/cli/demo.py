"""`genesis demo`: a U-Net learns to find the coins in a photograph, and shows what it found in a part it never saw."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from genesis.cli.arguments import positive
from genesis.cli.exit_codes import INTERRUPTED
from genesis.demo import photograph, picture
from genesis.demo.photograph import Photograph
from genesis.demo.progress import progress
from genesis.demo.training import Plan, Training
from genesis.errors import describe

HELP = "train a U-Net to find the coins in a photograph (or what your mask marks in yours)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plan = Plan()
    parser.add_argument("--epochs", type=positive(int), default=plan.epochs, help="how often to go round")
    parser.add_argument("--steps", type=positive(int), default=plan.steps, help="batches of crops per epoch")
    parser.add_argument("--seed", type=int, default=plan.seed, help="the same seed gives the same network")
    parser.add_argument("--lr", type=positive(float), default=plan.lr, help="the highest learning rate")
    parser.add_argument("--width", type=positive(int), default=plan.width, help="channels at full resolution")
    grow = "begin at half the width, and grow wider and deeper while training"
    parser.add_argument("--grow", action=argparse.BooleanOptionalAction, default=plan.grow, help=grow)
    parser.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, cuda:1")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for checkpoint and picture")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in that folder")
    parser.add_argument("--image", type=Path, help="a picture of yours, with --mask")
    parser.add_argument("--mask", type=Path, help="a picture of the same size, bright where the objects are")


def run(arguments: argparse.Namespace) -> int:
    chosen = _photograph(arguments.image, arguments.mask)
    plan = Plan(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Plan)})
    training = Training(chosen, plan, arguments.device)
    checkpoint = arguments.out / "checkpoint.safetensors"
    if arguments.resume:
        training.resume(checkpoint)
    try:
        _train(training, checkpoint)
    except KeyboardInterrupt:
        done = len(training.history)
        print(f"interrupted; {checkpoint} has the first {done} of {plan.epochs} epochs, --resume goes on from there")
        return INTERRUPTED
    result = arguments.out / f"{chosen.name}.png"
    picture.save(result, chosen, training.predict_both_parts(), training.history, training.events)
    print(f"held-out IoU {training.history[-1].held_out_iou:.3f}")
    print(f"picture: {result}")
    return 0


def _photograph(image: Path | None, mask: Path | None) -> Photograph:
    if image is None and mask is None:
        return photograph.coins()
    if image is None or mask is None:
        given, missing = ("image", "mask") if mask is None else ("mask", "image")
        raise ValueError(describe("demo", missing, f"a file, since --{given} is given", "none"))
    return photograph.from_files(image, mask)


def _train(training: Training, checkpoint: Path) -> None:
    """The epochs that are left. There is a checkpoint from the first moment on."""
    if not training.history:
        training.save(checkpoint)
    with progress(training.plan.epochs, done=len(training.history)) as shown:
        while len(training.history) < training.plan.epochs:
            training.run_epoch(shown)
            training.save(checkpoint)
