"""genesis.tune of a step of a PyTorch model."""

from __future__ import annotations

import collections
import itertools
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import genesis
import genesis.torch
from genesis.backends.cuda.engine.planner import all_plans
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.settings import override
from genesis.torch import bridge
from genesis.torch.links import running_alone


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where PyTorch's tensors are; those of the CPU are computed with by the CUDA backend's kernels, simulated."""
    if request.param == "cpu":
        request.getfixturevalue("cuda_kernels")
    return str(request.param)


def test_a_step_is_tuned_in_both_passes(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs PyTorch's backward, on a thread of PyTorch's, itself; and of each problem two candidates are measured."""
    in_turns = CONV.in_turns
    monkeypatch.setattr(CONV, "in_turns", lambda problem: itertools.islice(in_turns(problem), 2))
    model = genesis.torch.fuse(nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU()).to(device))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    x = torch.randn(2, 8, 5, 5, device=device).to(memory_format=torch.channels_last).requires_grad_()

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            model(x).float().sum().backward()

    with override(cache_dir=tmp_path):
        report = genesis.tune(step, budget=60)
        plans = {plan.problem: plan.candidate for plan in all_plans(CONV)}
    assert {each.problem.direction for each in report.outcomes} == {"forward", "input_grad", "weight_grad"}
    assert all(each.complete for each in report.outcomes)
    assert all(plans[each.problem] == each.candidate for each in report.outcomes)  # they are what computes now
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("alone", [False, True])
def test_convolutions_that_run_alone_in_compiled_graphs_are_found(
    alone: bool, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_turns = CONV.in_turns
    monkeypatch.setattr(CONV, "in_turns", lambda problem: itertools.islice(in_turns(problem), 1))
    monkeypatch.setattr(bridge, "convolves", lambda x, weight, dtype, groups: dtype is torch.bfloat16)
    layers = nn.Conv2d(8, 8, 1, bias=False), nn.GroupNorm(2, 8), nn.Conv2d(8, 8, 3, bias=False)
    model = genesis.torch.fuse(nn.Sequential(*layers).to(device, memory_format=torch.channels_last))
    x = torch.randn(2, 8, 5, 5, device=device).to(memory_format=torch.channels_last).requires_grad_()

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            model(x).float().sum().backward()

    with override(cache_dir=tmp_path), running_alone() if alone else nullcontext():
        report = genesis.tune(step, budget=60)
    directions = collections.Counter(each.problem.direction for each in report.outcomes)
    assert not genesis.torch.report(model).fused  # as without tuning
    assert directions == ({"forward": 2, "input_grad": 2, "weight_grad": 2} if alone else {})
