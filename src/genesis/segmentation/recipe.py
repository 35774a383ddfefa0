"""What the weights of a segmentation network don't say: its name and arguments, its classes, how pictures go in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from genesis import growth, models, nn
from genesis.errors import CheckpointError, describe
from genesis.nn import state as module_state

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TORCHVISION_RESIZE = 520  # the shorter side at which torchvision's segmentation weights were measured
State = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How to build a network and how to feed it.

    Args:
        model, arguments: for genesis.models.create().
        classes: a name per class; a network with one logit has two, "background" and what it finds.
        mean, std: a number per channel, of pictures from 0 to 1; None: each picture's own.
        resize: the shorter side of the pictures that go in; 0: as they are.
    """

    model: str
    arguments: dict[str, Any]
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    resize: int = 0

    @property
    def channels(self) -> int:
        return self.arguments.get("in_channels", 3)

    @property
    def multiple(self) -> int:
        """Of what height and width of the network's input must be multiples."""
        return 2 ** (self.arguments["depth"] - 1) if self.model == "unet" else 1

    def build(self) -> nn.Module:
        """The network with new weights."""
        return models.create(self.model, **self.arguments)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


class Kind(NamedTuple):
    """What is to be known about a model by name: its arguments as its weights show them, and torchvision's resize."""

    arguments: Callable[[State], dict[str, Any]]
    resize: int


def _torchvision_arguments(state: State) -> dict[str, Any]:
    has_aux = any(key.startswith("aux_classifier.") for key in state)
    return {"num_classes": state["classifier.4.weight"].shape[0], "aux_loss": has_aux}


def _unet_arguments(state: State) -> dict[str, Any]:
    first = state["encoder.0.0.0.weight"].shape
    depth = len({key.split(".")[1] for key in state if key.startswith("encoder.")})
    classes = state["head.weight"].shape[0]
    return {"in_channels": first[1], "num_classes": classes, "width": first[0], "depth": depth}


KINDS = {
    "deeplabv3_resnet50": Kind(_torchvision_arguments, TORCHVISION_RESIZE),
    "fcn_resnet50": Kind(_torchvision_arguments, TORCHVISION_RESIZE),
    "unet": Kind(_unet_arguments, 0),
}


def load(path: Path, name: str | None = None, classes: tuple[str, ...] | None = None) -> tuple[nn.Module, Recipe]:
    """A network with the weights of a file, and its recipe.

    Args:
        path: what `genesis train` or `genesis demo` wrote, or a file of torchvision's weights.
        name: the model; not needed for a file of `genesis train` or `genesis demo`, which says it.
        classes: names, instead of those in the file.
    Raises: CheckpointError: the file is no network of this name. ValueError: no or another number of classes.
    """
    content = module_state.read(path)
    state = module_state.weights_in(content, path)
    noted = content.get("recipe")
    if noted is not None:
        recipe = Recipe(**{**noted, "classes": tuple(noted["classes"])})
        if name not in (None, recipe.model):
            raise CheckpointError(f"{path}: expected the weights of {name}, got those of {recipe.model}")
    else:
        recipe = _guess(path, name, state)
    if classes is not None:
        if len(classes) != len(recipe.classes):
            raise ValueError(describe("segment", "classes", f"{len(recipe.classes)} names", f"{len(classes)}"))
        recipe = dataclasses.replace(recipe, classes=classes)
    model = recipe.build()
    if "growth" in content:  # the network grew after it was built
        growth.replay(model, content["growth"])
    model.load_state_dict(state)
    return model, recipe


def class_names(num_logits: int) -> tuple[str, ...]:
    """Names for classes that nobody named."""
    if num_logits <= 2:
        return ("background", "object")
    return ("background", *(f"class {number}" for number in range(1, num_logits)))


def _guess(path: Path, name: str | None, state: State) -> Recipe:
    """The recipe of weights alone: sizes from their shapes, the rest as is usual for the model."""
    if name not in KINDS:
        raise ValueError(describe("segment", "model", f"one of {', '.join(KINDS)}, since {path} names none", name))
    try:
        arguments = KINDS[name].arguments(state)
    except KeyError as error:
        raise CheckpointError(f"{path}: expected the weights of {name}, which have the key {error}") from None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    if arguments.get("in_channels", 3) == 3:
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    return Recipe(name, arguments, class_names(arguments["num_classes"]), mean, std, KINDS[name].resize)
