"""Convolutions of few channels in float32 by multiply-adds: compiled for the host, for GPUs, and run on one."""

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
from genesis.backends.cuda.ops.conv.candidates.patch import fma_forward, fma_weight_grad
from genesis.backends.cuda.ops.conv.candidates.patch.candidate import PatchCandidate, PatchFamily
from genesis.backends.cuda.ops.conv.candidates.patch.fma_forward import PatchFmaForward
from genesis.backends.cuda.ops.conv.candidates.patch.fma_weight_grad import PatchFmaWeightGrad
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates import against_float64

# (groups, (inputs, outputs), images, sizes, taps, stride, padding, dilation),
# the forward's (rows, columns, pixels, outputs, lanes), the weight's gradient's (…, splits).
CASES: list[tuple[Any, tuple[int, ...], tuple[int, ...]]] = [
    ((1, (18, 18), 2, (9, 10), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 16, 2, 20, 1), (4, 16, 18, 18, 4, 3, 4, 2)),
    ((1, (3, 20), 2, (13, 11), (3, 3), (2, 2), (1, 1), (1, 1)), (8, 8, 4, 8, 2), (2, 8, 20, 3, 8, 1, 3, 2)),
    ((1, (1, 7), 1, (9, 9), (5, 5), (1, 1), (2, 2), (1, 1)), (4, 16, 2, 4, 2), (4, 8, 7, 1, 4, 5, 1, 4)),
    ((1, (40, 12), 3, (7, 5), (1, 1), (1, 1), (0, 0), (1, 1)), (1, 64, 2, 12, 1), (1, 32, 12, 40, 4, 1, 8, 4)),
    ((1, (13, 70), 1, (9, 7), (1, 1), (1, 1), (0, 0), (1, 1)), (1, 64, 4, 12, 2), (1, 64, 32, 13, 8, 1, 4, 4)),
    ((1, (90, 9), 1, (6, 9), (1, 1), (1, 1), (0, 0), (1, 1)), (1, 32, 1, 12, 1), (1, 32, 9, 64, 4, 1, 8, 2)),
    ((1, (6, 10), 2, (12, 15), (3, 2), (2, 3), (0, 1), (1, 1)), (2, 16, 1, 12, 1), (4, 8, 10, 6, 4, 2, 4, 2)),
    ((1, (12, 8), 1, (11, 12), (3, 3), (1, 1), (2, 3), (2, 3)), (4, 8, 1, 8, 1), (4, 16, 8, 12, 8, 3, 4, 8)),
    ((1, (34, 33), 1, (8, 8), (3, 1), (1, 1), (1, 0), (1, 1)), (8, 8, 2, 12, 4), (8, 8, 33, 32, 4, 1, 8, 2)),
    ((1, (2, 1), 1, (1, 1), (1, 1), (2, 2), (0, 0), (1, 1)), (1, 32, 1, 4, 1), (1, 8, 1, 2, 4, 1, 2, 1)),
]
SHAPES = [  # images, (inputs, outputs), size, taps, stride: HRNet, stems, GhostNet, EfficientNet, U-Net
    (32, (18, 18), 56, 3, 1), (64, (3, 64), 224, 7, 2), (32, (3, 32), 256, 3, 1), (64, (24, 36), 56, 1, 1),
    (64, (40, 240), 28, 1, 1), (8, (32, 32), 256, 3, 1), (64, (64, 128), 28, 1, 1), (8, (64, 64), 64, 3, 1),
    (32, (18, 72), 28, 3, 2),
]  # fmt: skip


def _problem(case: int, direction: str, **options: Any) -> ConvProblem:
    return against_float64.problem_of(direction, CASES[case][0], dtypes.float32, **options)


