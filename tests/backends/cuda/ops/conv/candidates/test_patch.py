"""Weight gradients of few channels in CUDA C++: compiled for the host against float64, for GPUs, and run on one."""

from __future__ import annotations

import dataclasses
import math
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
from genesis.backends.cuda.ops.conv.candidates.patch.candidate import (
    NAME,
    PatchWeightGrad,
    PatchWeightGradFamily,
    Tile,
    Work,
)
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.candidates import against_float64, depthwise_on_host

# (groups, (inputs, outputs), images, sizes, taps, stride, padding, dilation), (rows, columns, outputs, inputs, splits)
CASES: list[tuple[Any, tuple[int, ...]]] = [
    ((1, (18, 18), 2, (9, 10), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 16, 18, 18, 1)),
    ((1, (8, 16), 1, (8, 8), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 8, 16, 8, 2)),
    ((1, (36, 20), 1, (7, 9), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 8, 20, 36, 2)),
    ((1, (4, 50), 2, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1)), (2, 8, 50, 4, 1)),
    ((1, (40, 72), 1, (6, 9), (3, 3), (1, 1), (1, 1), (1, 1)), (4, 8, 32, 32, 1)),
    ((1, (16, 24), 2, (11, 9), (3, 3), (2, 2), (1, 1), (1, 1)), (2, 8, 24, 16, 1)),
    ((1, (10, 12), 1, (12, 15), (3, 2), (2, 3), (0, 1), (1, 1)), (4, 8, 12, 10, 2)),
    ((1, (12, 8), 1, (11, 12), (3, 3), (1, 1), (2, 3), (2, 3)), (4, 16, 8, 12, 4)),
    ((1, (6, 8), 1, (9, 20), (5, 5), (1, 1), (2, 2), (1, 1)), (2, 16, 8, 6, 1)),
    ((1, (14, 6), 3, (5, 8), (1, 3), (1, 1), (0, 1), (1, 1)), (2, 8, 6, 14, 1)),
    ((1, (66, 34), 1, (8, 8), (3, 1), (1, 1), (1, 0), (1, 1)), (8, 8, 34, 32, 2)),
    ((1, (2, 2), 1, (1, 1), (3, 3), (1, 1), (1, 1), (1, 1)), (2, 8, 2, 2, 1)),
]
DTYPES = (dtypes.float16, dtypes.bfloat16)
SHAPES = [  # (inputs, outputs), sizes, taps, stride of HRNet, Res2Net, DenseNet, EfficientNetV2, U-Net
    ((18, 18), (56, 56), (3, 3), 1),
    ((36, 36), (28, 28), (3, 3), 1),
    ((26, 26), (56, 56), (3, 3), 1),
    ((128, 32), (28, 28), (3, 3), 1),
    ((24, 24), (112, 112), (3, 3), 1),
    ((18, 36), (56, 56), (3, 3), 2),
    ((32, 32), (64, 64), (5, 5), 1),
    ((32, 32), (7, 7), (3, 3), 1),
]


def _problem(case: Any, dtype: Any, **options: Any) -> ConvProblem:
    return against_float64.problem_of(WEIGHT_GRAD, case, dtype, **options)


def _of_network(shape: Any, images: int, dtype: Any = dtypes.bfloat16) -> ConvProblem:
    channels, sizes, taps, stride = shape
    padding = tuple(n // 2 for n in taps)
    return _problem((1, channels, images, sizes, taps, (stride, stride), padding, (1, 1)), dtype)


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    if not depthwise_on_host.is_available():
        pytest.skip("no g++")
    monkeypatch.setattr(programs, "prepare", depthwise_on_host.prepare)
    monkeypatch.setattr(programs, "is_available", lambda device: True)


@pytest.fixture
def on_a_large_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "is_available", lambda device: True)


@pytest.mark.parametrize("cuda", ["simulated"], indirect=True)
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_the_host(cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, blocks: int) -> None:
    """Tiles that are cut off, channels that no unit divides, strides, dilations, several tiles of a block, parts."""
    options, tile = CASES[case]
    candidate = PatchWeightGrad(Tile(*tile, blocks=blocks))
    against_float64.check(put, get, _problem(options, DTYPES[(case + blocks) % 2]), candidate)


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
    family = PatchWeightGradFamily()
    choice = family.trials(problem)
    assert len({candidate.name for candidate in choice}) == len(choice) >= 6
    is_guess = next(iter(CONV.candidates(problem))).name == choice[0].name
    assert is_guess == (shape[0][0] * shape[0][1] <= 1024)
    for candidate in choice:
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, PatchWeightGrad)
        work = Work(problem, restored.tile)
        assert restored.name == candidate.name
        assert work.parts * work.iterations >= work.cover[0] * work.cover[1] * work.cover[2]
        assert work.num_threads <= 512


@pytest.mark.parametrize("name", ["4x16", "3x16 k18 c18 s1 b2", "4x12 k18 c18 s1 b2", "4x16 k18 c18 s0 b2", "x"])
def test_names_of_no_tile(simulated: Backend, on_a_large_gpu: None, name: str) -> None:
    problem = _of_network(SHAPES[0], 2)
    candidate = PatchWeightGradFamily().named(problem, f"{NAME}/{name}")
    assert candidate is None or not candidate.supports(problem)


def test_what_it_leaves_to_others(simulated: Backend, on_a_large_gpu: None) -> None:
    family = PatchWeightGradFamily()
    fits = _of_network(SHAPES[0], 2)
    assert family.trials(fits)
    others: list[dict[str, Any]] = [
        {"dtype": dtypes.float32},
        {"direction": FORWARD},
        {"weight_shape": (18, 9, 3, 3), "groups": 2},
        {"weight_shape": (18, 18, 1, 1)},
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
    assert not PatchWeightGradFamily().trials(_of_network(SHAPES[0], 2))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("case", [0, 4, 7])
def test_kernels_compile(simulated: Backend, on_a_large_gpu: None, case: int, arch: str) -> None:
    options, tile = CASES[case]
    for dtype in DTYPES:
        name, macros = PatchWeightGrad(Tile(*tile)).program(_problem(options, dtype))
        assert programs.cubin(name, programs.options(macros), arch)[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_a_gpu(gpu: Backend, case: int, dtype: Any) -> None:
    options, tile = CASES[case]
    _check_on_gpu(_problem(options, dtype), PatchWeightGrad(Tile(*tile)))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_choice_on_a_gpu(gpu: Backend, shape: Any) -> None:
    problem = _of_network(shape, 4)
    for candidate in PatchWeightGradFamily().trials(problem):
        _check_on_gpu(problem, candidate)


def _check_on_gpu(problem: ConvProblem, candidate: Candidate[ConvProblem]) -> None:
    built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
    few = 2 if math.prod(problem.result_shape) < 200 else 1
    assert ConvBench(problem).error(built) <= few * accuracy.error_bound(problem), candidate.name
