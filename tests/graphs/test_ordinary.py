"""Programs as people write them, with all that a step does not use around it, are recorded and replayed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import logging
import math
import pathlib
import random
import threading
import time
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import genesis
import genesis.nn.functional as F
from genesis import amp, nn, optim
from tests.graphs.steps import Regression, descend
from tests.narrow import narrow

log = logging.getLogger(__name__)
started = time.time()


@dataclasses.dataclass
class Config:
    rate: float = 0.1
    smoothing: float = 0.05
    folder: pathlib.Path = pathlib.Path("runs")
    names: tuple[str, ...] = ("a", "b")
    table: np.ndarray = dataclasses.field(default_factory=lambda: np.ones(3))
    verbose: bool = False


class Block(nn.Module):
    scale: float = 1.0

    def __init__(self, width: int, act: Callable[..., Any] = F.relu) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.LayerNorm(width)])
        self.act, self.width, self.counts = act, width, {"width": width}
        self.drop = nn.Dropout(0.1)

    def forward(self, x: genesis.Tensor, mask: genesis.Tensor | None = None) -> genesis.Tensor:
        assert x.shape[-1] == self.width, f"expected {self.width}"
        y = x
        for index, layer in enumerate(self.layers):
            y = layer(y) if index % 2 == 0 else self.act(layer(y))
        if mask is not None:
            y = y * mask
        return x + self.drop(y) * self.scale / math.sqrt(self.counts["width"])


class Trainer:
    """It holds what trainers hold; its step uses a part of it."""

    def __init__(self) -> None:
        self.config, self.lock, self.random = Config(), threading.Lock(), random.Random(0)
        self.model = nn.Sequential(Block(6), Block(6, act=F.gelu), nn.Linear(6, 3))
        self.average = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.optimizer = optim.AdamW(self.model.parameters(), lr=self.config.rate)
        self.scheduler = optim.lr_scheduler.StepLR(self.optimizer, 5)
        self.history: list[float] = []
        self.data, self.examples, self.log = iter([1, 2]), np.zeros((4, 4)), log
        self.callbacks: list[Callable[..., Any]] = []

    @property
    def criterion(self) -> Callable[..., Any]:
        return F.cross_entropy

    @contextlib.contextmanager
    def checked(self) -> Iterator[None]:
        try:
            yield
        except ValueError:
            log.exception("failed")
            raise

    def step(self, batch: dict[str, genesis.Tensor]) -> dict[str, Any]:
        x, y = batch["x"], batch["y"]
        if isinstance(x, torch.Tensor):
            x = genesis.from_torch(x)
        if self.config.verbose:
            print("step", len(self.history), time.time() - started)
            log.info("step of %s", self.config.names)
        self.optimizer.zero_grad()
        with self.checked(), amp.autocast("cpu", enabled=False):
            logits = typing.cast(genesis.Tensor, self.model(x))
            loss = self.criterion(logits, y, label_smoothing=self.config.smoothing)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        with genesis.no_grad():
            for name, value in self.model.state_dict().items():
                self.average[name].mul_(0.9).add_(value * (1 - 0.9))
        for callback in self.callbacks:
            callback(loss)
        return {"loss": loss, "norm": norm, "size": x.shape[0]}


def test_a_trainer() -> None:
    results: list[list[Any]] = []
    for is_compiled in (False, True):
        genesis.manual_seed(0)
        trainer = Trainer()
        step = genesis.compile(trainer.step) if is_compiled else trainer.step
        results.append([])
        for _ in range(8):
            batch = {"x": genesis.randn(4, 6), "y": genesis.randint(0, 3, (4,))}
            found = step(batch)
            trainer.history.append(found["loss"].item())
            trainer.scheduler.step()
            results[-1] += [found["loss"].item(), found["norm"].item(), found["size"]]
        results[-1].append([value.tolist() for value in trainer.average.values()])
    assert step.num_recordings == 1
    assert results[0] == results[1]


def test_a_step_of_functions() -> None:
    def make() -> tuple[Callable[..., Any], Regression]:
        r, weights = Regression(), {"mse": 0.5, "l1": 0.25}
        losses: dict[str, Callable[..., Any]] = {"mse": F.mse_loss, "l1": lambda a, b: (a - b).abs().mean()}

        def step(x: genesis.Tensor, *, flip: bool = False) -> list[genesis.Tensor]:
            r.optimizer.zero_grad()
            output, target = r.model(x.flip(0) if flip else x), x.sum(1, keepdim=True)
            parts = {name: weights[name] * loss(output, target) for name, loss in sorted(losses.items())}
            total = sum(parts.values(), start=genesis.zeros(()))
            total.backward()
            r.optimizer.step()
            return [total, *parts.values()]

        return step, r

    (mine, one), (theirs, other) = make(), make()
    compiled = genesis.compile(mine)
    for number in range(12):
        x = genesis.randn(5, 3)
        for got, expected in zip(compiled(x, flip=number % 2 == 0), theirs(x, flip=number % 2 == 0), strict=True):
            assert got.item() == expected.item()
    assert compiled.num_recordings == 2
    assert [p.tolist() for p in one.model.parameters()] == [p.tolist() for p in other.model.parameters()]


def test_a_recording_keeps_no_batch() -> None:
    r = Regression()
    compiled, alive = genesis.compile(functools.partial(descend, r)), []
    for _ in range(4):
        x = genesis.randn(5, 3)
        alive.append(weakref.ref(x.array.handle))
        compiled(x)
        del x
    gc.collect()
    assert not any(handle() is not None for handle in alive)


def test_what_the_collector_calls_is_no_part_of_a_run() -> None:
    calls: list[float] = []
    callback = lambda phase, info: calls.append(time.perf_counter())  # noqa: E731  (as profilers and hypothesis have it)
    threshold = gc.get_threshold()
    r = Regression()
    compiled = genesis.compile(descend)
    gc.callbacks.append(callback)
    gc.set_threshold(1, 1, 1)
    try:
        for _ in range(4):
            compiled(r, genesis.ones(5, 3))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(callback)
    assert calls
    assert r.runs == 2


def test_history_beside_the_step_does_not_matter() -> None:
    r = Regression()
    r.history, r.epoch = [], 0
    compiled = genesis.compile(descend)
    for number in range(10):
        r.history.append(compiled(r, genesis.ones(5, 3)).item())
        r.epoch = number
        r.model.seen = number
    assert r.runs == 2


@pytest.mark.parametrize("name", ["resnet18", "unet"])
def test_models_are_recorded_in_their_own_loops(name: str) -> None:
    """With eval() before each call, as people write it."""
    options = {"width": 4} if name == "unet" else {}
    with narrow():
        model = genesis.models.create(name, **options).eval()
    compiled = genesis.compile(model)
    x = genesis.randn(1, 1 if name == "unet" else 3, 32, 32)
    with genesis.no_grad():
        for _ in range(4):
            model.eval()
            compiled(x)
    assert compiled.num_recordings == 1
