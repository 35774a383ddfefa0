"""Odd channels with zeros behind them: which problems, and against float64."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.candidates.padded.candidate import Padded, PaddedFamily, pad
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates import against_float64
from tests.backends.cuda.ops.conv.candidates.against_float64 import DIRECTIONS, check
from tests.backends.cuda.ops.conv.fuzz import ways

# (input, weight, stride), and the channels of input and result in 16 bits, and in float32
CASES: dict[str, tuple[Any, ...]] = {
    "odd outputs": ((2, 56, 5, 6), (21, 56, 1, 1), (1, 1), (56, 24), (56, 24)),
    "odd inputs": ((2, 19, 5, 6), (24, 19, 1, 1), (1, 1), (24, 24), (20, 24)),
    "both": ((1, 18, 7, 5), (17, 18, 3, 2), (2, 1), (24, 24), (20, 20)),
    "pairs": ((3, 20, 4, 4), (18, 20, 1, 3), (1, 2), (24, 24), (20, 20)),
}
HEAD = ConvProblem(FORWARD, (2, 256, 64, 48), (255, 256, 1, 1), dtype=dtypes.bfloat16)


def problem_of(case: tuple[Any, ...], direction: str, dtype: dtypes.DType, **options: Any) -> ConvProblem:
    return ConvProblem(direction, *case[:3], dtype=dtype, **options)


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_channels_are_multiples_of_16_bytes(case: tuple[Any, ...], dtype: dtypes.DType) -> None:
    wide = pad(problem_of(case, FORWARD, dtype, bias=True, activation="relu"))
    assert wide is not None
    assert (wide.input_shape[1], wide.weight_shape[0]) == case[4 if dtype is dtypes.float32 else 3]
    assert wide.output_shape[2:] == problem_of(case, FORWARD, dtype).output_shape[2:]
    assert (wide.bias, wide.activation, wide.stride) == (True, "relu", case[2])
    assert pad(wide) is None


@pytest.mark.parametrize(
    "change",
    [
        {"weight_shape": (256, 256, 1, 1)},
        {"weight_shape": (15, 256, 1, 1)},
        {"input_shape": (2, 15, 64, 48), "weight_shape": (64, 15, 1, 1)},
        {"input_shape": (2, 510, 64, 48), "groups": 2, "weight_shape": (510, 255, 1, 1)},
        {"dtype": dtypes.float64},
        {"statistics": True},
    ],
    ids=str,
)
def test_others_are_left_as_they_are(change: dict[str, Any]) -> None:
    problem = dataclasses.replace(HEAD, **change)
    assert pad(problem) is None
    assert not list(PaddedFamily(ImplicitGemmFamily()).trials(problem))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_against_float64(cuda: Backend, case: tuple[Any, ...], dtype: dtypes.DType, direction: str) -> None:
    options: list[dict[str, Any]] = [{}]
    if direction != WEIGHT_GRAD:
        options.append({"bias": True, **({"activation": "relu"} if direction == FORWARD else {})})
    for each in options:
        problem = problem_of(case, direction, dtype, **each)
        candidates = list(PaddedFamily(ImplicitGemmFamily()).trials(problem))
        assert candidates
        for candidate in candidates[:2]:
            check(*ways(cuda), problem, candidate)


@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_residual(cuda: Backend, case: tuple[Any, ...], direction: str) -> None:
    """It is as wide as the result."""
    for options in ({}, {"bias": True}):
        problem = problem_of(case, direction, dtypes.float16, residual=True, **options)
        check(*ways(cuda), problem, next(iter(PaddedFamily(ImplicitGemmFamily()).trials(problem))))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nothing_beside_the_result_is_written(cuda: Backend, case: tuple[Any, ...], direction: str) -> None:
    put, get = ways(cuda)
    problem = problem_of(case, direction, dtypes.float32)
    candidate = next(iter(PaddedFamily(ImplicitGemmFamily()).trials(problem)))
    first, second, *_ = against_float64.operands_of(problem)
    found = against_float64.run_within_margins(problem, candidate, put, get, put(first), put(second), None)
    expected = against_float64.expected_of(problem, [first, second, None, None])
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nan_stays_where_it_is(cuda: Backend, direction: str) -> None:
    """A pixel's infinity does not meet the zeros behind it."""
    put, get = ways(cuda)
    problem = problem_of(CASES["both"], direction, dtypes.float32)
    operands = against_float64.operands_of(problem)
    assert operands[0] is not None
    operands[0][0, 2, 1, 1] = math.inf
    candidate = next(iter(PaddedFamily(ImplicitGemmFamily()).trials(problem)))
    result = get(against_float64.run(problem, candidate, [None if each is None else put(each) for each in operands]))
    expected = against_float64.expected_of(problem, operands)
    assert torch.equal(torch.isfinite(result), torch.isfinite(expected))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_names_lead_back(simulated: Backend, direction: str) -> None:
    problem = dataclasses.replace(HEAD, direction=direction, bias=direction != WEIGHT_GRAD)
    family = PaddedFamily(ImplicitGemmFamily())
    for candidate in family.trials(problem):
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, Padded)
        assert restored.name == candidate.name
        assert restored.workspace(problem) == candidate.workspace(problem) > 0
        assert (restored.arithmetic, restored.family) == (candidate.arithmetic, "padded/implicit_gemm")
    assert family.named(problem, "padded/implicit_gemm/x") is None


