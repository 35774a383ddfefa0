"""Convolution in groups of few channels, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates.grouped import candidate as module
from genesis.backends.cuda.ops.conv.candidates.grouped import shape as shapes
from genesis.backends.cuda.ops.conv.candidates.grouped.candidate import Grouped, GroupedFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD
from tests.backends.cuda.ops.conv.candidates.against_float64 import (
    DIRECTIONS,
    TORCH,
    check,
    expected_of,
    operands_of,
    problem_of,
    run,
)

# groups, (inputs, outputs) of each, images, (height, width), taps, stride, padding, dilation
CASES = [
    (8, (4, 4), 2, (6, 5), (3, 3), (1, 1), (1, 1), (1, 1)),
    (4, (8, 8), 1, (7, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    (2, (16, 16), 1, (5, 6), (3, 3), (1, 1), (2, 2), (2, 2)),
    (3, (24, 24), 1, (6, 6), (3, 3), (1, 2), (1, 1), (1, 1)),
    (5, (3, 2), 2, (5, 7), (5, 5), (1, 1), (2, 2), (1, 1)),
    (3, (20, 80), 1, (4, 5), (1, 1), (1, 1), (0, 0), (1, 1)),
    (7, (2, 1), 1, (7, 7), (2, 3), (3, 2), (0, 1), (1, 2)),
    (2, (56, 56), 1, (4, 4), (3, 1), (2, 1), (1, 0), (1, 1)),
    (4, (6, 10), 1, (6, 6), (1, 1), (2, 2), (0, 0), (1, 1)),
    (2, (64, 32), 1, (3, 3), (1, 5), (1, 1), (0, 2), (1, 1)),
    (11, (5, 5), 1, (1, 6), (3, 3), (1, 1), (3, 1), (1, 3)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_directions(cuda: Backend, put: Callable[[Any], Any], get: Any, direction: str, case: Any) -> None:
    """Shapes and dtypes in turns, so that each shape meets each dtype somewhere."""
    turn = CASES.index(case) + DIRECTIONS.index(direction)
    for i, dtype in enumerate(TORCH):
        problem = problem_of(direction, case, dtype)
        choice = GroupedFamily().variants(problem)
        check(put, get, problem, choice[(turn + i) % len(choice)])


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_all_shapes(cuda: Backend, put: Callable[[Any], Any], get: Any, dtype: Any, direction: str) -> None:
    problem = problem_of(direction, CASES[0], dtype)
    for candidate in GroupedFamily().variants(problem):
        check(put, get, problem, candidate)


def test_float32_rounded_to_11_bits(cuda: Backend, put: Callable[[Any], Any], get: Any) -> None:
    for direction in DIRECTIONS:
        problem = problem_of(direction, CASES[1], dtypes.float32, precision="high")
        candidate = GroupedFamily().variants(problem)[0]
        assert candidate.arithmetic == "tf32"
        check(put, get, problem, candidate)


@pytest.mark.parametrize(
    "options",
    [
        {"bias": True},
        {"residual": True},
        {"bias": True, "residual": True, "activation": "relu"},
        {"activation": "relu"},
    ],
    ids=str,
)
def test_epilogue(cuda: Backend, put: Callable[[Any], Any], get: Any, options: Any) -> None:
    for dtype in (dtypes.float32, dtypes.bfloat16):
        problem = problem_of(FORWARD, CASES[4], dtype, **options)
        for candidate in GroupedFamily().variants(problem)[::5]:
            check(put, get, problem, candidate)
        if "activation" not in options:
            problem = problem_of(INPUT_GRAD, CASES[1], dtype, **options)
            check(put, get, problem, GroupedFamily().variants(problem)[0])


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_statistics(cuda: Backend, dtype: Any) -> None:
    for case in (CASES[1], CASES[4], (2, (8, 8), 3, (13, 7), (1, 1), (1, 1), (0, 0), (1, 1))):
        problem = problem_of(FORWARD, case, dtype, statistics=True, bias=True)
        bench = ConvBench(problem)
        for candidate in GroupedFamily().variants(problem)[:3:2]:
            built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
            assert bench.error(built) <= max(2 * accuracy.error_bound(problem), 1e-5)


@pytest.mark.parametrize("value", [math.inf, math.nan, 3.4e38, 1e-40])
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
def test_what_a_group_holds_stays_in_it(
    cuda: Backend, put: Callable[[Any], Any], get: Any, direction: str, value: float
) -> None:
    """An infinity, a NaN, or what the parts of float32 can't hold: other groups of the tile are as exact as ever."""
    for dtype in (dtypes.float32, dtypes.bfloat16):
        problem = problem_of(direction, CASES[0], dtype)
        operands = operands_of(problem)
        assert operands[0] is not None
        operands[0][:, 5] = value
        expected = expected_of(problem, operands)
        for candidate in GroupedFamily().variants(problem)[:2]:
            result = get(run(problem, candidate, [None if each is None else put(each) for each in operands])).double()
            others = [channel for channel in range(32) if channel // 4 != 1]
            assert (result[:, others] - expected[:, others]).norm() <= 4e-3 * expected[:, others].norm()
            assert not math.isfinite(value) or dtype is dtypes.bfloat16 or result.isfinite().all()


def test_weight_gradient_of_few_pixels_and_of_many_splits(
    cuda: Backend, put: Callable[[Any], Any], get: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LEAST_STEPS", 1)
    for case in (CASES[0], (4, (8, 8), 3, (13, 11), (3, 3), (1, 1), (1, 1), (1, 1))):
        problem = problem_of(WEIGHT_GRAD, case, dtypes.float32)
        candidate = GroupedFamily().variants(problem)[1]
        assert isinstance(candidate, Grouped)
        num_splits, pixels = module._splits(problem, candidate.shape)
        assert (num_splits - 1) * pixels < problem.num_terms <= num_splits * pixels
        assert num_splits > 1 or problem.num_terms < 2 * candidate.shape.block_k
        check(put, get, problem, candidate)


def test_where_it_is_a_candidate(simulated: Backend) -> None:
    case = (32, (8, 8), 64, (28, 28), (3, 3), (1, 1), (1, 1), (1, 1))
    for direction in DIRECTIONS:
        for dtype in (dtypes.float32, dtypes.bfloat16):
            assert "grouped" in [each.family for each in CONV.candidates(problem_of(direction, case, dtype))]
    assert not GroupedFamily().variants(problem_of(FORWARD, case, dtypes.float64))
    assert not GroupedFamily().variants(problem_of(FORWARD, (1, *case[1:]), dtypes.float32))
    assert not GroupedFamily().variants(problem_of(FORWARD, (8, (1, 1), *case[2:]), dtypes.float32))
    assert not GroupedFamily().variants(problem_of(FORWARD, (2, (256, 256), *case[2:]), dtypes.float32))


@pytest.mark.parametrize(
    ("dtype", "precision", "channels", "direction", "taps", "expected"),
    [
        (dtypes.float32, "high", 16, WEIGHT_GRAD, 3, "32x32x128 pack 2"),
        (dtypes.float32, "highest", 16, WEIGHT_GRAD, 3, "16x64x64 pack 1"),
        (dtypes.float32, "highest", 4, WEIGHT_GRAD, 1, "64x64x64 pack 16"),
        (dtypes.bfloat16, "highest", 16, WEIGHT_GRAD, 3, "64x64x64 pack 4"),
        (dtypes.float32, "high", 16, FORWARD, 3, "128x16x16 pack 1 w4 s3"),
        (dtypes.float32, "high", 12, FORWARD, 3, "128x32x32 pack 2 w4 s1"),
        (dtypes.float32, "high", 32, FORWARD, 3, "128x32x32 pack 1 w4 s3"),
        (dtypes.float32, "high", 32, INPUT_GRAD, 3, "128x32x32 pack 1 w4 s1"),
        (dtypes.float32, "high", 96, FORWARD, 3, "128x128x128 pack 1 w8 s1"),
        (dtypes.float32, "highest", 16, FORWARD, 3, "128x16x16 pack 1 w4 s3"),
        (dtypes.float32, "highest", 32, FORWARD, 3, "128x32x32 pack 1 w8 s3"),
        (dtypes.float32, "highest", 64, INPUT_GRAD, 3, "128x64x64 pack 1 w8 s1"),
        (dtypes.bfloat16, "highest", 16, FORWARD, 3, "128x32x32 pack 2 w4 s3"),
        (dtypes.bfloat16, "highest", 12, FORWARD, 3, "128x16x16 pack 1 w4 s3"),
        (dtypes.bfloat16, "highest", 24, FORWARD, 3, "128x32x32 pack 1 w4 s1"),
        (dtypes.bfloat16, "highest", 56, INPUT_GRAD, 3, "128x64x64 pack 1 w4 s3"),
        (dtypes.bfloat16, "highest", 112, INPUT_GRAD, 3, "64x128x128 pack 1 w4 s3"),
    ],
)
def test_the_most_promising_shape(
    simulated: Backend, dtype: dtypes.DType, precision: str, channels: int, direction: str, taps: int, expected: str
) -> None:
    padding = taps // 2
    case = (64, (channels, channels), 16, (14, 14), (taps, taps), (1, 1), (padding, padding), (1, 1))
    first = GroupedFamily().variants(problem_of(direction, case, dtype, precision=precision))[0]
    assert first.name.startswith(f"grouped/{expected}")


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_shapes(simulated: Backend, direction: str) -> None:
    """Each has a name of its own, by which the store finds it again, and tiles that a tensor core takes."""
    for case in CASES:
        problem = problem_of(direction, case, dtypes.bfloat16)
        variants = GroupedFamily().variants(problem)
        assert len({each.name for each in variants}) == len(variants) > 0
        inputs, outputs = shapes.channels(problem)
        for each in variants:
            found = GroupedFamily().named(problem, each.name)
            assert isinstance(found, Grouped)
            shape = found.shape
            assert min(shape.block_m, shape.block_n, shape.block_k) >= 16
            if direction == WEIGHT_GRAD:
                assert shape.block_m >= shape.pack * outputs
                assert shape.width >= shape.pack * inputs
            else:
                assert shape.block_k >= shape.pack * inputs
                assert shape.block_n >= shape.pack * outputs
