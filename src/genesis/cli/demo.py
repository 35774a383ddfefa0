"""`genesis demo`: train a U-Net to find the coins in a photograph, and show its prediction on a held-out part."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from genesis import checkpoint
from genesis.cli.arguments import add_training, nothing_left, plan_of
from genesis.cli.exit_codes import INTERRUPTED
from genesis.errors import CheckpointError, describe
from genesis.segmentation import curves, photographs, start
from genesis.segmentation.examples import LabelledSet
from genesis.segmentation.progress import progress
from genesis.segmentation.run_folder import claim
from genesis.segmentation.training import Plan, Training

HELP = "train a U-Net to find the coins in a photograph (or what your mask marks in yours)"
TAKES_LESS = "--width"
PLAN = Plan(epochs=12, steps=20, batch_size=8, crop=96, lr=0.01, turns=True, grow=True)
DEPTH = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training(parser, PLAN, "runs/demo")
    parser.add_argument("--image", type=Path, help="your own picture, with --mask")
    parser.add_argument("--mask", type=Path, help="a picture of the same size, bright where the objects are")


def run(arguments: argparse.Namespace) -> int:
    if not curves.can_draw():  # the picture is what the demo is for
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    data, plan = _photograph(arguments.image, arguments.mask, arguments.max_megapixels), plan_of(arguments, PLAN)
    recipe = start.recipe_for(data, "unet", arguments.width, DEPTH, plan.grow)
    start.check_memory("demo", recipe, plan, arguments.device)
    training = Training(data, recipe, plan, arguments.device)
    file, result = arguments.out / "checkpoint.safetensors", arguments.out / f"{data.name}.png"
    for given in (arguments.image, arguments.mask):
        if given is not None and result.exists() and result.samefile(given):
            raise ValueError(describe("demo", "out", f"a folder other than that of {given}", arguments.out))

    def repeats() -> bool:
        try:
            return training.repeats(checkpoint.load(file))
        except CheckpointError:
            return False

    lock = claim("demo", [file, result], arguments.resume, arguments.overwrite, repeats)
    try:
        if arguments.resume:
            training.load_state(checkpoint.load(file), str(file))
        if training.is_done:
            print(nothing_left(training))
        return _run(training, file, result)
    finally:
        lock.release()


def _run(training: Training, file: Path, result: Path) -> int:
    try:
        _train(training, file)
    except KeyboardInterrupt:
        done, epochs = len(training.history), training.plan.epochs
        print(f"interrupted; {file} has the first {done} of {epochs} epochs, continue with --resume")
        return INTERRUPTED
    # Each part by itself, so that the network doesn't see over the boundary.
    data = training.data
    found = np.concatenate([training.predict(part[0].values) for part in (data.training, data.held_out)], axis=1)
    curves.save_result(result, data, found, training.history, training.events)
    print(f"held out, after the last epoch: {training.history[-1].held_out}")
    print(f"picture: {result}")
    return 0


def _photograph(image: Path | None, mask: Path | None, most_megapixels: float) -> LabelledSet:
    if image is None and mask is None:
        return photographs.coins()
    if image is None or mask is None:
        given, missing = ("image", "mask") if mask is None else ("mask", "image")
        raise ValueError(describe("demo", missing, f"a file, since --{given} is given", "none"))
    return photographs.from_files(image, mask, most_megapixels)


def _train(training: Training, file: Path) -> None:
    """Run the remaining epochs. There is a checkpoint from the start."""
    if not training.history:
        checkpoint.save(training.state(), file)
    with progress(training.plan.epochs, done=len(training.history)) as shown:
        while not training.is_done:
            training.run_epoch(shown)
            checkpoint.save(training.state(), file)
