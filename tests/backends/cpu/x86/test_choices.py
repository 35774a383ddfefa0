"""Every candidate of a convolution is right, and a tuned model runs on what was found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import genesis
from genesis import nn
from genesis.backends.cpu import conv, weight_gradient
from genesis.backends.cpu.x86 import changing, choices, machine, packed, plans
from genesis.backends.cpu.x86.choices import ConvChoice
from genesis.backends.cpu.x86.problem import Problem
from genesis.backends.engine import host
from genesis.records import ConvGeometry
from genesis.settings import override

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")

# x, weight, stride, padding, dilation
CASES = {
    "3×3": ((2, 32, 9, 8), (48, 32, 3, 3), 1, 1, 1),
    "strides": ((2, 32, 9, 8), (32, 32, 3, 3), 2, 1, 1),
    "dilation": ((1, 16, 12, 12), (16, 16, 3, 3), 1, 2, 2),
    "1×1": ((2, 64, 7, 7), (32, 64, 1, 1), 1, 0, 1),
    "depthwise": ((2, 32, 9, 8), (32, 1, 3, 3), 1, 1, 1),
}


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[Path]:
    with override(cache_dir=tmp_path):
        yield tmp_path


def problem_of(case: str, has_residual: bool = False, activation: str | None = None) -> Problem:
    shape, weight, stride, padding, dilation = CASES[case]
    groups = shape[1] if weight[1] == 1 else 1
    geometry = ConvGeometry((stride,) * 2, (padding,) * 2, (dilation,) * 2, groups)
    strides = shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]
    return Problem(shape, strides, weight, geometry, has_residual, has_residual, activation)


def choice_of(direction: str, problem: Problem) -> ConvChoice:
    return ConvChoice(direction, problem, choices.PLAIN, machine.vectors(), 1, "highest")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("has_residual", "activation"), [(False, None), (True, "relu"), (True, "relu6"), (False, "relu6")]
)
def test_candidates_with_packed_weights(case: str, has_residual: bool, activation: str | None) -> None:
    problem = problem_of(case, has_residual, activation)
    bench = packed._bench(problem)
    found = [name for name in choice_of(choices.PACKED, problem).candidates if name != choices.PLAIN]
    assert choices.BLOCKED in found
    assert (choices.COLUMNS in found) == (case == "1×1")
    for name in found:
        assert bench.error(name) < 5e-7, name
        assert bench.milliseconds(name) > 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("direction", [choices.FORWARD, choices.INPUT_GRAD])
def test_candidates_with_changing_weights(case: str, direction: str) -> None:
    if direction == choices.INPUT_GRAD and case == "strides":
        return
    problem, wide = problem_of(case), machine.vectors() == "avx512"
    plain = conv._by_onednn if direction == choices.FORWARD else conv.input_grad_by_onednn
    bench = changing._bench(direction, problem, wide, 1, plain)
    for name in choice_of(direction, problem).candidates:
        assert bench.error(name) < 5e-7, name


def test_candidates_of_a_weight_gradient() -> None:
    for case in ("3×3", "strides", "1×1"):
        problem = problem_of(case)
        bench = weight_gradient._bench(problem, conv._weight_grad_plain)
        for name in choice_of(choices.WEIGHT_GRAD, problem).candidates:
            assert bench.error(name) < 5e-7, name


def test_a_tuned_training_step_takes_what_was_found(store: Path) -> None:
    model, x = nn.Conv2d(16, 32, 3, padding=1), genesis.randn(2, 16, 8, 8, requires_grad=True)
    report = genesis.tune(model, x, budget=20)
    found = {json.loads(each.problem.key)["op"]: each.candidate.name for each in report.outcomes}  # type: ignore[union-attr]
    assert len(report) >= 2
    assert "conv forward" in found
    assert len(list((store / "plans").glob("*.sqlite"))) == 1
    assert all(f"{each.candidate.name}" in str(report) for each in report.outcomes)
    host.forget()
    model(x).sum().backward()
    assert f"{found['conv forward']} (stored)" in "\n".join(genesis.cuda.plans.describe_plans())
    assert len(genesis.tune(model, x)) == 0, "all of it is known now"


def test_replays_and_folded_layers_take_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the guess, which is replaced by the slowest candidate here."""
    x, weight = torch.randn(1, 16, 8, 8).contiguous(memory_format=torch.channels_last), torch.randn(16, 16, 3, 3)
    conv_ = packed.PackedConv(weight, None, ConvGeometry((1, 1), (1, 1), (1, 1), 1))
    exact = torch.conv2d(x.double(), weight.double(), padding=1)
    for name in (choices.BLOCKED, choices.WEIGHTS, choices.TILES):
        monkeypatch.setattr(host, "chosen", lambda problem, bench, name=name: name)
        host.forget()  # plans are made anew
        assert isinstance(conv_.plan(x, False, None), packed.BlockedPlan) == (name == choices.BLOCKED)
        assert (conv_(x, None, None) - exact).norm() < 3e-7 * exact.norm()


def test_the_guess_comes_first_and_the_processor_names_the_store() -> None:
    problem = problem_of("3×3")
    best = plans.guess(problem, machine.vectors() == "avx512", 1)
    choice = ConvChoice(choices.PACKED, problem, best, machine.vectors(), 1, "highest")
    assert choice.candidates[0] == best
    assert str(machine.vectors()) in choice.platform
    assert choice.platform.isascii()
    other = ConvChoice(choices.PACKED, problem, best, machine.vectors(), 2, "highest")
    assert choice.key != other.key
