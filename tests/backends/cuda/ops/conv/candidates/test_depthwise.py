"""Depthwise convolution in CUDA C++: compiled for the host against float64, compiled for GPUs, and run on one."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import Built
from genesis.backends.cuda.engine.candidate import Candidate
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.bench import ConvBench
from genesis.backends.cuda.ops.conv.candidates import programs
from genesis.backends.cuda.ops.conv.candidates.depthwise.candidate import Depthwise, DepthwiseFamily
from genesis.backends.cuda.ops.conv.candidates.depthwise.shape import Shape, Work
from genesis.backends.cuda.ops.conv.candidates.depthwise.toeplitz import Patch, Toeplitz, ToeplitzFamily
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.ops.storage.launch import copy_into
from genesis.backends.cuda.runtime import array, streams
from genesis.shapes import channels_last_strides
from tests.backends.cuda.ops.conv.candidates import fuzz_depthwise

DIRECTIONS = (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
TORCH = {dtypes.float32: torch.float32, dtypes.float16: torch.float16, dtypes.bfloat16: torch.bfloat16}

# (input, multiplier, taps, stride, padding, dilation), (vector, rows, columns, ahead)
CASES = [
    (((2, 6, 9, 8), 1, (3, 3), (1, 1), (1, 1), (1, 1)), (2, 4, 4, 2)),
    (((1, 5, 7, 7), 1, (1, 1), (1, 1), (0, 0), (1, 1)), (1, 2, 3, 1)),
    (((1, 8, 9, 11), 1, (5, 5), (1, 1), (2, 2), (1, 1)), (4, 2, 4, 6)),
    (((2, 8, 12, 9), 1, (7, 7), (1, 1), (3, 3), (1, 1)), (2, 4, 7, 1)),
    (((1, 2, 11, 13), 1, (9, 9), (1, 1), (4, 4), (1, 1)), (1, 1, 4, 2)),
    (((1, 2, 12, 12), 1, (11, 11), (1, 1), (5, 5), (1, 1)), (1, 2, 2, 2)),
    (((1, 4, 10, 9), 1, (3, 5), (1, 1), (1, 0), (1, 1)), (2, 3, 4, 2)),
    (((2, 16, 9, 10), 1, (3, 3), (2, 2), (1, 1), (1, 1)), (8, 2, 4, 2)),
    (((1, 4, 11, 9), 1, (5, 3), (3, 2), (2, 0), (1, 1)), (2, 3, 2, 2)),
    (((1, 4, 10, 10), 1, (1, 2), (3, 3), (0, 1), (1, 1)), (4, 3, 3, 2)),
    (((1, 6, 11, 12), 1, (3, 3), (1, 1), (2, 3), (2, 3)), (2, 2, 4, 2)),
    (((1, 4, 13, 12), 1, (3, 3), (2, 3), (3, 4), (3, 2)), (2, 2, 3, 6)),
    (((1, 2, 9, 60), 1, (2, 3), (1, 1), (4, 24), (5, 24)), (2, 1, 12, 1)),
    (((2, 4, 6, 7), 2, (3, 3), (1, 1), (1, 1), (1, 1)), (2, 2, 4, 2)),
    (((1, 3, 7, 6), 3, (3, 3), (2, 1), (1, 2), (1, 1)), (1, 2, 2, 2)),
    (((1, 2, 6, 6), 11, (3, 2), (1, 1), (1, 1), (1, 1)), (1, 2, 2, 2)),
    (((1, 3, 5, 6), 16, (3, 3), (2, 2), (1, 1), (1, 1)), (1, 2, 2, 2)),
    (((3, 70, 5, 4), 1, (3, 3), (1, 1), (1, 1), (1, 1)), (2, 4, 4, 2)),
    (((2, 2, 1, 2), 1, (3, 3), (1, 1), (3, 2), (1, 1)), (1, 2, 3, 1)),
]

# (input, taps, padding), (tiles_x, tiles_y, warps_x, warps_y, groups); few images and channels fill a patch
TOEPLITZ = [
    (((2, 8, 9, 17), (7, 7), (3, 3)), (1, 1, 1, 1, 1)),
    (((1, 24, 17, 20), (5, 5), (2, 2)), (1, 2, 1, 1, 2)),
    (((1, 16, 10, 34), (3, 3), (0, 1)), (2, 1, 1, 1, 2)),
    (((1, 32, 18, 7), (9, 9), (4, 5)), (1, 1, 1, 2, 3)),
    (((2, 8, 6, 5), (2, 1), (1, 0)), (3, 1, 1, 1, 1)),
    (((1, 40, 7, 7), (11, 4), (6, 4)), (1, 1, 2, 1, 4)),
]


def _problem(direction: str, case: Any, dtype: Any, **options: Any) -> ConvProblem:
    (images, channels, *sizes), multiplier, taps, stride, padding, dilation = case
    return ConvProblem(
        direction, (images, channels, *sizes), (channels * multiplier, 1, *taps), stride, padding, dilation, channels,
        dtype=dtype, **options,
    )  # fmt: skip


def _shape(problem: ConvProblem, shape: tuple[int, ...], **options: int) -> Shape:
    """With tiles that are multiples of the stride, where that is asked for."""
    vector, rows, columns, ahead = shape
    if problem.direction == INPUT_GRAD:
        rows, columns = (-(-n // s) * s for n, s in zip((rows, columns), problem.stride, strict=True))
    return Shape(vector, rows, columns, ahead, **{"threads": 64, "blocks": 1, **options})


def _operands(problem: ConvProblem) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    p = problem

    def make(*shape: int) -> torch.Tensor:
        values = torch.randn(shape).to(TORCH[p.dtype])
        return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values

    return [
        make(*p.first_shape), make(*p.second_shape), make(p.result_shape[1]) if p.bias else None,
        make(*p.result_shape) if p.residual else None,
    ]  # fmt: skip


def _expected(problem: ConvProblem, operands: list[torch.Tensor | None]) -> torch.Tensor:
    p = problem
    first, second, bias, residual = (None if each is None else each.double() for each in operands)
    assert first is not None
    assert second is not None
    if p.direction == FORWARD:
        result = F.conv2d(first, second, None, p.stride, p.padding, p.dilation, p.groups)
    else:
        options = (p.stride, p.padding, p.dilation, False, (0, 0), p.groups)
        x = second if p.direction == WEIGHT_GRAD else torch.empty(p.input_shape, dtype=torch.float64)
        weight = second if p.direction == INPUT_GRAD else torch.empty(p.weight_shape, dtype=torch.float64)
        wanted = (p.direction == INPUT_GRAD, p.direction == WEIGHT_GRAD, False)
        gradients = torch.ops.aten.convolution_backward(first, x, weight, None, *options, wanted)
        result = gradients[0 if p.direction == INPUT_GRAD else 1]
    if bias is not None:
        result = result + bias[:, None, None]
    if residual is not None:
        result = result + residual
    return result.relu() if p.activation == "relu" else result


def _run(candidate: Depthwise | Toeplitz, problem: ConvProblem, operands: list[Any]) -> Any:
    assert candidate.supports(problem), (problem, candidate.name)
    assert problem.epilogue.parts <= candidate.fuses(problem)
    out = array.empty(problem.result_shape, problem.dtype, 0, channels_last_strides(problem.result_shape))
    workspace = array.empty((max(candidate.workspace(problem), 1),), dtypes.uint8)
    given = [0 if each is None else each.data_pointer for each in operands]
    candidate.prepare(problem)(streams.current_handle(0), out.data_pointer, *given, workspace.data_pointer)
    return out


def _check(problem: ConvProblem, candidate: Depthwise | Toeplitz, put: Callable[[Any], Any], get: Any) -> None:
    operands = _operands(problem)
    expected = _expected(problem, operands)
    result = get(_run(candidate, problem, [None if each is None else put(each) for each in operands])).double()
    # Of few results, one may be off by all of its rounding; of sums that cancel, by that of their terms.
    size = max(float(expected.norm()), math.sqrt(expected.numel()))
    assert float((result - expected).norm()) <= 1.5 * accuracy.error_bound(problem) * size, candidate.name


on_host_only = pytest.mark.parametrize("cuda", ["simulated"], indirect=True)


@on_host_only
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, direction: str
) -> None:
    """Every kernel size, stride, dilation, padding and multiplier; the precisions in turns."""
    options, shape = CASES[case]
    dtype = list(TORCH)[case % 3]
    if dtype is dtypes.float32 and shape[0] == 8:
        dtype = dtypes.bfloat16
    problem = _problem(direction, options, dtype)
    _check(problem, Depthwise(_shape(problem, shape)), put, get)


@on_host_only
@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
def test_epilogues_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, direction: str, dtype: Any
) -> None:
    activation = "relu" if direction == FORWARD else None
    problem = _problem(direction, CASES[0][0], dtype, bias=True, residual=True, activation=activation)
    _check(problem, Depthwise(_shape(problem, (2, 2, 4, 1))), put, get)


@on_host_only
@pytest.mark.parametrize(("dtype", "multiplier", "mean"), [(dtypes.bfloat16, 1, 0), (dtypes.float32, 2, 1000)])
def test_statistics_on_the_host(cuda: Backend, on_host: None, dtype: Any, multiplier: int, mean: int) -> None:
    """Of several parts, the last of which is smaller; of channels that all lie far from 0, too."""
    case = ((3, 10, 8, 6), multiplier, (3, 3), (1, 1), (1, 1), (1, 1))
    problem = _problem(FORWARD, case, dtype, bias=True, statistics=True)
    candidate = Depthwise(_shape(problem, (2, 4, 3, 1), threads=32))
    assert "statistics" in candidate.fuses(problem)
    assert "statistics" not in Depthwise(_shape(problem, (2, 4, 4, 1))).fuses(problem)  # tiles that are cut off
    assert candidate.parts(problem).number > 1
    bench = ConvBench(problem)
    if mean:
        bench._bias = put_all(bench._bias, mean)
    built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
    assert bench.error(built) <= max(accuracy.error_bound(problem), 2e-6)


def put_all(bias: Any, value: int) -> Any:
    """All of it the same."""
    copy_into(bias, value)
    return bias


@on_host_only
def test_a_result_has_no_value_left_from_before(cuda: Backend, on_host: None) -> None:
    """The whole result is written, of either guess; and what the tuner checks is right."""
    for direction in DIRECTIONS:
        problem = _problem(direction, CASES[7][0], dtypes.float32)
        bench = ConvBench(problem)
        for candidate in DepthwiseFamily().variants(problem)[:2]:
            built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
            assert bench.error(built) <= accuracy.error_bound(problem)


SHAPES = [  # (input, taps, stride) of MobileNet, EfficientNet and ConvNeXt
    ((64, 32, 112, 112), 3, 1),
    ((64, 144, 56, 56), 3, 2),
    ((64, 240, 28, 28), 5, 2),
    ((64, 960, 7, 7), 3, 1),
    ((64, 96, 56, 56), 7, 1),
]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16], ids=str)
def test_the_choice(simulated: Backend, on_a_large_gpu: None, direction: str, dtype: Any) -> None:
    """What is tried differs in all that a shape has; its names lead back to it; and nobody waits for the choice."""
    for input_shape, taps, stride in SHAPES:
        case = (input_shape, 1, (taps, taps), (stride, stride), (taps // 2, taps // 2), (1, 1))
        problem = _problem(direction, case, dtype)
        family = DepthwiseFamily()
        choice = family.variants(problem)
        assert len({candidate.name for candidate in choice}) == len(choice) == 16
        assert (
            len({(candidate.shape.vector, candidate.shape.rows, candidate.shape.columns) for candidate in choice}) >= 8
        )
        assert len({candidate.shape.vector for candidate in choice}) > 1
        for candidate in choice:
            restored = family.named(problem, candidate.name)
            assert isinstance(restored, Depthwise)
            assert restored.shape == candidate.shape
            work = Work(problem, candidate.shape)
            assert work.num_threads <= candidate.shape.threads
            assert work.lanes * work.slices >= work.num_groups
            assert work.parts * work.iterations * work.workers >= work.num_units
        guess = next(iter(CONV.candidates(problem)))
        products = taps >= 5 and stride == 1 and dtype is dtypes.bfloat16 and direction != WEIGHT_GRAD
        others = ToeplitzFamily().variants(problem)
        assert products or not others
        assert guess.name == (others[0].name if others else choice[0].name)


@pytest.mark.parametrize("name", ["v2", "v2 4x0 ahead 1 t128 b8", "v2 4x4 ahead 1 t128 b99999", "x"])
def test_names_of_no_shape(simulated: Backend, name: str) -> None:
    assert DepthwiseFamily().named(_problem(FORWARD, CASES[0][0], dtypes.float32), f"depthwise/{name}") is None


def test_what_it_leaves_to_others(simulated: Backend, on_a_large_gpu: None) -> None:
    family = DepthwiseFamily()
    fits = _problem(FORWARD, CASES[0][0], dtypes.float32)
    assert family.variants(fits)
    others: list[dict[str, Any]] = [
        {"dtype": dtypes.float64},
        {"weight_shape": (6, 2, 3, 3), "groups": 3},
        {"input_shape": (2, 6, 40, 40), "weight_shape": (6, 1, 17, 17)},
        {"input_shape": (2**20, 6, 40, 40)},
    ]
    for each in others:
        assert not family.variants(dataclasses.replace(fits, **each))
    for alignment, vectors in ((4, {1}), (2, set())):  # of 6 channels in float32
        found = family.variants(dataclasses.replace(fits, alignment=alignment))
        assert {candidate.shape.vector for candidate in found} == vectors


def test_without_a_gpu_others_compute(simulated: Backend) -> None:
    assert not DepthwiseFamily().variants(_problem(FORWARD, CASES[0][0], dtypes.float32))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_kernels_compile(simulated: Backend, on_a_large_gpu: None, direction: str, arch: str) -> None:
    for dtype, options in itertools.product(TORCH, ({}, {"bias": True, "statistics": True})):
        if direction != FORWARD and options:
            continue
        problem = _problem(direction, CASES[0][0], dtype, **options)
        name, macros = Depthwise(Shape(2, 3, 4, 1)).program(problem)
        made = programs.cubin(name, programs.options(macros), arch)
        assert made[:4] == b"\x7fELF"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_on_a_gpu(gpu: Backend, case: int, direction: str, dtype: Any) -> None:
    options, shape = CASES[case]
    problem = _problem(direction, options, dtype)
    if shape[0] * dtype.itemsize <= 16:
        _check_on_gpu(problem, Depthwise(_shape(problem, shape, threads=128)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("case", range(len(TOEPLITZ)))
def test_products_on_a_gpu(gpu: Backend, case: int, direction: str, dtype: Any) -> None:
    (input_shape, taps, padding), patch = TOEPLITZ[case]
    for options in ({}, {"bias": True, "residual": True}):
        problem = _problem(direction, (input_shape, 1, taps, (1, 1), padding, (1, 1)), dtype, **options)
        _check_on_gpu(problem, Toeplitz(Patch(*patch, blocks=1)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_choice_on_a_gpu(gpu: Backend, shape: Any, direction: str, dtype: Any) -> None:
    (_, *rest), taps, stride = shape
    case = ((4, *rest), 1, (taps, taps), (stride, stride), (taps // 2, taps // 2), (1, 1))
    options: list[dict[str, Any]] = [{}]
    if direction == FORWARD:
        options += [{"bias": True, "residual": True, "activation": "relu"}, {"statistics": True}]
    for each in options:
        problem = _problem(direction, case, dtype, **each)
        choice = [*ToeplitzFamily().trials(problem), *DepthwiseFamily().variants(problem)]
        for candidate in choice[:: 1 if dtype is dtypes.bfloat16 else 4]:
            if problem.epilogue.parts <= candidate.fuses(problem):
                _check_on_gpu(problem, candidate)


def _check_on_gpu(problem: ConvProblem, candidate: Candidate[ConvProblem]) -> None:
    bench = ConvBench(problem)
    built = Built(candidate, candidate.prepare(problem), candidate.workspace(problem))
    few = 2 if math.prod(problem.result_shape) < 200 else 1
    bound = max(few * accuracy.error_bound(problem), 1e-5 if problem.statistics else 0)
    assert bench.error(built) <= bound, candidate.name


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
def test_products_compile(simulated: Backend, on_a_large_gpu: None, direction: str, arch: str) -> None:
    for dtype in (dtypes.float16, dtypes.bfloat16):
        problem = _problem(direction, ((2, 32, 56, 56), 1, (3, 5), (1, 1), (1, 2), (1, 1)), dtype, bias=True)
        name, macros = Toeplitz(Patch(2, 1, 1, 2, 2)).program(problem)
        assert programs.cubin(name, programs.options(macros), arch)[:4] == b"\x7fELF"


def test_choice_of_products(simulated: Backend, on_a_large_gpu: None) -> None:
    """With few taps they are only tried; with a stride, a dilation, a multiplier or odd channels, they are not."""
    case = ((64, 96, 56, 56), 1, (7, 7), (1, 1), (3, 3), (1, 1))
    problem, family = _problem(FORWARD, case, dtypes.bfloat16), ToeplitzFamily()
    choice = family.variants(problem)
    assert len({candidate.name for candidate in choice}) == len(choice) == 10
    for candidate in choice:
        restored = family.named(problem, candidate.name)
        assert isinstance(restored, Toeplitz)
        assert restored.name == candidate.name
    assert family.named(problem, "depthwise_toeplitz/1x1 w1x1 g0 b8") is None
    few = dataclasses.replace(problem, weight_shape=(96, 1, 3, 3), padding=(1, 1))
    assert family.trials(few)
    assert not family.variants(few)
    others: list[dict[str, Any]] = [
        {"stride": (2, 1)}, {"dilation": (1, 2)}, {"dtype": dtypes.float32}, {"direction": WEIGHT_GRAD},
        {"weight_shape": (192, 1, 7, 7)}, {"weight_shape": (96, 1, 7, 10)}, {"alignment": 8}, {"groups": 1},
        {"input_shape": (64, 97, 56, 56), "weight_shape": (97, 1, 7, 7), "groups": 97},
    ]  # fmt: skip
    for each in others:
        assert not family.trials(dataclasses.replace(problem, **each)), each


@on_host_only
@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD])
@pytest.mark.parametrize("case", range(len(TOEPLITZ)))
def test_products_on_the_host(
    cuda: Backend, on_host: None, put: Callable[[Any], Any], get: Any, case: int, direction: str
) -> None:
    (input_shape, taps, padding), patch = TOEPLITZ[case]
    dtype = (dtypes.float16, dtypes.bfloat16)[case % 2]
    options: dict[str, Any] = {"bias": True, "residual": True} if case % 3 == 0 else {}
    options |= {"activation": "relu"} if case == 0 and direction == FORWARD else {}
    problem = _problem(direction, (input_shape, 1, taps, (1, 1), padding, (1, 1)), dtype, **options)
    _check(problem, Toeplitz(Patch(*patch, blocks=1)), put, get)


@on_host_only
@pytest.mark.parametrize("seed", range(6))
def test_random_problems_on_the_host(cuda: Backend, on_host: None, seed: int) -> None:
    fuzz_depthwise.check(seed)
