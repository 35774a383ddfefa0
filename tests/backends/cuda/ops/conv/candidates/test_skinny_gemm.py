"""1×1 convolutions of few pixels in CUDA C++: compiled for the host against float64, for GPUs, and run on one."""

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
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm import shape
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.candidate import SkinnyGemm, SkinnyGemmFamily
from genesis.backends.cuda.ops.conv.candidates.skinny_gemm.shape import Tile, Work
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.dtypes import DType
from tests.backends.cuda.ops.conv.candidates import against_float64

DTYPES = (dtypes.float32, dtypes.float16, dtypes.bfloat16)
DIRECTIONS = against_float64.DIRECTIONS

# (images, inputs, size, outputs), (rows, columns, lanes, down, across, splits) of the forward, and of both gradients
CASES = [
    ((1, 40, 1, 24), (1, 4, 8, 1, 4, 1), (2, 4, 8, 1, 1, 4)),  # one pixel
    ((3, 26, 1, 10), (2, 2, 4, 1, 4, 2), (4, 2, 4, 1, 1, 8)),  # no tile is whole
    ((5, 37, 1, 11), (4, 2, 32, 1, 1, 2), (4, 4, 8, 2, 1, 4)),  # odd channels
    ((2, 10, 2, 33), (4, 4, 2, 2, 8, 1), (2, 2, 4, 4, 1, 4)),  # fewer terms than a warp has lanes
    ((4, 72, 1, 16), (2, 1, 4, 2, 4, 4), (8, 8, 2, 1, 1, 32)),  # more lanes than results of a lane
    ((2, 64, 3, 48), (8, 8, 8, 2, 2, 2), (8, 4, 16, 1, 1, 4)),
    ((33, 6, 1, 3), (1, 1, 1, 4, 4, 4), (1, 1, 1, 4, 1, 64)),  # one result of a thread, and one lane
    ((9, 130, 1, 17), (4, 4, 16, 1, 2, 2), (4, 2, 32, 1, 1, 8)),
]
SHAPES = [  # images, inputs, size, outputs of squeeze-and-excite layers and classifiers
    (64, 440, 1, 110), (64, 110, 1, 440), (32, 2016, 1, 224), (32, 224, 1, 2016), (8, 48, 1, 1152), (8, 1152, 1, 48),
    (64, 10, 1, 240), (64, 240, 1, 10), (1, 2048, 1, 1000), (2, 896, 7, 224), (13, 111, 1, 27),
]  # fmt: skip
ARCHS = ("sm_80", "sm_90", "sm_100")


def _problem(case: tuple[int, ...], dtype: DType, direction: str, **options: Any) -> ConvProblem:
    images, inputs, size, outputs = case
    return ConvProblem(direction, (images, inputs, size, size), (outputs, inputs, 1, 1), dtype=dtype, **options)


def _candidate(case: int, direction: str) -> SkinnyGemm:
    return SkinnyGemm(Tile(*CASES[case][1 if direction == FORWARD else 2]))


on_host_only = pytest.mark.parametrize("cuda", ["simulated"], indirect=True)


@on_host_only
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, direction: str
) -> None:
    """In float32, and in the 16-bit types in turns: they differ in their conversions only."""
    left_out = DTYPES[1 + (case + DIRECTIONS.index(direction)) % 2]
    for dtype in DTYPES:
        if dtype is not left_out:
            problem = _problem(CASES[case][0], dtype, direction)
            against_float64.check(put, get, problem, _candidate(case, direction))


@on_host_only
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("case", [1, 2, 5])
def test_epilogues_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, direction: str
) -> None:
    relu = {"activation": "relu"} if direction == FORWARD else {}
    epilogues: list[dict[str, Any]] = [{"bias": True}, {"residual": True}, {"bias": True, "residual": True, **relu}]
    for dtype, epilogue in zip(DTYPES, epilogues, strict=True):
        problem = _problem(CASES[case][0], dtype, direction, **epilogue)
        against_float64.check(put, get, problem, _candidate(case, direction))


