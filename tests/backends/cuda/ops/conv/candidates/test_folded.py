"""Taps as channels: which problems, and against float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.ops.conv import families
from genesis.backends.cuda.ops.conv.candidates.folded import FoldedFamily, fold
from genesis.backends.cuda.ops.conv.candidates.implicit_gemm.candidate import ImplicitGemmFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates.against_float64 import DIRECTIONS, check
from tests.backends.cuda.ops.conv.fuzz import ways

# (input, weight, stride), and the folded input, weight and stride
CASES: dict[str, tuple[Any, ...]] = {
    "patches": ((2, 3, 8, 12), (16, 3, 4, 4), (4, 4), (2, 12, 8, 3), (16, 12, 4, 1), (4, 1)),
    "halves": ((2, 16, 6, 8), (24, 16, 2, 2), (2, 2), (2, 32, 6, 4), (24, 32, 2, 1), (2, 1)),
    "whole image": ((3, 16, 5, 4), (24, 16, 5, 4), (1, 1), (3, 320, 1, 1), (24, 320, 1, 1), (1, 1)),
    "whole rows": ((2, 16, 6, 4), (24, 16, 3, 4), (1, 1), (2, 64, 6, 1), (24, 64, 3, 1), (1, 1)),
    "rows one after the other": ((2, 16, 6, 4), (24, 16, 3, 4), (3, 2), (2, 192, 2, 1), (24, 192, 1, 1), (1, 1)),
    "columns": ((2, 16, 5, 6), (8, 16, 1, 3), (2, 3), (2, 48, 5, 2), (8, 48, 1, 1), (2, 1)),
    "a tall image": ((2, 16, 6, 1), (8, 16, 2, 1), (2, 1), (2, 32, 3, 1), (8, 32, 1, 1), (1, 1)),
}
REFUSED: dict[str, ConvProblem] = {
    "one tap": ConvProblem(FORWARD, (2, 16, 6, 6), (8, 16, 1, 1), dtype=dtypes.float32),
    "windows overlap": ConvProblem(FORWARD, (2, 16, 6, 6), (8, 16, 3, 3), (2, 2), dtype=dtypes.float32),
    "windows leave gaps": ConvProblem(FORWARD, (2, 16, 6, 6), (8, 16, 2, 2), (3, 3), dtype=dtypes.float32),
    "a column is left": ConvProblem(FORWARD, (2, 16, 6, 7), (8, 16, 2, 2), (2, 2), dtype=dtypes.float32),
    "padding": ConvProblem(FORWARD, (2, 16, 6, 6), (8, 16, 2, 2), (2, 2), (0, 1), dtype=dtypes.float32),
    "dilation": ConvProblem(FORWARD, (2, 16, 6, 6), (8, 16, 2, 2), (2, 2), (0, 0), (2, 2), dtype=dtypes.float32),
    "groups": ConvProblem(FORWARD, (2, 16, 6, 6), (8, 8, 2, 2), (2, 2), groups=2, dtype=dtypes.float32),
    "a bias for each input": ConvProblem(
        INPUT_GRAD, (2, 16, 6, 6), (8, 16, 2, 2), (2, 2), bias=True, dtype=dtypes.float32
    ),
}

WORKSPACE = 1 << 28


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_taps_become_channels(direction: str, case: Any) -> None:
    input, weight, stride, *expected = case
    problem = ConvProblem(direction, input, weight, stride, dtype=dtypes.bfloat16, alignment=8, deterministic=True)
    folded = fold(problem)
    assert folded is not None
    assert [folded.input_shape, folded.weight_shape, folded.stride] == expected
    assert (folded.flops, folded.bytes, folded.direction) == (problem.flops, problem.bytes, direction)
    assert (folded.alignment, folded.deterministic) == (8, True)


@pytest.mark.parametrize("problem", REFUSED.values(), ids=REFUSED)
def test_windows_that_are_no_tiles(problem: ConvProblem) -> None:
    assert fold(problem) is None
    assert not list(FoldedFamily(ImplicitGemmFamily()).variants(problem))


def test_one_row_of_taps_is_left_where_rows_do_not_follow() -> None:
    """Two rows of an image lie between the first taps of a patch and its second ones."""
    folded = fold(ConvProblem(FORWARD, (2, 3, 8, 8), (16, 3, 4, 4), (4, 4), dtype=dtypes.float32))
    assert folded is not None
    assert fold(folded) is None


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_against_float64(cuda: Backend, case: Any, dtype: dtypes.DType, direction: str) -> None:
    options: dict[str, Any] = {"residual": True} if direction == INPUT_GRAD else {}
    if direction == FORWARD:
        options = {"bias": True, "residual": True, "activation": "relu"}
    problem = ConvProblem(direction, *case[:3], dtype=dtype, **options)
    candidates = list(FoldedFamily(ImplicitGemmFamily()).variants(problem))
    assert candidates
    for candidate in candidates[:2]:
        check(*ways(cuda), problem, candidate)
        named = CONV.named(problem, candidate.name)
        assert named is not None
        assert named.name == candidate.name


@pytest.mark.gpu
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_family(gpu: Backend, case: Any, dtype: dtypes.DType, direction: str) -> None:
    problem = ConvProblem(direction, *case[:3], dtype=dtype)
    tried = []
    for family in families.in_order(problem):
        is_library = family.prefix.rpartition("/")[2] in ("cudnn", "cublaslt")  # in float32 the tuner checks each
        if isinstance(family, FoldedFamily) and not (is_library and dtype is dtypes.float32):
            buildable = (each for each in family.variants(problem) if build(each, problem, WORKSPACE) is not None)
            for candidate in itertools.islice(buildable, 2):
                check(*ways(gpu), problem, candidate)
                tried.append(candidate.name)
    assert tried


@pytest.mark.parametrize("direction", [FORWARD, WEIGHT_GRAD])
def test_it_is_the_guess(simulated: Backend, direction: str) -> None:
    problem = ConvProblem(direction, (2, 16, 6, 6), (24, 16, 2, 2), (2, 2), dtype=dtypes.float32)
    assert next(CONV.candidates(problem)).name.startswith("folded/")


def test_statistics_are_of_the_same_channels(simulated: Backend) -> None:
    problem = ConvProblem(FORWARD, (2, 16, 6, 6), (24, 16, 2, 2), (2, 2), dtype=dtypes.float32, statistics=True)
    guess = next(CONV.candidates(problem))
    assert guess.name.startswith("folded/with_statistics_pass/")
    assert guess.parts(problem).number > 0
