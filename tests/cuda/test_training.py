"""Whole training steps on a device: without PyTorch, from many threads, and without memory that grows."""

from __future__ import annotations

import gc
import itertools
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import genesis
from genesis import nn
from genesis.nn import functional as F

SIZES = (12, 16, 4)


def mlp(sizes: tuple[int, ...] = SIZES) -> nn.Module:
    layers: list[nn.Module] = []
    for num_inputs, num_outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(num_inputs, num_outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def network() -> nn.Module:
    """One of most kinds of layers."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(16),
        nn.Linear(16, 8),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(8, 3),
    )


# --- no torch function computes anything on a device ------------------------------------------------------------------


class NoTorch(TorchDispatchMode):
    """Every operator of PyTorch raises."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"PyTorch computed {func}")


class NoTorchFunction(TorchFunctionMode):
    """So does every function of its Python surface."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"PyTorch was called: {func}")


@pytest.mark.parametrize("optimizer", [genesis.optim.SGD, genesis.optim.AdamW], ids=lambda kind: kind.__name__)
def test_a_training_step_without_pytorch(cuda: str, optimizer: Callable[..., Any]) -> None:
    genesis.manual_seed(0)
    model = network().to("cuda")
    steps = optimizer(model.parameters(), lr=0.01)
    x = genesis.randn(3, 2, 4, 4).to("cuda")
    target = genesis.tensor([0, 2, 1], device="cuda")
    losses = []
    with NoTorch(), NoTorchFunction():
        noise = genesis.rand(3, 2, 4, 4, device="cuda") * 0.01
        for _ in range(2):
            steps.zero_grad()
            loss = F.cross_entropy(model(x + noise), target, label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
            losses.append(loss.item())
    assert all(map(math.isfinite, losses))
    assert losses[0] != losses[1]


def test_torch_would_be_noticed() -> None:
    with pytest.raises(AssertionError, match="PyTorch computed aten"), NoTorch():
        torch.ones(2).add(1)
    with pytest.raises(AssertionError, match="PyTorch was called"), NoTorchFunction():
        torch.ones(2)
    with pytest.raises(AssertionError, match="PyTorch"), NoTorch():
        genesis.ones(2).exp()


# --- threads ----------------------------------------------------------------------------------------------------------


def train(seed: int, num_steps: int, device: str) -> list[float]:
    """The losses of a few steps on data that follows from the seed."""
    host = genesis.backends.get("cpu")
    model = mlp().to(device)
    for number, parameter in enumerate(model.parameters()):
        values = host.to_cpu(host.randn(tuple(parameter.shape), 100 * seed + number)) * 0.3
        with genesis.no_grad():
            parameter.copy_(genesis.from_numpy(values))
    x = genesis.from_numpy(host.to_cpu(host.randn((6, 12), seed))).to(device)
    optimizer = genesis.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_eight_threads_with_streams_of_their_own(cuda: str) -> None:
    num_threads, num_steps = 8, 2 if cuda == "simulated" else 50
    results: dict[int, list[float]] = {}
    start = threading.Barrier(num_threads)

    def work(seed: int) -> None:
        with genesis.cuda.stream(genesis.cuda.Stream()):
            start.wait()
            results[seed] = train(seed, num_steps, "cuda")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(num_threads):
        assert results[seed] == pytest.approx(train(seed, num_steps, "cpu"), rel=1e-4), f"thread {seed}"


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "num_steps", "sizes"),
    [
        ("simulated", 12, (4, 2)),
        pytest.param("auto", 10_000, (64, 128, 10), marks=pytest.mark.gpu),
    ],
)
def test_memory_stays_flat_over_many_steps(choice: str, num_steps: int, sizes: tuple[int, ...]) -> None:
    with genesis.settings.override(cuda=choice):
        model = mlp(sizes).to("cuda")
        optimizer = genesis.optim.AdamW(model.parameters())
        x = genesis.randn(8, sizes[0], device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        def memory() -> tuple[int, int, int]:
            gc.collect()
            stats = genesis.cuda.memory_stats()
            return genesis.cuda.memory_allocated(), genesis.cuda.memory_reserved(), stats["num_device_alloc"]

        for _ in range(70):  # the optimizer's state, and as many tables for its kernels as are kept
            step()
        before = memory()
        for _ in range(num_steps):
            step()
        assert memory() == before