@on_host_only
@pytest.mark.parametrize("alignment", [2, 4, 8])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_unaligned_operands(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, direction: str, alignment: int
) -> None:
    problem = _problem(CASES[5][0], dtypes.float16, direction, alignment=alignment)
    candidate = _candidate(5, direction)
    assert Work(problem, candidate.tile).vector == min(alignment // 2, 4 if direction != FORWARD else 8)
    against_float64.check(put, get, problem, candidate)


@on_host_only
def test_nan_and_infinity_pass_through(cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any) -> None:
    """ReLU keeps NaN; what a pixel has does not reach its neighbours, which share a tile with it."""
    problem = _problem(CASES[1][0], dtypes.float32, FORWARD, activation="relu")
    operands = against_float64.operands_of(problem)
    assert operands[0] is not None
    operands[0][0, 3], operands[0][1, 5] = math.nan, math.inf
    operands = [None if each is None else put(each) for each in operands]
    result = get(against_float64.run(problem, _candidate(1, FORWARD), operands)).flatten(1)
    assert torch.isnan(result[0]).all()
    assert sorted({*result[1].tolist()}) == [0, math.inf]
    assert torch.isfinite(result[2]).all()


def _drawn(seed: int) -> tuple[ConvProblem, SkinnyGemm]:
    """A problem, and one of all tiles that are possible."""
    draw = random.Random(seed)
    images, size = draw.choice(((1, 1), (draw.randint(2, 40), 1), (draw.randint(1, 5), 3)))
    inputs, outputs = (draw.choice((draw.randint(1, 20), 8 * draw.randint(1, 8), draw.randint(1, 70))) for _ in "io")
    dtype, direction = draw.choice(DTYPES), draw.choice(DIRECTIONS)
    options: dict[str, Any] = {"alignment": draw.choice((dtype.itemsize, 8, 16, 16))}
    if direction != WEIGHT_GRAD:
        options |= {"bias": draw.random() < 0.5, "residual": draw.random() < 0.5}
    problem = _problem((images, inputs, size, outputs), dtype, direction, **options)
    tiles = [tile for tile in shape.tiles(problem) if Work(problem, tile).is_possible()]
    return problem, SkinnyGemm(draw.choice(tiles))


@on_host_only
@pytest.mark.parametrize("seed", range(16))
def test_random_problems_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, seed: int
) -> None:
    against_float64.check(put, get, *_drawn(seed))


