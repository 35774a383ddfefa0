"""Models by name."""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

from genesis import nn
from genesis.errors import describe

Constructor = TypeVar("Constructor", bound=Callable[..., nn.Module])
_constructors: dict[str, Callable[..., nn.Module]] = {}


def register(constructor: Constructor) -> Constructor:
    """Make a function that builds a model known to create() by the function's name; use it as a decorator.

    The function also takes torchvision's arguments `weights`, here a file that the new model loads or None, and
    `progress`, which has no effect: nothing is downloaded.

    Raises: ValueError: the name is taken.
    """
    name = constructor.__name__
    if name in _constructors:
        raise ValueError(f"models.register: there is a model '{name}' already, in {_constructors[name].__module__}")

    @functools.wraps(constructor)
    def build(
        *args: Any, weights: str | os.PathLike[str] | None = None, progress: bool = True, **kwargs: Any
    ) -> nn.Module:
        model = constructor(*args, **kwargs)
        if weights is not None:
            model.load(weights)
        return model

    _constructors[name] = build
    return cast(Constructor, build)


def create(name: str, **kwargs: Any) -> nn.Module:
    """Build the model of this name.

    Args:
        kwargs: for the model's own constructor, `genesis.models.<name>`; weights: a file to load.
    Raises: ValueError: there is no such model; those that there are are shown, and the closest.
    Example: >>> genesis.models.create("unet", width=4, depth=2)(genesis.ones(1, 1, 8, 8)).shape
    (1, 1, 8, 8)
    """
    if name not in _constructors:
        closest = difflib.get_close_matches(str(name), _constructors, n=1)
        hint = f"; did you mean {closest[0]}?" if closest else ""
        raise ValueError(describe("models.create", "name", f"one of {', '.join(names())}", f"{name!r}{hint}"))
    return _constructors[name](**kwargs)


def names() -> list[str]:
    """The names that create() knows, sorted."""
    return sorted(_constructors)