def _of_network(shape: Any, direction: str) -> ConvProblem:
    images, channels, size, taps, stride = shape
    case = (1, channels, images, (size, size), (taps, taps), (stride, stride), (taps // 2, taps // 2), (1, 1))
    return against_float64.problem_of(direction, case, dtypes.float32)


def _forward(case: int, **options: int) -> PatchFmaForward:
    return PatchFmaForward(fma_forward.Tile(*CASES[case][1], **options))


def _weight_grad(case: int, **options: int) -> PatchFmaWeightGrad:
    return PatchFmaWeightGrad(fma_weight_grad.Tile(*CASES[case][2], **options))


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_forward_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, direction: str, blocks: int
) -> None:
    """Tiles that are cut off, channels that no unit divides, strides, dilations, several tiles of a block, parts.

    Each case has every epilogue, with one number of blocks: g++ compiles them all by themselves.
    """
    epilogues: list[dict[str, Any]] = [{}, {"bias": True, "residual": True}, {"bias": True, "activation": "relu"}]
    for options in epilogues[::2] if (case % 2 == 0) == (blocks == 1) else epilogues[1:2]:
        if "activation" in options and (direction == INPUT_GRAD or case == len(CASES) - 1):
            continue  # two results may both be zeros
        problem = _problem(case, direction, **options)
        candidate = _forward(case, blocks=blocks, at_once=4)
        if blocks == 1 or not candidate.supports(problem):
            candidate = _forward(case, blocks=blocks)
        against_float64.check(put, get, problem, candidate)


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_weight_gradient_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, blocks: int
) -> None:
    against_float64.check(put, get, _problem(case, WEIGHT_GRAD), _weight_grad(case, blocks=blocks))


def _drawn(seed: int) -> tuple[ConvProblem, Candidate[ConvProblem]] | None:
    """A problem, and one of all tiles that are possible; None: there is none."""
    draw = random.Random(seed)
    channels = tuple(draw.randint(1, draw.choice((4, 12, 24, 70))) for _ in range(2))
    taps = draw.choice(((1, 1), (1, 1), (2, 1), (2, 2), (3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (4, 3), (7, 1)))
    is_flat = taps == (1, 1) and draw.random() < 0.7
    stride = (1, 1) if is_flat or draw.random() < 0.6 else (draw.randint(1, 3), draw.randint(1, 3))
    dilation = (1, 1) if draw.random() < 0.7 else (draw.randint(1, 3), draw.randint(1, 3))
    reach = [d * (n - 1) for d, n in zip(dilation, taps, strict=True)]
    padding = tuple(draw.randint(0, r) for r in reach)
    sizes = tuple(draw.randint(max(p + 1, r + 1 - 2 * p), 20) for r, p in zip(reach, padding, strict=True))
    direction = draw.choice((FORWARD, INPUT_GRAD, WEIGHT_GRAD, WEIGHT_GRAD))
    case = (1, channels, draw.randint(1, 3), sizes, taps, stride, padding, dilation)
    epilogue = {} if direction == WEIGHT_GRAD else {"bias": draw.random() < 0.5, "residual": draw.random() < 0.5}
    alignment = draw.choice((4, 8, 16, 16))
    problem = against_float64.problem_of(direction, case, dtypes.float32, alignment=alignment, **epilogue)
    tiles: list[Candidate[ConvProblem]]
    if direction == WEIGHT_GRAD:
        tiles = [PatchFmaWeightGrad(tile) for tile in PatchFmaWeightGrad.tiles(problem)]
    else:
        tiles = [PatchFmaForward(tile) for tile in PatchFmaForward.tiles(problem)]
    draw.shuffle(tiles)
    possible = next((each for each in tiles if each.supports(problem)), None)
    return None if possible is None else (problem, possible)


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
@pytest.mark.parametrize("seed", range(16))
def test_random_problems_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, seed: int
) -> None:
    drawn = _drawn(seed)
    if drawn is not None:
        against_float64.check(put, get, *drawn)


@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_choice(simulated: Backend, on_a_large_gpu: None, shape: Any, direction: str) -> None:
    """Names lead back to what is tried, which covers all that there is."""
    problem = _of_network(shape, direction)
    family = PatchFamily(PatchFmaWeightGrad) if direction == WEIGHT_GRAD else PatchFamily(PatchFmaForward)
    choice = family.trials(problem)
    is_few = direction == WEIGHT_GRAD or problem.first_shape[1] <= 96
    assert bool(choice) == is_few
    assert len({candidate.name for candidate in choice}) == len(choice)
    for candidate in choice:
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, PatchCandidate)
        work = restored.work(problem)
        assert restored.name == candidate.name
        assert work.parts * work.iterations >= work.num_tiles
        assert work.num_threads <= 512
    if family.variants(problem) and (direction, shape[1][0]) != (INPUT_GRAD, 3):  # that of an image has its own kernel
        assert next(iter(CONV.candidates(problem))).name == choice[0].name