@on_host_only
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_same_bits(cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, direction: str) -> None:
    """And every result is written: what the tuner checks is right, too."""
    problem = _problem((4, 24, 1, 20), dtypes.float32, direction, deterministic=True)
    candidate = SkinnyGemmFamily().trials(problem)[0]
    assert ConvBench(problem).error(Built(candidate, candidate.prepare(problem), 0)) <= accuracy.error_bound(problem)
    operands = [None if each is None else put(each) for each in against_float64.operands_of(problem)]
    first, second = (get(against_float64.run(problem, candidate, operands)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_the_choice(
    simulated: Backend, on_a_large_gpu: None, case: tuple[int, ...], dtype: DType, direction: str
) -> None:
    """Names lead back to what is tried, the guess first; it differs in what a block has, and covers all there is."""
    problem, family = _problem(case, dtype, direction), SkinnyGemmFamily()
    choice = family.trials(problem)
    assert 6 <= len(choice) == len({candidate.name for candidate in choice}) <= 10
    if family.variants(problem):
        assert next(iter(CONV.candidates(problem))).name == choice[0].name
    works = []
    for candidate in choice:
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, SkinnyGemm)
        assert restored.name == candidate.name
        assert restored.workspace(problem) == 0
        works.append(Work(problem, restored.tile))
    assert len({work.block for work in works}) >= 3
    for work in works:
        rows, columns = (-(-size // own) for size, own in zip(work.sizes, work.block, strict=True))
        assert work.grid == rows * columns
        terms = work.vector * work.tile.lanes if direction == FORWARD else shape._TERMS
        assert work.steps * work.tile.splits * terms >= problem.num_terms


@pytest.mark.parametrize(
    ("case", "dtype", "precision", "direction", "is_guess"),
    [
        ((1024, 72, 1, 72), dtypes.float32, "highest", FORWARD, True),
        ((1025, 128, 1, 128), dtypes.float32, "highest", FORWARD, False),
        ((64, 2016, 1, 224), dtypes.float32, "highest", WEIGHT_GRAD, True),
        ((1, 2048, 1, 1000), dtypes.float32, "highest", WEIGHT_GRAD, False),
        ((256, 64, 1, 64), dtypes.float32, "high", FORWARD, True),
        ((257, 64, 1, 64), dtypes.float32, "high", FORWARD, False),
        ((256, 64, 1, 64), dtypes.bfloat16, "highest", FORWARD, True),
        ((257, 64, 1, 64), dtypes.bfloat16, "highest", FORWARD, False),
        ((32, 2016, 1, 224), dtypes.bfloat16, "highest", FORWARD, True),
        ((32, 2016, 1, 224), dtypes.bfloat16, "highest", WEIGHT_GRAD, False),
        ((256, 2048, 1, 1000), dtypes.bfloat16, "highest", FORWARD, False),
    ],
    ids=str,
)
def test_beyond_few_pixels_others_come_first(
    simulated: Backend, on_a_large_gpu: None, case: tuple[int, ...], dtype: DType, precision: str, direction: str,
    is_guess: bool,
) -> None:  # fmt: skip
    problem = _problem(case, dtype, direction, precision=precision)
    family = SkinnyGemmFamily()
    assert family.trials(problem)
    assert bool(family.variants(problem)) == is_guess
    assert (next(iter(CONV.candidates(problem))).family == family.prefix) == is_guess


@pytest.mark.parametrize(
    "name",
    [
        "x", "4x4", "4x4 l32 g1x1 s0", "3x4 l32 g1x1 s1", "4x4 l32 g1x1 s3", "4x4 l64 g1x1 s1", "4x4 l8 g1x1 s1",
        "16x8 l32 g1x1 s1", "4x4 l32 g8x8 s8", "8x8 l32 g1x1 s32", "4x4 l32 g1x1 s2048", "4x4 l32 g1x1 s1 b2",
    ],
)  # fmt: skip
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_names_of_no_tile(simulated: Backend, on_a_large_gpu: None, name: str, direction: str) -> None:
    problem = _problem(SHAPES[0], dtypes.float32, direction)
    candidate = SkinnyGemmFamily().named(problem, f"skinny_gemm/{name}")
    assert candidate is None or not candidate.supports(problem)


def test_gradients_have_one_group_across(simulated: Backend, on_a_large_gpu: None) -> None:
    for direction in DIRECTIONS:
        candidate = SkinnyGemm(Tile(4, 4, 8, 1, 4, 4))
        assert candidate.supports(_problem(SHAPES[0], dtypes.float32, direction)) == (direction == FORWARD)


def test_long_chains_are_refused(simulated: Backend, on_a_large_gpu: None) -> None:
    """A thread that adds up all terms would be as far off as the bound allows."""
    problem = _problem((32, 2016, 1, 224), dtypes.float32, FORWARD)
    assert not SkinnyGemm(Tile(4, 4, 1, 4, 8, 1)).supports(problem)
    assert SkinnyGemm(Tile(4, 4, 16, 1, 2, 1)).supports(problem)


def test_what_it_leaves_to_others(simulated: Backend, on_a_large_gpu: None) -> None:
    family = SkinnyGemmFamily()
    fits = _problem((64, 440, 1, 110), dtypes.float32, FORWARD)
    assert family.trials(fits)
    assert family.trials(dataclasses.replace(fits, bias=True, residual=True, activation="relu", precision="medium"))
    others: list[dict[str, Any]] = [
        {"dtype": dtypes.float64},
        {"input_shape": (4097, 440, 1, 1)},
        {"input_shape": (64, 440, 8, 9)},
        {"input_shape": (64, 440, 3, 3), "stride": (2, 2)},
        {"padding": (1, 1)},
        {"input_shape": (64, 440, 3, 3), "weight_shape": (110, 440, 3, 3)},
        {"weight_shape": (110, 220, 1, 1), "groups": 2},
        {"alignment": 2},
        {"statistics": True},
    ]
    for each in others:
        assert not family.trials(dataclasses.replace(fits, **each))


def test_without_a_gpu_others_compute(simulated: Backend) -> None:
    assert not SkinnyGemmFamily().trials(_problem(SHAPES[0], dtypes.float32, FORWARD))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kernels_compile(simulated: Backend, on_a_large_gpu: None, direction: str, arch: str) -> None:
    options = {} if direction == WEIGHT_GRAD else {"bias": True, "residual": True}
    for case, dtype in itertools.product((1, 2, 5), DTYPES):
        name, macros = _candidate(case, direction).program(_problem(CASES[case][0], dtype, direction, **options))
        assert programs.cubin(name, programs.options(macros), arch)[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_on_a_gpu(gpu: Backend, direction: str, dtype: DType) -> None:
    options = {} if direction == WEIGHT_GRAD else {"bias": True, "residual": True}
    for case in range(len(CASES)):
        _check_on_gpu(_problem(CASES[case][0], dtype, direction, **options), _candidate(case, direction))


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_choice_on_a_gpu(gpu: Backend, case: tuple[int, ...]) -> None:
    for direction, dtype in itertools.product(DIRECTIONS, (dtypes.float32, dtypes.bfloat16)):
        problem = _problem(case, dtype, direction)
        for candidate in SkinnyGemmFamily().trials(problem):
            assert isinstance(candidate, SkinnyGemm)
            _check_on_gpu(problem, candidate)


def _check_on_gpu(problem: ConvProblem, candidate: SkinnyGemm) -> None:
    built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
    few = 2 if math.prod(problem.result_shape) < 200 else 1
    assert ConvBench(problem).error(built) <= few * accuracy.error_bound(problem), candidate.name
