"""Models by name."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable
from typing import Protocol, TypeVar

from genesis import nn
from genesis.errors import describe

Path = str | os.PathLike[str]
Model = TypeVar("Model", bound=nn.Module)
Model_co = TypeVar("Model_co", bound=nn.Module, covariant=True)


class Builder(Protocol[Model_co]):
    """A registered constructor: takes its own arguments, and torchvision's `weights` and `progress`."""

    def __call__(self, *args: object, weights: Path | None = None, progress: bool = True, **kwargs: object) -> Model_co:
        """Build the model; weights is a file that it loads. progress has no effect, as nothing is downloaded."""


_constructors: dict[str, Builder[nn.Module]] = {}


def register(constructor: Callable[..., Model]) -> Builder[Model]:
    """Register a function that builds a model, under the function's name, for create(); use it as a decorator.

    The function then also takes torchvision's arguments `weights`, a file that the new model loads or None, and
    `progress`, which has no effect: nothing is downloaded.

    Args:
        constructor: returns an nn.Module; all its arguments have defaults.
    Returns: the constructor, with the two arguments.
    Raises: ValueError: the name is taken.

    Example:
        >>> @genesis.models.register
        ... def tiny_for_this_example(num_classes: int = 2):
        ...     return nn.Linear(3, num_classes)
        >>> genesis.models.create("tiny_for_this_example", num_classes=5).out_features
        5
    """
    name = constructor.__name__
    if name in _constructors:
        raise ValueError(f"models.register: there is a model '{name}' already, in {_constructors[name].__module__}")

    @functools.wraps(constructor)
    def build(*args: object, weights: Path | None = None, progress: bool = True, **kwargs: object) -> Model:
        model = constructor(*args, **kwargs)
        if weights is not None:
            model.load(weights)
        return model

    _constructors[name] = build
    return build


def create(name: str, **kwargs: object) -> nn.Module:
    """Build the model of this name.

    Args:
        name: see names().
        kwargs: arguments of its constructor, `genesis.models.<name>`; weights: a file to load.
    Returns: the network, in training mode.
    Raises: ValueError: there is no such model; the message lists all and suggests the closest.
    Example: >>> genesis.models.create("unet", width=4, depth=2)(genesis.ones(1, 1, 8, 8)).shape
    (1, 1, 8, 8)
    """
    if name not in _constructors:
        closest = difflib.get_close_matches(str(name), _constructors, n=1)
        hint = f"; did you mean {closest[0]}?" if closest else ""
        raise ValueError(describe("models.create", "name", f"one of {', '.join(names())}", f"{name!r}{hint}"))
    build: Callable[..., nn.Module] = _constructors[name]
    return build(**kwargs)


def names() -> list[str]:
    """The names of all registered models.

    Returns: a sorted list.
    Example: >>> "resnet18" in genesis.models.names()
    True
    """
    return sorted(_constructors)
