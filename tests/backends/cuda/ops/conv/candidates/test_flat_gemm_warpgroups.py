"""1×1 convolutions by warpgroups whose pixels stream past: on the host against float64, compiled, and on a GPU."""

from __future__ import annotations

import dataclasses
import itertools
import math
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
from genesis.backends.cuda.ops.conv.candidates.flat_gemm.warpgroups import Shape, Warpgroups, WarpgroupsFamily
from genesis.backends.cuda.ops.conv.candidates.wgmma import common as hopper
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.dtypes import DType
from tests.backends.cuda.ops.conv.candidates import against_float64
from tests.backends.cuda.ops.conv.candidates.against_float64 import product_of

DTYPES = (dtypes.float16, dtypes.bfloat16)
DIRECTIONS = (FORWARD, INPUT_GRAD)

# (images, inputs, height, outputs), and (columns, groups, stages, outs) of the forward and of the input's gradient
CASES: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((1, 64, 17, 21), (64, 2, 3, 2), (64, 1, 2, 1)),  # odd results; in the gradient, odd terms
    ((2, 21, 23, 64), (64, 1, 3, 1), (64, 2, 2, 1)),
    ((1, 40, 22, 75), (128, 2, 2, 1), (64, 2, 3, 1)),  # the last step is of eight terms
    ((1, 18, 15, 36), (64, 2, 4, 2), (64, 1, 1, 1)),  # pairs of channels
    ((3, 128, 9, 19), (64, 1, 2, 1), (64, 2, 3, 2)),  # slices of the gradient's results
    ((1, 70, 22, 130), (192, 2, 3, 1), (128, 2, 3, 2)),
]
SHAPES = [  # images, inputs, height, outputs: of heads
    (8, 256, 80, 255), (8, 512, 40, 255), (8, 1024, 20, 255), (2, 48, 128, 150), (16, 96, 56, 91), (4, 256, 64, 85),
    (4, 255, 64, 256), (3, 129, 33, 131),
]  # fmt: skip
on_host_only = pytest.mark.parametrize("cuda", ["simulated"], indirect=True)


def candidate_of(case: int, direction: str) -> Warpgroups:
    return Warpgroups(Shape(*CASES[case][2 if direction == INPUT_GRAD else 1]))


@pytest.fixture
def on_a_hopper_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "is_available", lambda device: True)


@on_host_only
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_the_host(
    cuda: Backend, on_host: None, on_a_hopper_gpu: None, put: Callable[[Any], Any], get: Any, case: int, direction: str
) -> None:
    """In both types, with a bias and without, in turns."""
    index = case + DIRECTIONS.index(direction)
    relu = {"activation": "relu"} if direction == FORWARD else {}
    problem = product_of(CASES[case][0], DTYPES[index % 2], direction, **({"bias": True, **relu} if case % 2 else {}))
    against_float64.check(put, get, problem, candidate_of(case, direction))


@on_host_only
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", [0, 2, 4])
def test_nothing_beside_the_result_is_written(
    cuda: Backend, on_host: None, on_a_hopper_gpu: None, put: Callable[[Any], Any], get: Any, direction: str, case: int
) -> None:
    problem = product_of(CASES[case][0], dtypes.bfloat16, direction)
    first, second, _, _ = against_float64.operands_of(problem)
    found = against_float64.run_within_margins(
        problem, candidate_of(case, direction), put, get, put(first), put(second), None
    )
    expected = against_float64.expected_of(problem, [first, second, None, None])
    assert float((found - expected).norm() / expected.norm()) <= accuracy.error_bound(problem)


