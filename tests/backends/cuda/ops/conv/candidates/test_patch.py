"""Convolutions of few channels in CUDA C++: compiled for the host against float64, for GPUs, and run on one."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.patch import forward
from genesis.backends.cuda.ops.conv.candidates.patch.candidate import PatchFamily
from genesis.backends.cuda.ops.conv.candidates.patch.forward import PatchForward
from genesis.backends.cuda.ops.conv.candidates.patch.weight_grad import NAME, PatchWeightGrad, Tile, Work
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates import against_float64

# (groups, (inputs, outputs), images, sizes, taps, stride, padding, dilation), (rows, columns, outputs, inputs, splits)
CASES: list[tuple[Any, tuple[int, ...]]] = [
    ((1, (18, 18), 2, (9, 10), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 16, 18, 18, 1)),
    ((1, (8, 16), 1, (8, 8), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 8, 16, 8, 2)),
    ((1, (36, 20), 1, (7, 9), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 8, 20, 36, 2)),
    ((1, (4, 50), 2, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1)), (2, 8, 50, 4, 1)),
    ((1, (40, 56), 1, (6, 9), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 8, 32, 32, 1)),
    ((1, (16, 24), 2, (11, 9), (3, 3), (2, 2), (1, 1), (1, 1)), (2, 8, 24, 16, 1)),
    ((1, (10, 12), 1, (12, 15), (3, 2), (2, 3), (0, 1), (1, 1)), (4, 8, 12, 10, 2)),
    ((1, (12, 8), 1, (11, 12), (3, 3), (1, 1), (2, 3), (2, 3)), (4, 16, 8, 12, 4)),
    ((1, (6, 8), 1, (9, 20), (5, 5), (1, 1), (2, 2), (1, 1)), (2, 16, 8, 6, 1)),
    ((1, (14, 6), 3, (5, 8), (1, 3), (1, 1), (0, 1), (1, 1)), (2, 8, 6, 14, 1)),
    ((1, (66, 34), 1, (8, 8), (3, 1), (1, 1), (1, 0), (1, 1)), (8, 8, 34, 32, 2)),
    ((1, (2, 2), 1, (1, 1), (3, 3), (1, 1), (1, 1), (1, 1)), (2, 8, 2, 2, 1)),
    ((1, (36, 18), 2, (9, 7), (1, 1), (1, 1), (0, 0), (1, 1)), (4, 8, 18, 36, 1)),
]
DTYPES = (dtypes.float16, dtypes.bfloat16)
SHAPES = [  # (inputs, outputs), sizes, taps, stride of HRNet, Res2Net, DenseNet, EfficientNetV2, U-Net
    ((18, 18), (56, 56), (3, 3), 1),
    ((36, 36), (28, 28), (3, 3), 1),
    ((26, 26), (56, 56), (3, 3), 1),
    ((64, 32), (28, 28), (3, 3), 1),
    ((24, 24), (112, 112), (3, 3), 1),
    ((18, 36), (56, 56), (3, 3), 2),
    ((32, 32), (64, 64), (5, 5), 1),
    ((32, 32), (7, 7), (3, 3), 1),
]


# (rows, columns, outputs, warps, groups of pixels at once) of the forward of each case, and of its input's gradient.
FORWARD_TILES = [
    (4, 16, 18, 2, 2), (2, 8, 16, 1, 1), (4, 8, 20, 1, 2), (2, 16, 50, 2, 1), (4, 16, 32, 2, 2), (4, 8, 24, 2, 1),
    (4, 8, 12, 1, 2), (4, 16, 8, 1, 4), (2, 16, 8, 1, 2), (4, 8, 6, 2, 1), None, (2, 8, 2, 1, 1),
    (2, 8, 18, 1, 1),
]  # fmt: skip


def _problem(case: Any, dtype: Any, direction: str = WEIGHT_GRAD, **options: Any) -> ConvProblem:
    return against_float64.problem_of(direction, case, dtype, **options)


def _of_network(shape: Any, images: int, direction: str = WEIGHT_GRAD) -> ConvProblem:
    channels, sizes, taps, stride = shape
    padding = tuple(n // 2 for n in taps)
    return _problem((1, channels, images, sizes, taps, (stride, stride), padding, (1, 1)), dtypes.bfloat16, direction)


def _forward_tile(problem: ConvProblem, case: int, **options: int) -> forward.Tile:
    tile = FORWARD_TILES[case]
    assert tile is not None
    rows, columns, outputs, warps, at_once = tile
    channels = problem.result_shape[1]
    outputs = channels if channels <= 32 else min(outputs // 8 * 8, 32)
    return forward.Tile(rows, columns, outputs, warps, at_once, **options)


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_the_host(cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, blocks: int) -> None:
    """Tiles that are cut off, channels that no unit divides, strides, dilations, several tiles of a block, parts."""
    options, tile = CASES[case]
    candidate = PatchWeightGrad(Tile(*tile, blocks=blocks))
    against_float64.check(put, get, _problem(options, DTYPES[(case + blocks) % 2]), candidate)


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("case", [case for case, tile in enumerate(FORWARD_TILES) if tile])
def test_forward_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, direction: str
) -> None:
    for options in ({}, {"bias": True, "residual": True}, {"bias": True, "activation": "relu"}):
        if "activation" in options and (direction == INPUT_GRAD or CASES[case][0][3] == (1, 1)):
            continue  # two results may both be zeros
        problem = _problem(CASES[case][0], DTYPES[(case + 1) % 2], direction, **options)
        for blocks in (1, 3):  # of one program, which is compiled once
            candidate = PatchForward(_forward_tile(problem, case, blocks=blocks))
            if direction == INPUT_GRAD and (problem.stride != (1, 1) or problem.first_shape[1] > 64):
                assert not candidate.supports(problem)
            else:
                against_float64.check(put, get, problem, candidate)


def _drawn(seed: int) -> tuple[ConvProblem, PatchForward | PatchWeightGrad] | None:
    """A problem, and one of all tiles that are possible; None: there is none."""
    draw = random.Random(seed)
    channels = tuple(2 * draw.randint(1, draw.choice((4, 12, 24))) for _ in range(2))
    taps = draw.choice(((1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (3, 3), (3, 3), (5, 5), (3, 5), (4, 3), (7, 1)))
    stride = (1, 1) if draw.random() < 0.6 else (draw.randint(1, 3), draw.randint(1, 3))
    dilation = (1, 1) if draw.random() < 0.7 else (draw.randint(1, 3), draw.randint(1, 3))
    reach = [d * (n - 1) for d, n in zip(dilation, taps, strict=True)]
    padding = tuple(draw.randint(0, r) for r in reach)
    sizes = tuple(draw.randint(max(p + 1, r + 1 - 2 * p), 20) for r, p in zip(reach, padding, strict=True))
    direction = draw.choice((FORWARD, INPUT_GRAD, WEIGHT_GRAD))
    alignment = draw.choice((4, 8, 16, 16))
    case = (1, channels, draw.randint(1, 3), sizes, taps, stride, padding, dilation)
    epilogue = {} if direction == WEIGHT_GRAD else {"bias": draw.random() < 0.5, "residual": draw.random() < 0.5}
    problem = _problem(case, draw.choice(DTYPES), direction, alignment=alignment, **epilogue)
    tiles: list[PatchForward] | list[PatchWeightGrad]
    if direction == WEIGHT_GRAD:
        tiles = [PatchWeightGrad(tile) for tile in PatchWeightGrad.tiles(problem)]
    else:
        tiles = [PatchForward(tile) for tile in PatchForward.tiles(problem)]
    possible = [each for each in tiles if each.supports(problem)]
    return (problem, draw.choice(possible)) if possible else None


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
@pytest.mark.parametrize("seed", range(16))
def test_random_problems_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, seed: int
) -> None:
    drawn = _drawn(seed)
    if drawn is not None:
        against_float64.check(put, get, *drawn)


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
@pytest.mark.parametrize("alignment", [4, 8])
def test_unaligned_operands(cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, alignment: int) -> None:
    problem = _problem(CASES[1][0], dtypes.float16, alignment=alignment)
    assert Work(problem, Tile(*CASES[1][1])).granules == (alignment, alignment)
    against_float64.check(put, get, problem, PatchWeightGrad(Tile(*CASES[1][1])))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_choice(simulated: Backend, on_a_large_gpu: None, shape: Any) -> None:
    """Names lead back to what is tried, which fits a multiprocessor and covers all that there is."""
    problem = _of_network(shape, 32)
    family = PatchFamily(PatchWeightGrad)
    choice = family.trials(problem)
    assert len({candidate.name for candidate in choice}) == len(choice) >= 6
    is_guess = next(iter(CONV.candidates(problem))).name == choice[0].name
    assert is_guess == (shape[0] in ((18, 18), (26, 26), (24, 24), (18, 36)))
    for candidate in choice:
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, PatchWeightGrad)
        work = restored.work(problem)
        assert restored.name == candidate.name
        assert work.parts * work.iterations >= work.num_tiles
        assert work.num_threads <= 512


@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape[0][0] <= 64], ids=str)
def test_the_choice_of_the_forward(simulated: Backend, on_a_large_gpu: None, shape: Any, direction: str) -> None:
    problem = _of_network(shape, 32, direction)
    family = PatchFamily(PatchForward)
    choice = family.trials(problem)
    assert bool(choice) == (direction == FORWARD or shape[3] == 1)
    is_guess = next(iter(CONV.candidates(problem))).family == forward.NAME
    assert is_guess == (shape[0] in ((18, 18), (26, 26), (24, 24)))
    assert len({candidate.name for candidate in choice}) == len(choice)
    for candidate in choice:
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, PatchForward)
        work = restored.work(problem)
        assert restored.name == candidate.name
        assert work.parts * work.iterations >= work.num_tiles


@pytest.mark.parametrize("name", ["4x16", "3x16 k18 c18 s1 b2", "4x12 k18 c18 s1 b2", "4x16 k18 c18 s0 b2", "x"])
def test_names_of_no_tile(simulated: Backend, on_a_large_gpu: None, name: str) -> None:
    problem = _of_network(SHAPES[0], 2)
    candidate = PatchFamily(PatchWeightGrad).named(problem, f"{NAME}/{name}")
    assert candidate is None or not candidate.supports(problem)


def test_what_it_leaves_to_others(simulated: Backend, on_a_large_gpu: None) -> None:
    family = PatchFamily(PatchWeightGrad)
    fits = _of_network(SHAPES[0], 2)
    assert family.trials(fits)
    others: list[dict[str, Any]] = [
        {"dtype": dtypes.float32},
        {"direction": FORWARD},
        {"weight_shape": (18, 9, 3, 3), "groups": 2},
        {"weight_shape": (16, 24, 1, 1), "input_shape": (2, 24, 56, 56)},
        {"weight_shape": (17, 18, 3, 3)},
        {"weight_shape": (258, 2, 3, 3), "input_shape": (2, 2, 56, 56)},
        {"weight_shape": (230, 18, 3, 3)},
        {"weight_shape": (18, 18, 3, 7)},
        {"input_shape": (2**21, 18, 56, 56)},
        {"alignment": 2},
    ]
    for each in others:
        assert not family.trials(dataclasses.replace(fits, **each))


def test_without_a_gpu_others_compute(simulated: Backend) -> None:
    assert not PatchFamily(PatchWeightGrad).trials(_of_network(SHAPES[0], 2))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", [0, 4, 7])
def test_kernels_compile(simulated: Backend, on_a_large_gpu: None, case: int, arch: str) -> None:
    options, tile = CASES[case]
    for dtype in DTYPES:
        name, macros = PatchWeightGrad(Tile(*tile)).program(_problem(options, dtype))
        assert programs.cubin(name, programs.options(macros), arch)[:4] == b"\x7fELF"
        for direction in (FORWARD, INPUT_GRAD):
            problem = _problem(options, dtype, direction, bias=True, residual=True)
            name, macros = PatchForward(_forward_tile(problem, case)).program(problem)
            assert programs.cubin(name, programs.options(macros), arch)[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_a_gpu(gpu: Backend, case: int, dtype: Any) -> None:
    options, tile = CASES[case]
    _check_on_gpu(_problem(options, dtype), PatchWeightGrad(Tile(*tile)))
    for direction in (FORWARD, INPUT_GRAD):
        problem = _problem(options, dtype, direction, bias=True, residual=True)
        candidate = PatchForward(_forward_tile(problem, case)) if FORWARD_TILES[case] else None
        if candidate is not None and candidate.supports(problem):
            _check_on_gpu(problem, candidate)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_choice_on_a_gpu(gpu: Backend, shape: Any) -> None:
    for direction in (FORWARD, INPUT_GRAD, WEIGHT_GRAD):
        problem = _of_network(shape, 4, direction)
        for candidate in (*PatchFamily(PatchForward).trials(problem), *PatchFamily(PatchWeightGrad).trials(problem)):
            _check_on_gpu(problem, candidate)


def _check_on_gpu(problem: ConvProblem, candidate: Candidate[ConvProblem]) -> None:
    built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
    few = 2 if math.prod(problem.result_shape) < 200 else 1
    assert ConvBench(problem).error(built) <= few * accuracy.error_bound(problem), candidate.name
