"""The input's gradient of few channels by multiply-adds, against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.candidates.small_c_dgrad.candidate import SmallCDgradFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import streams
from genesis.shapes import channels_last_strides

# input, weight, stride, padding
CASES = [
    ((2, 3, 13, 36), (64, 3, 7, 7), (2, 2), (3, 3)),  # one row of residues at a time, or both; more than one strip
    ((1, 3, 9, 8), (17, 3, 3, 3), (1, 1), (1, 1)),  # all channels at a time
    ((2, 2, 11, 10), (70, 2, 3, 4), (3, 2), (0, 2)),
    ((1, 1, 8, 9), (8, 1, 2, 1), (3, 2), (0, 0)),  # positions that meet no tap
    ((1, 8, 10, 12), (24, 8, 4, 2), (2, 2), (1, 0)),  # some of the channels at a time
    ((1, 3, 6, 5), (1, 3, 2, 3), (1, 2), (4, 5)),  # the first pixel of the gradient is of padding alone
    ((1, 5, 7, 9), (33, 5, 5, 6), (1, 1), (2, 0)),
    ((3, 2, 1, 2), (5, 2, 5, 5), (3, 3), (2, 2)),  # fewer positions than residues
    ((1, 7, 5, 6), (30, 7, 1, 1), (1, 1), (0, 0)),
]


def problem_of(case: Any, **changes: Any) -> ConvProblem:
    return dataclasses.replace(ConvProblem(INPUT_GRAD, *case, dtype=dtypes.float32), **changes)


def operands(problem: ConvProblem) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    grad, weight = (
        torch.randn(shape).contiguous(memory_format=torch.channels_last)
        for shape in (problem.output_shape, problem.weight_shape)
    )
    return grad, weight, torch.randn(problem.input_shape[1])


def results(
    cuda: Backend, put: Callable[[Any], Any], get: Any, problem: ConvProblem, *given: torch.Tensor
) -> dict[str, torch.Tensor]:
    """By name of the candidate."""
    arrays = [put(each) for each in given]
    found = {}
    for candidate in SmallCDgradFamily().variants(problem):
        out = cuda.full(problem.result_shape, float("nan"), problem.dtype)
        out = out.view(problem.result_shape, channels_last_strides(problem.result_shape), 0)
        workspace = cuda.full((candidate.workspace(problem),), 255, dtypes.uint8)
        grad, weight, bias = (each.data_pointer for each in arrays)
        launch = candidate.prepare(problem)
        launch(streams.current_handle(0), out.data_pointer, grad, weight, bias, 0, workspace.data_pointer)
        found[candidate.name] = get(out)
    return found


def expected_of(problem: ConvProblem, grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.grad.conv2d_input(
        problem.input_shape, weight.double(), grad.double(), problem.stride, problem.padding
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_candidate(cuda: Backend, put: Callable[[Any], Any], get: Any, case: Any, bias: bool) -> None:
    problem = problem_of(case, bias=bias)
    grad, weight, addend = operands(problem)
    expected = expected_of(problem, grad, weight) + (addend.double()[:, None, None] if bias else 0)
    found = results(cuda, put, get, problem, grad, weight, addend)
    assert found
    for name, result in found.items():
        assert (result.double() - expected).norm() <= accuracy.error_bound(problem) * expected.norm(), name


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.4028e38, 1e-42, 0.0])
def test_special_values(cuda: Backend, put: Callable[[Any], Any], get: Any, value: float) -> None:
    """They reach the positions whose taps meet them, and no others: no residue has taps of zeros."""
    problem = problem_of(((1, 3, 13, 12), (16, 3, 7, 7), (2, 2), (3, 3)))
    grad, weight, bias = operands(problem)
    grad[0, 5, 3, 2] = value
    expected = expected_of(problem, grad, weight).float()
    finite = expected.isfinite()
    for name, result in results(cuda, put, get, problem, grad, weight, bias).items():
        assert torch.equal(result.isnan(), expected.isnan()), name
        assert torch.equal(result[~finite].nan_to_num(0), expected[~finite].nan_to_num(0)), name
        distance = (result[finite].double() - expected[finite].double()).norm()
        assert distance <= 3e-7 * expected[finite].double().norm(), name


def test_denormals(cuda: Backend, put: Callable[[Any], Any], get: Any) -> None:
    problem = problem_of(((1, 3, 9, 8), (16, 3, 3, 3), (2, 1), (1, 1)))
    _, _, bias = operands(problem)
    torch.manual_seed(0)
    grad = torch.randint(-100, 100, problem.output_shape) * 2.0**-149
    weight = torch.randint(-8, 8, problem.weight_shape).float()
    grad, weight = (each.contiguous(memory_format=torch.channels_last) for each in (grad, weight))
    for name, result in results(cuda, put, get, problem, grad, weight, bias).items():
        assert torch.equal(result.double(), expected_of(problem, grad, weight)), name


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize(
    ("case", "changes", "expected"),
    [
        (CASES[0], {}, True),
        (CASES[0], {"bias": True}, True),
        (CASES[0], {"precision": "high"}, False),
        (CASES[0], {"dtype": dtypes.float64}, False),
        (CASES[0], {"dtype": dtypes.bfloat16}, False),
        (CASES[0], {"direction": FORWARD}, False),
        (CASES[0], {"dilation": (1, 2)}, False),
        (((1, 9, 9, 9), (16, 9, 3, 3), (1, 1), (1, 1)), {}, False),  # not few
        (((1, 4, 9, 9), (16, 2, 3, 3), (1, 1), (1, 1)), {"groups": 2}, False),
        (((1, 3, 9, 9), (129, 3, 3, 3), (1, 1), (1, 1)), {}, False),  # more channels than the lanes of a warp hold
        (((1, 3, 32, 32), (64, 3, 11, 11), (4, 4), (2, 2)), {}, True),  # one row of residues has 33 taps
        (((1, 3, 32, 32), (64, 3, 11, 11), (1, 1), (5, 5)), {}, False),  # more taps than registers
        (((0, 3, 9, 9), (16, 3, 3, 3), (1, 1), (1, 1)), {}, False),
    ],
)
def test_which_problems(case: Any, changes: dict[str, Any], expected: bool) -> None:
    problem = problem_of(case, **changes)
    variants = SmallCDgradFamily().variants(problem)
    assert bool(variants) == expected
    assert all(CONV.named(problem, each.name) is not None for each in variants)


@pytest.mark.usefixtures("simulated")
def test_the_guess_for_first_layers() -> None:
    """In full precision, where a window of all residues would have zeros; 16 bits and TF32 are left to others."""
    stem = problem_of(((32, 3, 224, 224), (64, 3, 7, 7), (2, 2), (3, 3)))
    for problem in (stem, problem_of(((32, 3, 224, 224), (64, 3, 3, 3), (1, 1), (1, 1)))):
        assert next(CONV.candidates(problem)).family == SmallCDgradFamily.prefix
    for others in ({"precision": "high"}, {"dtype": dtypes.float16}):
        names = [each.family for each in CONV.candidates(dataclasses.replace(stem, **others))]
        assert SmallCDgradFamily.prefix not in names
