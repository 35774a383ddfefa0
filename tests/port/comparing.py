"""One model of a package on Genesis, by redirected imports alone, beside the same on PyTorch."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch

import genesis
from genesis.port import redirected
from genesis.port.redirect import take_modules

PACKAGES = ("torchvision", "timm", "segmentation_models_pytorch")
_RANDOM = ("p", "drop_prob", "drop_rate", "_drop_connect_rate")  # what modules call the share that they drop
_RELATIVE = 1e-6  # of float64 results and gradients; what differs is the order of sums


class Sides:
    """The packages on PyTorch and on Genesis in one process, each in sys.modules while its side is at work."""

    def __init__(self, *packages: str) -> None:
        self._packages, self._genesis = packages, redirected(*packages)
        self._torch: dict[str, ModuleType] = {}

    @contextlib.contextmanager
    def torch(self) -> Iterator[None]:
        """Packages with PyTorch."""
        aside = take_modules(self._packages)
        sys.modules.update(self._torch)
        try:
            yield
        finally:
            self._torch = take_modules(self._packages)
            sys.modules.update(aside)

    @contextlib.contextmanager
    def genesis(self) -> Iterator[None]:
        """Packages with Genesis."""
        with self._genesis:
            yield


def prepare_torchvision() -> None:
    """Let the wheel of torchvision, which is built for CUDA, import beside a PyTorch for the CPU."""
    if not torch.cuda.is_available() and not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        prepare_torchvision.library = library  # type: ignore[attr-defined] what is freed is undeclared


def build(build: Callable[[], Any]) -> Any:
    """A model in float64 whose dropout drops nothing: random numbers need not agree."""
    model = build().double()
    for module in model.modules():
        for name in _RANDOM:
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


def compare(sides: Sides, make: Callable[[], Any], size: tuple[int, ...]) -> None:
    """Build, load the twin's weights, forward, backward, a step of SGD, and forward in evaluation.

    Raises: what Genesis raises, with its traceback; AssertionError: results or gradients differ.
    """
    torch.manual_seed(0)
    x = torch.randn(size, dtype=torch.float64)

    def seed() -> None:  # of both sides' training: Genesis draws on the CPU from PyTorch's stream
        for each in (torch.manual_seed, np.random.seed, random.seed):
            each(0)

    with sides.torch():
        theirs = build(make)
        seed()
        expected = train(theirs, x, torch.optim.SGD(theirs.parameters(), lr=1e-4), torch.no_grad)
        state = expected.pop("state")
    with sides.genesis():
        ours = build(make)
        ours.load_state_dict(state)
        optimizer = genesis.optim.SGD(ours.parameters(), lr=1e-4)
        seed()
        actual = train(ours, genesis.from_torch(x), optimizer, genesis.no_grad)
    actual.pop("state")
    assert list(actual) == list(expected), f"other values: {set(actual) ^ set(expected)}"
    largest = max(float(np.abs(value).max(initial=0)) for key, value in expected.items() if key.startswith("grad "))
    for key, value in expected.items():
        floor = 1e-3 * largest if key.startswith("grad ") else 1e-12
        assert_close(actual[key], value, key, floor)


def train(model: Any, x: Any, optimizer: Any, no_grad: Any) -> dict[str, Any]:
    """The state before a training step, the outputs and gradients of it, and the outputs in evaluation after it."""
    state = model.state_dict()  # its own dictionary, which knows the versions of the layers
    for key, value in state.items():
        state[key] = value.clone()
    found: dict[str, Any] = {"state": state}
    model.train()
    loss: Any = 0
    for index, value in enumerate(tensors(model(x))):
        found[f"output {index}"] = value.detach().numpy()
        loss = loss + (value * value).mean() + value.mean()
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            found[f"grad {name}"] = parameter.grad.numpy().copy()
    optimizer.step()
    model.eval()
    with no_grad():
        for index, value in enumerate(tensors(model(x))):
            found[f"evaluation {index}"] = value.numpy()
    return found


def tensors(value: Any) -> Iterator[Any]:
    """The tensors in nested results, in order."""
    if isinstance(value, torch.Tensor | genesis.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors(each)


def assert_close(actual: Any, expected: Any, name: str, floor: float) -> None:
    """No element differs by more than a small part of the largest, or of what is given as the floor of that."""
    assert actual.shape == expected.shape, f"{name}: shape {actual.shape}, in PyTorch {expected.shape}"
    if not expected.size:
        return
    bound = _RELATIVE * max(float(np.abs(expected).max()), floor)
    difference = float(np.abs(actual - expected).max())
    assert difference <= bound, f"{name}: differs by {difference:.1e}, of {np.abs(expected).max():.1e}"
