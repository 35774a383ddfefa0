"""1×1 convolutions whose pixels stream past, in CUDA C++: on the host against float64, compiled, and on a GPU."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.flat_gemm.candidate import FlatGemm, FlatGemmFamily
from genesis.backends.cuda.ops.conv.candidates.flat_gemm.shape import Tile, WeightGradWork, kind_of_work
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.dtypes import DType
from tests.backends.cuda.ops.conv.candidates import against_float64
from tests.backends.cuda.ops.conv.candidates.against_float64 import product_of

DTYPES = (dtypes.float16, dtypes.bfloat16)
DIRECTIONS = against_float64.DIRECTIONS

# (images, inputs, height, outputs), (pixels, warps, stages, blocks) of the forward, and of the weight's gradient
CASES = [
    ((1, 21, 5, 40), (16, 4, 2, 1), (32, 2, 2, 1)),  # odd channels; fewer pixels than a tile has
    ((2, 40, 9, 21), (16, 4, 3, 1), (128, 8, 3, 1)),
    ((3, 24, 7, 16), (32, 4, 4, 1), (64, 4, 4, 1)),  # the last step is of eight terms
    ((1, 18, 11, 36), (32, 4, 2, 2), (128, 8, 2, 2)),  # pairs of channels
    ((2, 3, 13, 5), (16, 8, 2, 1), (64, 4, 2, 1)),
    ((1, 64, 10, 48), (16, 4, 2, 1), (64, 4, 2, 1)),
    ((1, 1, 8, 1), (16, 4, 2, 1), (64, 4, 2, 1)),
]
SHAPES = [  # images, inputs, height, outputs: of heads, and of layers with few channels
    (4, 256, 64, 21), (8, 64, 64, 19), (16, 96, 40, 85), (64, 48, 56, 12), (64, 48, 56, 104), (32, 160, 28, 80),
    (8, 80, 16, 480), (2, 18, 301, 36), (3, 33, 77, 91),
]  # fmt: skip
ARCHS = ("sm_80", "sm_90", "sm_100")
on_host_only = pytest.mark.parametrize("cuda", ["simulated"], indirect=True)


def candidate_of(case: int, direction: str) -> FlatGemm:
    return FlatGemm(Tile(*CASES[case][2 if direction == WEIGHT_GRAD else 1]))


@on_host_only
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, direction: str
) -> None:
    """In both types in turns: they differ in their conversions only."""
    problem = product_of(CASES[case][0], DTYPES[(case + DIRECTIONS.index(direction)) % 2], direction)
    against_float64.check(put, get, problem, candidate_of(case, direction))


@on_host_only
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("case", [0, 1, 2])
def test_epilogues_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, direction: str
) -> None:
    relu = {"activation": "relu"} if direction == FORWARD else {}
    problem = product_of(CASES[case][0], DTYPES[case % 2], direction, bias=True, **relu)
    against_float64.check(put, get, problem, candidate_of(case, direction))


@on_host_only
@pytest.mark.parametrize("case", [0, 1, 2, 4])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_nothing_beside_the_result_is_written(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, direction: str, case: int
) -> None:
    problem = product_of(CASES[case][0], dtypes.bfloat16, direction)
    first, second, _, _ = against_float64.operands_of(problem)
    found = against_float64.run_within_margins(
        problem, candidate_of(case, direction), put, get, put(first), put(second), None
    )
    expected = against_float64.expected_of(problem, [first, second, None, None])
    assert float((found - expected).norm() / expected.norm()) <= 2 * accuracy.error_bound(problem)


@on_host_only
@pytest.mark.parametrize("case", [0, 2, 3])
def test_nan_and_infinity_stay_where_they_are(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int
) -> None:
    """Also those of the next pixel, which is read beyond a pixel's last channel."""
    problem = product_of(CASES[case][0], dtypes.bfloat16, FORWARD, activation="relu")
    operands = against_float64.operands_of(problem)
    assert operands[0] is not None
    operands[0][0, :, 0, 3], operands[0][0, 1, 2, 2] = math.nan, math.inf
    given = [None if each is None else put(each) for each in operands]
    result = get(against_float64.run(problem, candidate_of(case, FORWARD), given))
    assert torch.isnan(result[0, :, 0, 3]).all()
    assert sorted({*result[0, :, 2, 2].tolist()}) == [0, math.inf]
    result[0, :, 0, 3] = result[0, :, 2, 2] = 0
    assert torch.isfinite(result).all()


def _drawn(seed: int) -> tuple[ConvProblem, FlatGemm]:
    """A problem, and one of all tiles that are possible."""
    draw = random.Random(seed)
    channels = [draw.choice((draw.randint(1, 20), 8 * draw.randint(1, 8), draw.randint(1, 70))) for _ in "io"]
    direction = draw.choice(DIRECTIONS)
    case = (draw.randint(1, 3), channels[0], draw.randint(1, 12), channels[1])
    problem = product_of(case, draw.choice(DTYPES), direction, bias=direction != WEIGHT_GRAD and draw.random() < 0.5)
    works = kind_of_work(problem).of_all(problem)
    return problem, FlatGemm(draw.choice([work.tile for work in works if work.is_possible()]))


