"""Modules without their initialisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from genesis import random
from genesis.errors import DTypeError, describe
from genesis.nn.module import Module

M = TypeVar("M", bound=Module)
P = ParamSpec("P")


def skip_init(module_cls: Callable[P, M], *args: P.args, **kwargs: P.kwargs) -> M:
    """A module for parameters that will be loaded: no numbers of the random stream are used up.

    Args:
        module_cls: a class of modules.
        args, kwargs: for it; device is where the parameters lie.
    Returns: the module; its parameters hold whatever its class put there, or memory held.
    Raises: DTypeError: module_cls is no class of modules.

    Example:
        >>> nn.utils.skip_init(nn.Linear, 5, 1).weight.shape
        (1, 5)
    """
    is_class = isinstance(module_cls, type) and issubclass(module_cls, Module)
    if not is_class:
        raise DTypeError(describe("skip_init", "module_cls", "a class of modules", repr(module_cls)))
    state = random.get_rng_state()
    try:
        return module_cls(*args, **kwargs)
    finally:
        random.set_rng_state(state)