@pytest.mark.parametrize("name", ["4x16", "3x16 m2 n18 l1 a1 b2", "4x12 m5 n8 l1 a1 b2", "4x16 m0 n4 l1 a1 b2", "x"])
def test_names_of_no_tile(simulated: Backend, on_a_large_gpu: None, name: str) -> None:
    problem = _of_network(SHAPES[0], FORWARD)
    candidate = PatchFamily(PatchFmaForward).named(problem, f"{fma_forward.NAME}/{name}")
    assert candidate is None or not candidate.supports(problem)


@pytest.mark.parametrize("thread", ["t4x2x4 s2", "t4x3x4 s3", "t4x3x4 s0"])
def test_names_of_no_weight_gradient(simulated: Backend, on_a_large_gpu: None, thread: str) -> None:
    problem = _of_network(SHAPES[0], WEIGHT_GRAD)
    candidate = PatchFamily(PatchFmaWeightGrad).named(problem, f"{fma_weight_grad.NAME}/4x16 k18 c18 {thread} b2")
    assert candidate is None or not candidate.supports(problem)


def test_what_it_leaves_to_others(simulated: Backend, on_a_large_gpu: None) -> None:
    families = (PatchFamily(PatchFmaForward), PatchFamily(PatchFmaWeightGrad))
    fits = _of_network(SHAPES[0], FORWARD)
    assert families[0].trials(fits)
    assert families[1].trials(dataclasses.replace(fits, direction=WEIGHT_GRAD))
    others: list[dict[str, Any]] = [
        {"dtype": dtypes.float16},
        {"precision": "high"},
        {"weight_shape": (18, 9, 3, 3), "groups": 2},
        {"weight_shape": (66, 66, 3, 3), "input_shape": (2, 66, 56, 56)},
        {"weight_shape": (18, 18, 8, 8)},
        {"input_shape": (2**21, 18, 56, 56)},
        {"alignment": 2},
    ]
    for each in others:
        for family in families:
            assert not family.trials(dataclasses.replace(fits, direction=WEIGHT_GRAD, **each))
            assert not family.trials(dataclasses.replace(fits, **each))
    assert not families[0].trials(dataclasses.replace(fits, statistics=True))
    fits = dataclasses.replace(fits, direction=INPUT_GRAD, stride=(2, 2))
    assert families[0].trials(fits)
    assert not families[0].trials(dataclasses.replace(fits, dilation=(2, 2)))


def test_without_a_gpu_others_compute(simulated: Backend) -> None:
    assert not PatchFamily(PatchFmaForward).trials(_of_network(SHAPES[0], FORWARD))
    assert not PatchFamily(PatchFmaWeightGrad).trials(_of_network(SHAPES[0], WEIGHT_GRAD))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", [0, 1, 4])
def test_kernels_compile(simulated: Backend, on_a_large_gpu: None, case: int, arch: str) -> None:
    problem = _problem(case, FORWARD, bias=True, residual=True, activation="relu")
    for name, macros in (
        _forward(case).program(problem),
        _weight_grad(case).program(_problem(case, WEIGHT_GRAD)),
    ):
        assert programs.cubin(name, programs.options(macros), arch)[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_a_gpu(gpu: Backend, case: int) -> None:
    _check_on_gpu(_problem(case, WEIGHT_GRAD), _weight_grad(case))
    for direction in (FORWARD, INPUT_GRAD):
        problem = _problem(case, direction, bias=True, residual=True)
        if _forward(case).supports(problem):
            _check_on_gpu(problem, _forward(case))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_choice_on_a_gpu(gpu: Backend, shape: Any) -> None:
    for direction in (FORWARD, INPUT_GRAD, WEIGHT_GRAD):
        problem = _of_network((2, *shape[1:]), direction)
        for candidate in (
            *PatchFamily(PatchFmaForward).trials(problem),
            *PatchFamily(PatchFmaWeightGrad).trials(problem),
        ):
            _check_on_gpu(problem, candidate)


def _check_on_gpu(problem: ConvProblem, candidate: Candidate[ConvProblem]) -> None:
    built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
    few = 2 if math.prod(problem.result_shape) < 200 else 1
    assert ConvBench(problem).error(built) <= few * accuracy.error_bound(problem), candidate.name
