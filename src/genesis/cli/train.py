"""`genesis train`: train a segmentation network on a folder of pictures and masks."""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path

from genesis.cli.arguments import (
    WITHOUT_MATPLOTLIB,
    add_training,
    from_zero,
    nothing_left,
    plan_of,
    positive,
    read_names,
    share,
)
from genesis.cli.exit_codes import INTERRUPTED
from genesis.segmentation import curves, ranks, sets, start
from genesis.segmentation.recipe import KINDS
from genesis.segmentation.run_folder import RunFolder
from genesis.segmentation.segmenter import PRECISIONS
from genesis.segmentation.training import Plan, Training

HELP = "train a segmentation network on a folder of pictures and masks"
TAKES_LESS = "--crop, --batch-size or --width"
PLAN = Plan()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data",
        help="folder with images/ and masks/ of the same names (a class index per pixel, 255 to ignore it; or 0 and "
        "255), or a photograph from scikit-image: coins, immunohistochemistry",
    )
    parser.add_argument("--model", choices=sorted(KINDS), default="unet", help="which network")
    parser.add_argument("--depth", type=positive(int), default=3, help="levels of resolution of a U-Net")
    parser.add_argument("--weights", type=Path, help="initialize from everything in this file that fits")
    parser.add_argument("--classes", type=Path, help="text file with a name per line")
    parser.add_argument("--held-out", type=share(), default=0.2, help="share of a folder's pictures to evaluate on")
    add_training(parser, PLAN, "runs/train")
    parser.add_argument("--batch-size", type=positive(int), default=PLAN.batch_size, help="crops per batch")
    parser.add_argument("--crop", type=positive(int), default=PLAN.crop, help="side of the crops, in pixels")
    parser.add_argument(
        "--turns", action="store_true", help="rotate crops by quarter turns, if there is no up and down"
    )
    parser.add_argument("--weight-decay", type=from_zero(float), default=PLAN.weight_decay, help="for AdamW")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), default=PLAN.precision, help="of convolutions")
    parser.add_argument("--workers", type=from_zero(int), default=0, help="processes that prepare batches")
    parser.add_argument(
        "--save-every", type=from_zero(int), default=0, metavar="STEPS", help="save checkpoints within an epoch too"
    )
    parser.add_argument(
        "--sync-batch-norm", action=argparse.BooleanOptionalAction, default=True,
        help="under torchrun: normalize over the crops of all processes",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    with ranks.joined(arguments.device) as device:
        arguments.device = device
        if not ranks.is_first():
            with contextlib.redirect_stdout(io.StringIO()):  # it would say the same
                return _train(arguments)
        return _train(arguments)


def _train(arguments: argparse.Namespace) -> int:
    classes = None if arguments.classes is None else read_names("train", arguments.classes)
    data = sets.open_set(arguments.data, classes, arguments.held_out, arguments.seed, arguments.max_megapixels)
    plan, folder = plan_of(arguments, PLAN), RunFolder(arguments.out)
    recipe = start.recipe_for(data, arguments.model, arguments.width, arguments.depth, plan.grow)
    start.check_memory("train", recipe, plan, arguments.device)
    training = Training(data, recipe, plan, arguments.device, arguments.workers, arguments.sync_batch_norm)
    resume = arguments.resume or (ranks.was_restarted() and folder.checkpoint.exists())
    if arguments.weights is not None and not resume:
        left = start.load_what_fits(training.model, arguments.weights)
        print(f"initialized from {arguments.weights}" + (f", except {', '.join(left)}" if left else ""))
    folder.begin(training, resume, arguments.overwrite and not resume)
    if training.is_done:
        print(nothing_left(training))
    elif not curves.can_draw():
        print(f"no {folder.curves.name}: {WITHOUT_MATPLOTLIB}")
    try:
        folder.run(training, arguments.save_every)
    except KeyboardInterrupt as error:
        print(f"interrupted; --resume continues from {folder.checkpoint}")
        ranks.leave(error)
        return INTERRUPTED
    finally:
        folder.close()
    best = training.history[training.best - 1]
    said = f"{best.held_out}, Dice {best.dice:.3f}, accuracy {best.accuracy:.3f}"
    print(f"best epoch {training.best} of {len(training.history)}, on held-out data: {said}")
    print(f"its network: {folder.best}" + (f"; curves: {folder.curves}" if curves.can_draw() else ""))
    return 0