@on_host_only
@pytest.mark.parametrize("case", [1, 2, 3])
def test_nan_and_infinity_stay_where_they_are(
    cuda: Backend, on_host: None, on_a_hopper_gpu: None, put: Callable[[Any], Any], get: Any, case: int
) -> None:
    """Also those of the next pixel, which is read beyond a pixel's last channel."""
    problem = product_of(CASES[case][0], dtypes.bfloat16, FORWARD)
    operands = against_float64.operands_of(problem)
    assert operands[0] is not None
    operands[0][0, :, 0, 3], operands[0][0, 1, 2, 2] = math.nan, math.inf
    given = [None if each is None else put(each) for each in operands]
    result = get(against_float64.run(problem, candidate_of(case, FORWARD), given))
    assert torch.isnan(result[0, :, 0, 3]).all()
    assert torch.isinf(result[0, :, 2, 2]).all()
    result[0, :, 0, 3] = result[0, :, 2, 2] = 0
    assert torch.isfinite(result).all()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_the_choice(simulated: Backend, on_a_hopper_gpu: None, case: tuple[int, ...], direction: str) -> None:
    """Names lead back to what is tried, which is as many blocks as the GPU has room for."""
    problem, family = product_of(case, dtypes.bfloat16, direction), WarpgroupsFamily()
    choice = list(family.trials(problem))
    assert bool(choice) == (direction == INPUT_GRAD or case[1] <= 256)  # of more terms, the weight is too large
    for candidate in choice:
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, Warpgroups)
        assert restored.shape == candidate.shape
        assert restored.supports(problem)
        shape = restored.shape
        assert 1 <= shape.workers(problem) <= max(1, hopper.processors(problem) // shape.slices(problem))
        assert shape.slices(problem) * shape.columns >= problem.result_shape[1]


def test_what_it_leaves_to_others(simulated: Backend, on_a_hopper_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    family, fits = WarpgroupsFamily(), product_of((4, 64, 64, 75), dtypes.float16, FORWARD)
    assert list(family.trials(fits))
    assert list(family.trials(dataclasses.replace(fits, bias=True, activation="relu")))
    others: list[dict[str, Any]] = [
        {"dtype": dtypes.float32},
        {"residual": True},
        {"alignment": 8},
        {"statistics": True},
        {"stride": (2, 2)},
        {"padding": (1, 1)},
        {"direction": WEIGHT_GRAD},
        {"weight_shape": (75, 64, 3, 3)},
        {"weight_shape": (75, 32, 1, 1), "groups": 2},
        {"weight_shape": (72, 64, 1, 1)},  # the libraries' kernels take these rows
        {"weight_shape": (257, 64, 1, 1)},  # more results than a block has, and no multiple of them
        {"input_shape": (1, 64, 9, 14)},
    ]
    for each in others:
        assert not list(family.trials(dataclasses.replace(fits, **each)))
    monkeypatch.setattr(hopper, "is_available", lambda device: False)
    assert not list(family.trials(fits))


@pytest.mark.parametrize(
    "name",
    ["x", "64x64 g2 s2", "64x65 g2 s3 o1", "64x64 g3 s3 o3", "64x64 g2 s1 o1", "64x64 g2 s2 o3", "64x256 g2 s9 o1"],
)
def test_names_of_no_shape(simulated: Backend, on_a_hopper_gpu: None, name: str) -> None:
    problem = product_of((4, 64, 64, 21), dtypes.bfloat16, FORWARD)
    candidate = WarpgroupsFamily().named(problem, f"flat_gemm_warpgroups/{name}")
    assert candidate is None or not candidate.supports(problem)


@pytest.mark.parametrize(
    ("case", "direction", "columns"),
    [
        ((2, 40, 33, 21), FORWARD, 64),
        ((2, 40, 33, 75), FORWARD, 128),
        ((2, 70, 33, 130), FORWARD, 192),
        ((8, 256, 80, 255), FORWARD, 256),
        ((8, 512, 40, 255), INPUT_GRAD, 256),
    ],
)
def test_kernels_compile(
    simulated: Backend, on_a_hopper_gpu: None, case: tuple[int, ...], direction: str, columns: int
) -> None:
    """Without a warning that products wait for one another, which is an error here."""
    problem, shape = product_of(case, DTYPES[columns // 64 % 2], direction, bias=True), Shape(columns, 2, 2, 1)
    assert shape.is_possible(problem)
    arch = programs.architecture("flat_gemm_warpgroups", 90)
    assert programs.cubin("flat_gemm_warpgroups", programs.options(shape.macros(problem)), arch)[:4] == b"\x7fELF"


def test_it_is_the_guess(simulated: Backend, on_a_large_gpu: None, on_a_hopper_gpu: None) -> None:
    """Of weights that are not small; and before copies, which move the pixels three times."""
    for case, is_guess in (((2, 48, 64, 150), True), ((2, 130, 40, 129), True), ((2, 48, 64, 21), False)):
        for direction in DIRECTIONS:
            first = next(iter(CONV.candidates(product_of(case, dtypes.bfloat16, direction))))
            assert (first.family == "flat_gemm_warpgroups") == is_guess


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_on_a_gpu(gpu: Backend, direction: str, dtype: DType) -> None:
    for case, has_bias in itertools.product(range(len(CASES)), (False, True)):
        _check_on_gpu(product_of(CASES[case][0], dtype, direction, bias=has_bias), candidate_of(case, direction))


@pytest.mark.gpu
@pytest.mark.parametrize("case", SHAPES, ids=str)
def test_choice_on_a_gpu(gpu: Backend, case: tuple[int, ...]) -> None:
    for direction in DIRECTIONS:
        problem = product_of(case, dtypes.bfloat16, direction)
        for candidate in WarpgroupsFamily().trials(problem):
            _check_on_gpu(problem, candidate)


def _check_on_gpu(problem: ConvProblem, candidate: Any) -> None:
    if not hopper.is_available(problem.device):
        pytest.skip("no Hopper GPU")
    built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
    assert ConvBench(problem).error(built) <= accuracy.error_bound(problem), f"{problem} {candidate.name}"
