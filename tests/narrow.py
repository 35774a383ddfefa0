"""Networks with a share of their channels: as deep as those of the papers, but quick to make and to run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

import genesis

_FEWEST = 64  # inputs and outputs of a network are fewer, and stay
_NUM_SIZES = {"Conv2d": 2, "ConvTranspose2d": 2, "BatchNorm2d": 1, "Linear": 2}  # the first arguments of layers


@contextlib.contextmanager
def narrow(divisor: int = 8) -> Iterator[None]:
    """Layers of Genesis and of PyTorch that are made in here have so many times fewer channels, but for the fewest."""
    with contextlib.ExitStack() as stack:
        for layers in (genesis.nn, torch.nn):
            for name, num_sizes in _NUM_SIZES.items():
                layer = getattr(layers, name)
                stack.enter_context(mock.patch.object(layer, "__init__", _divided(layer.__init__, num_sizes, divisor)))
        yield


def _divided(make: Callable[..., None], num_sizes: int, divisor: int) -> Callable[..., None]:
    def make_narrow(layer: Any, *args: Any, **options: Any) -> None:
        sizes = [size if size < _FEWEST else size // divisor for size in args[:num_sizes]]
        make(layer, *sizes, *args[num_sizes:], **options)

    return make_narrow


@contextlib.contextmanager
def unfilled() -> Iterator[None]:
    """Parameters of Genesis' layers that are made in here draw no numbers: for tests of names and shapes."""
    with contextlib.ExitStack() as stack:
        for name in ("normal_", "uniform_"):
            stack.enter_context(mock.patch.object(genesis.nn.init, name, lambda tensor, *args: tensor))
        yield
