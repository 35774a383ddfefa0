"""Calls of captured graphs without gradients, without what PyTorch does around a replay, on simulated trees."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis.settings import override
from tests.torch.loops import Net, Steps, agree, batch, outcome
from tests.torch.trees import steps as steps
from tests.torch.trees import trees as trees

NUM_CALLS = 8
LONG = 3  # the first call warms up, the second is recorded, the third is replayed, and shows how the others are to run

pytestmark = pytest.mark.usefixtures("trees")


def evaluation(model: nn.Module) -> Steps:
    model.eval()
    with torch.no_grad():
        for index in range(NUM_CALLS):
            yield model(batch(index)[0])


def inference(model: nn.Module) -> Steps:
    """What it yields is copied, as tensors of inference mode are of use in few places."""
    model.eval()
    for index in range(NUM_CALLS):
        with torch.inference_mode():
            y = model(batch(index)[0])
        assert y.is_inference()
        yield y.clone()


def frozen(model: nn.Module) -> Steps:
    """Gradients are enabled, and nothing needs one."""
    model.eval().requires_grad_(False)
    for index in range(NUM_CALLS):
        y = model(batch(index)[0])
        assert not y.requires_grad
        yield y


def statistics(model: nn.Module) -> Steps:
    """Batch norms adapt to new images: the graph changes their statistics in place."""
    with torch.no_grad():
        for index in range(NUM_CALLS):
            yield model(batch(index)[0])
            yield model.norm.running_mean.clone()  # type: ignore[union-attr, operator]


def in_place(model: nn.Module) -> Steps:
    """Weights and images change between the calls, but not where they lie."""
    model.eval()
    x = batch(0)[0].clone()
    with torch.no_grad():
        for index in range(NUM_CALLS):
            x.copy_(batch(index)[0])
            y = model(x)
            yield y
            y.zero_()  # it is the program's
            for parameter in model.parameters():
                parameter.mul_(0.9)


LOOPS = [evaluation, inference, frozen, statistics, in_place]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_runs_unmodified(loop: Callable[[nn.Module], Steps], steps: Counter[str]) -> None:
    model = Net()
    agree(outcome(loop, genesis.torch.compile(copy.deepcopy(model))), outcome(loop, model))
    assert steps == {"call": NUM_CALLS - LONG}


def test_autograd_is_told_what_changes(steps: Counter[str]) -> None:
    """Statistics of a model whose parameters are frozen: who saved them for a backward gets PyTorch's error."""
    model = genesis.torch.compile(Net().requires_grad_(False))
    versions = []
    for index in range(NUM_CALLS):
        model(batch(index)[0])
        versions.append(model.norm.running_mean._version)  # type: ignore[union-attr, operator]
    assert versions == list(range(versions[0], versions[0] + NUM_CALLS))
    assert steps == {"call": NUM_CALLS - LONG}


def test_validation_between_steps(steps: Counter[str]) -> None:
    """A graph for each mode; where a forward's backward is still to come, what it saved stays."""

    def loop(model: nn.Module) -> Steps:
        for index in range(12):
            x, y = batch(index)
            loss = F.cross_entropy(model(x), y)
            if index % 2:
                yield from one(model, index)
            model.zero_grad()
            loss.backward()
            yield next(each.grad.clone() for each in model.parameters() if each.grad is not None)
            if not index % 2:
                yield from one(model, index)

    def one(model: nn.Module, index: int) -> Steps:
        with torch.no_grad():
            model.eval()
            yield model(batch(index)[0])
            model.train()

    model = Net()
    agree(outcome(loop, genesis.torch.compile(copy.deepcopy(model))), outcome(loop, model))
    assert steps["call"] > 2


def test_two_models(steps: Counter[str]) -> None:
    models = nn.ModuleList([Net(), Net()]).eval()
    compiled = copy.deepcopy(models)
    for each in compiled:
        genesis.torch.compile(each)

    def loop(models: Any) -> Steps:
        with torch.no_grad():
            for index in range(NUM_CALLS):
                results = [model(batch(index)[0]) for model in models]
                yield results[0]
                yield results[1]

    agree(outcome(loop, compiled), outcome(loop, models))
    assert steps["call"] >= NUM_CALLS - LONG


def test_parameters_that_move(steps: Counter[str]) -> None:
    def loop(model: nn.Module) -> Steps:
        yield from evaluation(model)
        for parameter in model.parameters():
            parameter.data = parameter.data * 2
        yield from evaluation(model)

    model = Net()
    agree(outcome(loop, genesis.torch.compile(copy.deepcopy(model))), outcome(loop, model))
    assert steps["call"] > 2 * (NUM_CALLS - LONG) - LONG


class Pyramid(nn.Module):
    """Results in a dictionary: a value, a part of another, the image itself, and a number."""

    def __init__(self, returns_input: bool) -> None:
        super().__init__()
        self.conv, self.norm, self.returns_input = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), returns_input

    def forward(self, x: Tensor) -> dict[str, object]:
        y = F.relu(self.norm(self.conv(x)))
        found = {"fine": y, "coarse": F.max_pool2d(y, 2), "number": 3}
        return {**found, "image": x} if self.returns_input else {**found, "half": (y * 2)[:, :2].contiguous()}


@pytest.mark.parametrize("returns_input", [True, False])
def test_several_results(returns_input: bool, steps: Counter[str]) -> None:
    """They are the program's: later calls leave them as they are."""
    model = Pyramid(returns_input).eval()
    compiled = genesis.torch.compile(copy.deepcopy(model))
    with torch.no_grad():
        found = [compiled(batch(index)[0]) for index in range(NUM_CALLS)]
        for index, ours in enumerate(found):
            theirs = model(batch(index)[0])
            assert ours.keys() == theirs.keys()
            for key, value in theirs.items():
                torch.testing.assert_close(ours[key], value)
    assert steps["call"] == NUM_CALLS - LONG


def test_other_sizes(steps: Counter[str]) -> None:
    """Each is a graph; from the second on Dynamo makes the batch a symbol, and PyTorch runs such calls."""
    model = Net().eval()
    compiled = genesis.torch.compile(copy.deepcopy(model), dynamic=False)
    with torch.no_grad():
        for index in range(40):
            x = batch(index, 2 + index % 3)[0]
            torch.testing.assert_close(compiled(x), model(x))
    assert steps["call"] > 10


def test_transforms_go_pytorchs_way(steps: Counter[str]) -> None:
    model = Net().eval().requires_grad_(False)
    compiled = genesis.torch.compile(copy.deepcopy(model))
    for index in range(NUM_CALLS):
        x = batch(index)[0]
        torch.testing.assert_close(compiled(x), model(x))
    before = steps["call"]
    xs = torch.stack([batch(index)[0] for index in range(3)])
    torch.testing.assert_close(torch.func.vmap(compiled)(xs), torch.func.vmap(model)(xs))
    assert steps["call"] == before


def test_switched_off(steps: Counter[str]) -> None:
    with override(short_steps=False):
        model = Net()
        agree(outcome(evaluation, genesis.torch.compile(copy.deepcopy(model))), outcome(evaluation, model))
    assert not steps
