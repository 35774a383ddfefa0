"""How a new training begins: the recipe for a set, and weights to start from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from genesis import nn
from genesis.errors import describe
from genesis.nn import state as module_state
from genesis.segmentation import memory
from genesis.segmentation.examples import LabelledSet, Source
from genesis.segmentation.recipe import IMAGENET_MEAN, IMAGENET_STD, Arguments, Recipe
from genesis.segmentation.training import Plan
from genesis.tensor import Tensor

_MOST_PICTURES = 32  # whose mean and deviation are taken
_DEEPEST = 24  # levels of a U-Net; a picture would need 2²³ pixels in each direction
_LEAST_DEVIATION = 0.01  # of a channel that is the same everywhere, which brightening the crops would make huge


def recipe_for(
    data: LabelledSet, model: str, width: int = 16, depth: int = 3, grow: bool = False, aux_loss: bool = True
) -> Recipe:
    """The recipe of a network for a set.

    Args:
        model: "unet", or one of torchvision's segmentation models, whose pictures are normalized as ImageNet's.
        width, depth: of a U-Net.
        grow: the U-Net will become twice as wide, and begins at half the width.
        aux_loss: whether the others have an auxiliary head.
    """
    num_classes = len(data.classes)
    if model != "unet":
        arguments: Arguments = {"num_classes": num_classes, "aux_loss": aux_loss}
        return Recipe(model, arguments, data.classes, IMAGENET_MEAN, IMAGENET_STD)
    width = (width + 1) // 2 if grow else width
    arguments = {"in_channels": 3, "num_classes": num_classes, "width": width, "depth": depth}
    return Recipe(model, arguments, data.classes, *mean_and_deviation(data.training))


def check_memory(op: str, recipe: Recipe, plan: Plan, device: str) -> None:
    """Refuse what can fit into no memory of this machine, before any of it is allocated.

    The bounds are low: the largest convolutions of a U-Net with AdamW's state, a batch with its first activations.

    Raises: ValueError.
    """
    width, depth = recipe.arguments.get("width", 16), recipe.arguments.get("depth", 1)
    if depth > _DEEPEST:
        raise ValueError(describe(op, "depth", f"at most {_DEEPEST}", depth))
    width *= 2 if plan.grow else 1
    on_cpu = device == "cpu"
    num_copies = 4 if on_cpu else 1  # gradients and two moments are where the network is
    memory.check(op, "width", width, 12 * (width * 2 ** (depth - 1)) ** 2 * 4 * num_copies)
    pixel = 20 + (8 * width if on_cpu else 0)  # three channels, the label, and what the first layer gives
    memory.check(op, "crop", plan.crop, plan.crop**2 * pixel)
    memory.check(op, "batch_size", plan.batch_size, plan.batch_size * plan.crop**2 * pixel)


def mean_and_deviation(source: Source) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, over the first pictures."""
    picked = [source[index].values.reshape(3, -1) for index in range(min(len(source), _MOST_PICTURES))]
    pixels = np.concatenate(picked, axis=1)
    mean, deviation = pixels.mean(axis=1, dtype=np.float64), pixels.std(axis=1, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.maximum(deviation, _LEAST_DEVIATION).tolist())


def load_what_fits(model: nn.Module, path: Path) -> list[str]:
    """Take over those weights of a file that have a name and a shape of the model's: a head may have other classes.

    Returns: the model's keys that were left as they were.
    Raises: CheckpointError: nothing fits.
    """
    own = model.state_dict()
    given = module_state.weights_in(module_state.read(path), path)
    fitting = {
        key: value
        for key, value in given.items()
        if key in own and isinstance(value, Tensor) and own[key].shape == value.shape
    }
    model.load_state_dict(fitting, strict=not fitting)  # which says what is wrong, if nothing fits
    return [key for key in own if key not in fitting]
