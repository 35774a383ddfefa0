"""Activations stay NHWC and weights KRSC: a training step of ResNet-50 copies nothing into another memory order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import genesis
from genesis.backends.cuda import driver
from genesis.backends.cuda.driver.simulated import SimulatedDriver
from genesis.backends.cuda.ops.storage import launch as storage
from genesis.backends.cuda.runtime import memory
from genesis.backends.cuda.runtime.array import DeviceArray
from genesis.settings import override
from genesis.shapes import Shape, equivalent


class Idle:
    """A kernel that does nothing."""

    name = "idle"

    def launch(self, *args: Any) -> None:
        pass

    def prepare(self, *args: Any) -> Callable[..., None]:
        return lambda *addresses: None


class IdleDriver(SimulatedDriver):
    """All that a step does on the host, and nothing on the device: what counts here is which copies are asked for."""

    watches_memory = False

    def load_kernel(self, device: int, kernel: Any, signature: Any) -> Any:
        return Idle()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The copies of planes into another memory order, as they happen."""
    found: list[str] = []
    original = storage.copy

    def copy(x: DeviceArray, strides: Shape) -> DeviceArray:
        if len(x.shape) == 4 and not equivalent(x.shape, x.strides, strides):
            found.append(f"{x.shape}: {x.strides} to {strides}")
        return original(x, strides)

    monkeypatch.setitem(driver._drivers, "simulated", IdleDriver())
    monkeypatch.setattr(memory, "_pools", {})
    with override(cuda="simulated"):
        genesis.backends.get("cuda")
        for name, module in list(sys.modules.items()):
            if name.startswith("genesis.backends.cuda.") and getattr(module, "copy", None) is original:
                monkeypatch.setattr(module, "copy", copy)
        backend = genesis.backends.get("cuda")
        with genesis.backends.use("cuda", backend.wrapped(lambda op, function: copy if op == "copy" else function)):
            yield found


def test_a_step_of_resnet50_copies_no_layout(copies: list[str]) -> None:
    model = genesis.models.create("resnet50").to("cuda")
    optimizer = genesis.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = genesis.zeros(2, 3, 64, 64).contiguous(memory_format=genesis.channels_last).to("cuda")
    target = genesis.zeros(2, dtype=genesis.int64, device="cuda")
    copies.clear()
    for _ in range(2):
        loss = genesis.nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert copies == []


def test_the_count_sees_a_copy(copies: list[str]) -> None:
    weight = genesis.zeros(4, 3, 3, 3, device="cuda").contiguous(memory_format=genesis.channels_last)
    copies.clear()
    genesis.conv(genesis.zeros(2, 3, 8, 8, device="cuda"), weight)
    assert copies == ["(2, 3, 8, 8): (192, 64, 8, 1) to (192, 1, 24, 3)"]