@on_host_only
@pytest.mark.parametrize("seed", range(12))
def test_random_problems_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, seed: int
) -> None:
    against_float64.check(put, get, *_drawn(seed))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_the_choice(simulated: Backend, on_a_large_gpu: None, case: tuple[int, ...], direction: str) -> None:
    """Names lead back to what is tried, and tiles cover all pixels."""
    problem, family = product_of(case, dtypes.bfloat16, direction), FlatGemmFamily()
    choice = family.trials(problem)
    has_vectors, size = case[1] % 8 == case[3] % 8 == 0, math.prod(problem.weight_shape)
    assert len(choice) == len({candidate.name for candidate in choice}) <= (4 if has_vectors else 10)
    assert bool(choice) == (not has_vectors or size <= 1 << 13)
    assert len(choice) > 2 or has_vectors or size > 1 << 14
    for candidate in choice:
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, FlatGemm)
        assert restored.name == candidate.name
        assert restored.supports(problem)
        work = kind_of_work(problem)(problem, restored.tile)
        covered = work.grid * work.block_pixels * work.iterations
        assert work.num_pixels <= covered < work.num_pixels + (work.grid + work.iterations) * work.block_pixels
        assert (restored.workspace(problem) > 0) == (direction == WEIGHT_GRAD)


def test_rows_at_odd_addresses_are_its_own(simulated: Backend, on_a_large_gpu: None) -> None:
    """Elsewhere it is measured, and others come first."""
    for outputs, is_guess in ((21, True), (20, True), (24, False)):
        for direction in DIRECTIONS:
            problem = product_of((4, 64, 64, outputs), dtypes.bfloat16, direction)
            assert (next(iter(CONV.candidates(problem))).family == "flat_gemm") == is_guess
            assert FlatGemmFamily().trials(problem)


@pytest.mark.parametrize(
    "name",
    [
        "x", "16", "16 w8 s3", "16 w8 s0 b1", "24 w8 s3 b1", "16 w8 s1 b1", "16 w32 s3 b1", "16 w8 s3 b9",
        "512 w8 s4 b4", "64 w16 s2 b1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_names_of_no_tile(simulated: Backend, on_a_large_gpu: None, name: str, direction: str) -> None:
    problem = product_of(SHAPES[0], dtypes.bfloat16, direction)
    candidate = FlatGemmFamily().named(problem, f"flat_gemm/{name}")
    assert candidate is None or not candidate.supports(problem)


def test_what_it_leaves_to_others(simulated: Backend, on_a_large_gpu: None) -> None:
    family, fits = FlatGemmFamily(), product_of((4, 64, 64, 20), dtypes.float16, FORWARD)
    assert family.trials(fits)
    assert family.trials(dataclasses.replace(fits, bias=True, activation="relu"))
    others: list[dict[str, Any]] = [
        {"dtype": dtypes.float32},
        {"residual": True},
        {"alignment": 8},
        {"statistics": True},
        {"stride": (2, 2)},
        {"padding": (1, 1)},
        {"weight_shape": (20, 64, 3, 3)},
        {"weight_shape": (20, 32, 1, 1), "groups": 2},
        {"weight_shape": (600, 64, 1, 1)},
        {"input_shape": (1, 64, 9, 14)},
    ]
    for each in others:
        assert not family.trials(dataclasses.replace(fits, **each))


def test_long_chains_are_refused(simulated: Backend, on_a_large_gpu: None) -> None:
    """Tensor cores cut sums off: a warp adds up no more than 65,536 pixels."""
    problem = product_of((16, 16, 300, 16), dtypes.bfloat16, WEIGHT_GRAD)
    works = [WeightGradWork(problem, tile) for tile in WeightGradWork.tiles]
    assert {work.is_possible() for work in works} == {False, True}
    assert all(work.iterations * work.tile.pixels <= 65536 * work.tile.warps for work in works if work.is_possible())


def test_without_a_gpu_others_compute(simulated: Backend) -> None:
    assert not FlatGemmFamily().trials(product_of(SHAPES[0], dtypes.bfloat16, FORWARD))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kernels_compile(simulated: Backend, on_a_large_gpu: None, direction: str, arch: str) -> None:
    options = {} if direction == WEIGHT_GRAD else {"bias": True}
    for case, dtype in itertools.product((0, 1, 2), DTYPES):
        name, macros = candidate_of(case, direction).program(product_of(CASES[case][0], dtype, direction, **options))
        assert programs.cubin(name, programs.options(macros), arch)[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_on_a_gpu(gpu: Backend, direction: str, dtype: DType) -> None:
    for case, has_bias in itertools.product(range(len(CASES)), (False, True)):
        bias = {"bias": has_bias and direction != WEIGHT_GRAD}
        _check_on_gpu(product_of(CASES[case][0], dtype, direction, **bias), candidate_of(case, direction))


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_choice_on_a_gpu(gpu: Backend, case: tuple[int, ...]) -> None:
    for direction in DIRECTIONS:
        problem = product_of(case, dtypes.bfloat16, direction)
        for candidate in FlatGemmFamily().trials(problem):
            _check_on_gpu(problem, candidate)


def _check_on_gpu(problem: ConvProblem, candidate: Candidate[ConvProblem]) -> None:
    built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
    few = 2 if math.prod(problem.result_shape) < 200 else 1
    assert ConvBench(problem).error(built) <= few * accuracy.error_bound(problem), f"{problem} {candidate.name}"
