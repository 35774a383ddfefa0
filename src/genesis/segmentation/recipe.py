"""The recipe beside a segmentation network's weights: its name and arguments, its classes, how pictures go in."""

from __future__ import annotations

import dataclasses
import functools
import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from genesis import growth, models, nn
from genesis.errors import CheckpointError, GrowthError, describe
from genesis.growth.log import is_recorded_input
from genesis.growth.room import Room, shapes_in
from genesis.nn import state as module_state
from genesis.tensor import Tensor

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TORCHVISION_RESIZE = 520  # the shorter side at which torchvision's segmentation weights were measured
MAX_CHANNELS, MAX_DEPTH, MAX_RESIZE = 2**20, 16, 2**14  # of what a file may say; what it may hold is the lower limit
State = Mapping[str, Tensor]
Log = Mapping[str, object]  # of growth, or whatever a file says in its place
Arguments = dict[str, Any]  # of a model's constructor


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
    arguments: Arguments
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    resize: int = 0

    @property
    def channels(self) -> int:
        return int(self.arguments.get("in_channels", 3))

    @property
    def multiple(self) -> int:
        """The number of which height and width of the network's input must be multiples."""
        if self.model == "unet":
            return int(2 ** (self.arguments["depth"] - 1))
        return int(self.arguments.get("multiple", 1))  # which an ONNX file says

    def build(self) -> nn.Module:
        """The network with new weights."""
        return models.create(self.model, **self.arguments)

    def as_dict(self) -> dict[str, object]:
        """Plain values, for a checkpoint."""
        return dataclasses.asdict(self)


class Kind(NamedTuple):
    """Facts about a model, by its name.

    Args:
        types: of its arguments, of which a file gives all and no other: a path among them would be opened.
        arguments: as its weights show them.
        least: how many numbers it learns at least with these arguments, told without building it.
        resize: torchvision's.
    """

    types: dict[str, type]
    arguments: Callable[[State], Arguments]
    least: Callable[[Arguments], int]
    resize: int


def _torchvision_arguments(state: State) -> Arguments:
    has_aux = any(key.startswith("aux_classifier.") for key in state)
    return {"num_classes": state["classifier.4.weight"].shape[0], "aux_loss": has_aux}


def _unet_arguments(state: State) -> Arguments:
    first = state["encoder.0.0.0.weight"].shape
    depth = len({key.split(".")[1] for key in state if key.startswith("encoder.")})
    classes = state["head.weight"].shape[0]
    return {"in_channels": first[1], "num_classes": classes, "width": first[0], "depth": depth}


def _least_of_torchvision(arguments: Arguments) -> int:
    """The last layer alone: all before it has one size."""
    return 256 * arguments["num_classes"]


def _least_of_unet(arguments: Arguments) -> int:
    """The weights of the convolutions."""
    widths = [arguments["width"] * 2**level for level in range(arguments["depth"])]
    down = sum(9 * after * (before + after) for before, after in pairwise([arguments["in_channels"], *widths]))
    up = sum(4 * coarse * fine + 27 * fine * fine for fine, coarse in pairwise(widths))
    return down + up + widths[0] * arguments["num_classes"]


_OF_TORCHVISION = Kind(
    {"num_classes": int, "aux_loss": bool}, _torchvision_arguments, _least_of_torchvision, TORCHVISION_RESIZE
)
KINDS = {
    "deeplabv3_resnet50": _OF_TORCHVISION,
    "fcn_resnet50": _OF_TORCHVISION,
    "unet": Kind(
        {"in_channels": int, "num_classes": int, "width": int, "depth": int}, _unet_arguments, _least_of_unet, 0
    ),
}


