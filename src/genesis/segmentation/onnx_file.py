"""A segmentation network in an ONNX file: ONNX Runtime runs it, and the file's metadata say how pictures go in."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from pathlib import Path

import genesis
from genesis import nn
from genesis.errors import CheckpointError, describe
from genesis.export.runtime import Session
from genesis.segmentation.recipe import MAX_CHANNELS, MAX_RESIZE, Recipe
from genesis.tensor import Tensor

MAX_MULTIPLE = 2**10


class RuntimeNetwork(nn.Module):
    """ONNX Runtime's session as a network of one input; of several outputs, "out" or the first."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        names = [each.name for each in session.outputs]
        self._session, self._output = session, "out" if "out" in names else names[0]

    def forward(self, input: Tensor) -> Tensor:
        (output,) = self._session.run({self._session.inputs[0].name: input.numpy()}, [self._output])
        return genesis.from_numpy(output)


def load(path: Path, classes: tuple[str, ...] | None = None, device: str = "cpu") -> tuple[nn.Module, Recipe]:
    """The network of an ONNX file that `genesis export` wrote for a segmentation network, and its recipe.

    Args:
        classes: names, instead of those in the file.
        device: where ONNX Runtime computes; the network takes and gives tensors of the CPU.
    Raises: CheckpointError: it is no ONNX file, takes no pictures of any size, or says nothing of its classes.
        ValueError: another number of classes. ImportError: ONNX Runtime is not installed.
    """
    session = Session(path, device)
    channels = _channels(session)
    recipe = _recipe(session, channels)
    if classes is not None:
        if len(classes) != len(recipe.classes):
            raise ValueError(describe("segment", "classes", f"{len(recipe.classes)} names", f"{len(classes)}"))
        recipe = dataclasses.replace(recipe, classes=classes)
    return RuntimeNetwork(session).eval(), recipe


def _channels(session: Session) -> int:
    """The number of channels of what goes in: pictures of any height and width, one at a time at least."""
    shapes = [each.shape for each in session.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or not session.outputs:
        raise CheckpointError(f"{session.path}: expected a network of one input (N, C, H, W), got {shapes}")
    (shape,) = shapes
    _, channels, height, width = shape
    if isinstance(height, int) or isinstance(width, int):
        raise CheckpointError(
            f"{session.path}: expected height and width that vary, got {shape}; export it without --fixed"
        )
    if channels not in (1, 3):
        raise CheckpointError(f"{session.path}: expected an input of 1 or 3 channels, got {channels}")
    return int(channels)


def _recipe(session: Session, channels: int) -> Recipe:
    said = {name: _parsed(text) for name, text in session.metadata.items()}

    def refuse(expected: str, got: object) -> CheckpointError:
        return CheckpointError(f"{session.path}: its metadata: expected {expected}, got {reprlib.repr(got)}")

    classes, mean, std = (said.get(name) for name in ("classes", "mean", "std"))
    if not isinstance(classes, list) or len(classes) < 2 or not all(isinstance(name, str) for name in classes):
        got = "nothing" if classes is None else classes
        raise refuse('the names of the classes as "classes", which genesis export writes with --weights', got)
    num_logits = _num_logits(session)
    if num_logits is not None and len(classes) != max(2, num_logits):
        raise refuse(f"the names of {max(2, num_logits)} classes", classes)
    for name, numbers, lowest in (("mean", mean, -math.inf), ("std", std, 0.0)):
        if numbers is not None and not _are_numbers(numbers, channels, lowest):
            raise refuse(f"a {name} per channel", numbers)
    if (mean is None) != (std is None):
        raise refuse("mean and std, or neither", said)
    resize, multiple = said.get("resize", 0), _multiple(said.get("multiples", {}))
    if type(resize) is not int or not 0 <= resize <= MAX_RESIZE:
        raise refuse(f"a resize from 0 to {MAX_RESIZE}", resize)
    if multiple is None:
        raise refuse(f"multiples from 1 to {MAX_MULTIPLE}", said["multiples"])
    assert isinstance(mean, list | None)
    assert isinstance(std, list | None)
    return Recipe(
        "onnx", {"in_channels": channels, "multiple": multiple}, tuple(classes), None if mean is None else tuple(mean),
        None if std is None else tuple(std), resize,
    )  # fmt: skip


def _parsed(text: str) -> object:
    """A value of the metadata: JSON, or else a text."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found


def _num_logits(session: Session) -> int | None:
    outputs = {each.name: each.shape for each in session.outputs}
    shape = outputs.get("out", session.outputs[0].shape)
    if len(shape) != 4:
        raise CheckpointError(f"{session.path}: expected logits (N, classes, H, W), got {shape}")
    return shape[1] if isinstance(shape[1], int) and 1 <= shape[1] <= MAX_CHANNELS else None


def _are_numbers(numbers: object, length: int, lowest: float) -> bool:
    return (
        isinstance(numbers, list)
        and len(numbers) == length
        and all(type(value) in (int, float) and math.isfinite(value) and value > lowest for value in numbers)
    )


def _multiple(multiples: object) -> int | None:
    """The number of which height and width must be multiples; None: the file says something else."""
    if not isinstance(multiples, dict) or not all(type(step) is int for step in multiples.values()):
        return None
    found = math.lcm(*multiples.values())
    return found if 1 <= found <= MAX_MULTIPLE else None
