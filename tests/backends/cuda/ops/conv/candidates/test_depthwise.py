"""Depthwise convolution in CUDA C++: compiled for the host against float64, compiled for GPUs, and run on one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.candidates.depthwise import kernel
from genesis.backends.cuda.ops.conv.candidates.depthwise.candidate import Depthwise
from genesis.backends.cuda.ops.conv.candidates.depthwise.shape import Shape
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import array, streams
from genesis.shapes import channels_last_strides
from tests.backends.cuda.ops.conv.candidates import depthwise_on_host

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


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    if not depthwise_on_host.is_available():
        pytest.skip("no g++")
    monkeypatch.setattr(kernel, "prepare", depthwise_on_host.prepare)
    monkeypatch.setattr(kernel, "is_available", lambda device: True)


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


def _run(candidate: Depthwise, problem: ConvProblem, operands: list[Any]) -> Any:
    assert candidate.supports(problem), (problem, candidate.name)
    assert problem.epilogue.parts <= candidate.fuses(problem)
    out = array.empty(problem.result_shape, problem.dtype, 0, channels_last_strides(problem.result_shape))
    workspace = array.empty((max(candidate.workspace(problem), 1),), dtypes.uint8)
    given = [0 if each is None else each.data_pointer for each in operands]
    candidate.prepare(problem)(streams.current_handle(0), out.data_pointer, *given, workspace.data_pointer)
    return out


def _check(problem: ConvProblem, candidate: Depthwise, put: Callable[[Any], Any], get: Any) -> None:
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