def load(path: Path, name: str | None = None, classes: tuple[str, ...] | None = None) -> tuple[nn.Module, Recipe]:
    """A network with the weights of a file, and its recipe.

    Args:
        path: what `genesis train` or `genesis demo` wrote, or a file of torchvision's weights.
        name: the model; not needed for a file of `genesis train` or `genesis demo`, which says it.
        classes: names, instead of those in the file.
    Raises: CheckpointError: the file is no network of this name, or says of it what does not fit its weights.
        ValueError: no or another number of classes.
    """
    content = module_state.read(path)
    state = module_state.weights_in(content, path)
    entries = content if isinstance(content, Mapping) else {}
    recipe = _noted(path, entries["recipe"]) if "recipe" in entries else _guess(path, name, state)
    if name not in (None, recipe.model):
        raise CheckpointError(f"{path}: expected the weights of {name}, got those of {recipe.model}")
    if classes is not None:
        if len(classes) != len(recipe.classes):
            raise ValueError(describe("segment", "classes", f"{len(recipe.classes)} names", f"{len(classes)}"))
        recipe = dataclasses.replace(recipe, classes=classes)
    log = entries.get("growth")
    shapes, least = shapes_in(state), KINDS[recipe.model].least(recipe.arguments)
    try:
        room = _room_of(shapes) if log is None else int(Room.of(log, shapes).elements)
        if least > room:  # it is the file that says so: nothing is built that its weights could not fill
            raise CheckpointError(f"its recipe needs {least:,} numbers, and its weights are {room:,}")
        model = recipe.build()
        if log is not None:  # the network grew after it was built
            growth.replay(model, _with_small_inputs(log, recipe.multiple), shapes=shapes)
        model.load_state_dict(state)
    except (CheckpointError, GrowthError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    return model, recipe


def _room_of(shapes: Sequence[Sequence[int]]) -> int:
    """How many numbers a network of these tensors may hold; of what lacks a little, load_state_dict() says what."""
    held = sum(map(math.prod, shapes))
    return held + held // 4 + 10_000


def class_names(num_logits: int) -> tuple[str, ...]:
    """Names for classes that nobody named."""
    if num_logits <= 2:
        return ("background", "object")
    return ("background", *(f"class {number}" for number in range(1, num_logits)))


def _noted(path: Path, noted: object) -> Recipe:
    """The recipe that a file says, each field of its type and within what a network can be."""

    def refuse(expected: str, got: object) -> CheckpointError:
        return CheckpointError(f"{path}: not the recipe of a network: expected {expected}, got {reprlib.repr(got)}")

    fields = {field.name for field in dataclasses.fields(Recipe)}
    if not isinstance(noted, dict) or not fields - {"resize"} <= noted.keys() <= fields:
        raise refuse(f"the fields {', '.join(sorted(fields))}", noted)
    name, arguments, classes = noted["model"], noted["arguments"], noted["classes"]
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise refuse(f"a model among {', '.join(KINDS)}", name)
    if not isinstance(arguments, dict) or {key: type(value) for key, value in arguments.items()} != kind.types:
        raise refuse(f"the arguments {', '.join(kind.types)}, plain numbers", arguments)
    _require_sizes(path, arguments)
    num_classes = max(2, arguments["num_classes"])
    if not _is_sequence(classes, num_classes, lambda value: isinstance(value, str)):
        raise refuse(f"the names of {num_classes} classes", classes)
    channels = arguments.get("in_channels", 3)
    for part, lowest in (("mean", -math.inf), ("std", 0.0)):
        if not (noted[part] is None or _is_sequence(noted[part], channels, functools.partial(_is_above, lowest))):
            raise refuse(f"a {part} per channel", noted[part])
    resize = noted.get("resize", 0)
    if type(resize) is not int or not 0 <= resize <= MAX_RESIZE:
        raise refuse(f"a resize from 0 to {MAX_RESIZE}", resize)
    mean, std = (None if part is None else tuple(part) for part in (noted["mean"], noted["std"]))
    return Recipe(name, arguments, tuple(classes), mean, std, resize)


def _is_sequence(value: object, length: int, fits: Callable[[object], bool]) -> bool:
    return isinstance(value, list | tuple) and len(value) == length and all(map(fits, value))


def _is_above(lowest: float, value: object) -> bool:
    return isinstance(value, int | float) and type(value) in (int, float) and math.isfinite(value) and value > lowest


def _require_sizes(path: Path, arguments: Arguments) -> None:
    for key, value in arguments.items():
        highest = MAX_DEPTH if key == "depth" else MAX_CHANNELS
        if type(value) is int and not 1 <= value <= highest:
            raise CheckpointError(f"{path}: not a network's size: expected {key} from 1 to {highest}, got {value}")


def _with_small_inputs(log: Log, multiple: int) -> Log:
    """A log whose inputs are as small as shows the same: two samples, and planes of one place where they had one."""
    steps = log.get("steps") if isinstance(log, dict) else None
    if not isinstance(steps, list | tuple) or not all(isinstance(step, dict) for step in steps):
        return log  # which replay() refuses

    def small(given: object) -> object:
        if not is_recorded_input(given) or not all(type(size) is int for size in given[0]):
            return given
        shape, dtype = given
        limits = (2, MAX_CHANNELS, 2 * multiple, 2 * multiple)
        return [list(map(min, shape, limits)) if len(shape) == 4 else shape, dtype]

    return {"steps": [{**step, "example": _each(small, step.get("example"))} for step in steps]}


def _each(function: Callable[[object], object], values: object) -> object:
    return [function(value) for value in values] if isinstance(values, list | tuple) else values


def _guess(path: Path, name: str | None, state: State) -> Recipe:
    """The recipe of weights alone: sizes from their shapes, the rest as is usual for the model."""
    if name not in KINDS:
        raise ValueError(describe("segment", "model", f"one of {', '.join(KINDS)}, since {path} names none", name))
    try:
        arguments = KINDS[name].arguments(state)
    except KeyError as error:
        raise CheckpointError(f"{path}: expected the weights of {name}, which have the key {error}") from None
    except (AttributeError, IndexError):  # of what is no tensor, or one without dimensions
        raise CheckpointError(f"{path}: expected the weights of {name}, whose convolutions have 4 dimensions") from None
    _require_sizes(path, arguments)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    if arguments.get("in_channels", 3) == 3:
        mean, std = IMAGENET_MEAN, IMAGENET_STD
    return Recipe(name, arguments, class_names(arguments["num_classes"]), mean, std, KINDS[name].resize)