def test_the_guess(simulated: Backend) -> None:
    """Of large weights; whatever it is, a tuner tries it."""
    family = PaddedFamily(ImplicitGemmFamily())
    exact = dataclasses.replace(HEAD, dtype=dtypes.float32)
    taps = dataclasses.replace(HEAD, weight_shape=(255, 256, 3, 3), padding=(1, 1))
    for problem, is_guess in (
        (HEAD, True),
        (taps, True),
        (exact, True),
        (dataclasses.replace(exact, weight_shape=(21, 256, 1, 1)), True),
        (dataclasses.replace(exact, weight_shape=(19, 128, 1, 1), input_shape=(2, 128, 64, 48)), False),
        (dataclasses.replace(HEAD, weight_shape=(21, 256, 1, 1)), False),
        (dataclasses.replace(HEAD, input_shape=(2, 256, 20, 20)), False),
    ):
        assert bool(list(family.variants(problem))) == is_guess
        assert list(family.trials(problem))
    assert "padded/cudnn" in {each.prefix for each in CONV.families(HEAD)}


@pytest.mark.usefixtures("hopper_there")
@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float32], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_copies_come_before_kernels_that_gather(direction: str, dtype: dtypes.DType) -> None:
    for outputs, inputs, taps in ((255, 256, 1), (256, 255, 1), (130, 129, 3)):
        shapes = (2, inputs, 64, 48), (outputs, inputs, taps, taps)
        problem = ConvProblem(direction, *shapes, padding=(taps // 2,) * 2, dtype=dtype)  # type: ignore[arg-type]
        first = next(each.family for each in CONV.candidates(problem) if each.family != "flat_gemm_warpgroups")
        assert first == "padded/wgmma"


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_candidates_on_a_gpu(gpu: Backend, case: tuple[Any, ...], direction: str) -> None:
    """But for cuDNN's, which a tuner checks first: not all that it lists run."""
    options: list[dict[str, Any]] = [{}]
    if direction != WEIGHT_GRAD:
        options += [{"residual": True}, {"bias": True, "residual": True}]
    for each in options:
        problem = problem_of(case, direction, dtypes.bfloat16, **each)
        padded = [family for family in CONV.families(problem) if isinstance(family, PaddedFamily)]
        ours = [family for family in padded if "cudnn" not in family.prefix]
        candidates = [candidate for family in ours for candidate in itertools.islice(family.trials(problem), 6)]
        assert candidates
        for candidate in candidates:
            check(*ways(gpu), problem, candidate)
