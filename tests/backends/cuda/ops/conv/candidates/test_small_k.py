"""Convolutions to a few channels, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv.candidates.small_k.candidate import SmallK, SmallKFamily
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import array, streams
from genesis.shapes import channels_last_strides

CASES = [
    ((2, 16, 7, 7), (1, 16, 3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 70, 6, 9), (3, 70, 2, 3), (2, 1), (0, 2), (1, 2)),
    ((1, 5, 4, 5), (4, 5, 1, 1), (1, 2), (0, 0), (1, 1)),
]


def _run(problem: ConvProblem, *operands: Any) -> Any:
    candidate = SmallK()
    assert candidate.supports(problem)
    out = array.empty(problem.result_shape, problem.dtype, 0, channels_last_strides(problem.result_shape))
    workspace = array.empty((max(candidate.workspace(problem), 1),), dtypes.uint8)
    given = [0 if operand is None else operand.data_pointer for operand in operands]
    candidate.prepare(problem)(streams.current_handle(0), out.data_pointer, *given, workspace.data_pointer)
    return out


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_small_k(cuda: Backend, put: Callable[[Any], Any], get: Any, case: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    input_shape, weight_shape, *geometry = case
    tolerance = 3e-7 if dtype is torch.float32 else 4e-3

    def make(*shape: int) -> torch.Tensor:
        values = torch.randn(shape).to(dtype)
        return values.contiguous(memory_format=torch.channels_last) if len(shape) == 4 else values

    def close(result: Any, expected: torch.Tensor) -> None:
        assert (get(result).double() - expected).norm() <= tolerance * expected.norm()

    name = str(dtype).removeprefix("torch.")
    given = {"dtype": dtypes.BY_NAME[name]}
    x, weight = make(*input_shape), make(*weight_shape)
    wide_x, wide_weight = x.double().requires_grad_(), weight.double().requires_grad_()
    y = F.conv2d(wide_x, wide_weight, None, *geometry)
    bias, residual, grad = make(weight_shape[0]), make(*y.shape), make(*y.shape)
    expected = (y + bias.double()[:, None, None] + residual.double()).relu()
    problem = ConvProblem(
        FORWARD, input_shape, weight_shape, *geometry, bias=True, residual=True, activation="relu", **given
    )
    close(_run(problem, put(x), put(weight), put(bias), put(residual)), expected.detach())
    grad_x, grad_weight = torch.autograd.grad(y, (wide_x, wide_weight), grad.double())
    input_bias = make(input_shape[1])
    problem = ConvProblem(INPUT_GRAD, input_shape, weight_shape, *geometry, bias=True, **given)
    close(_run(problem, put(grad), put(weight), put(input_bias), None), grad_x + input_bias.double()[:, None, None])
    problem = ConvProblem(WEIGHT_GRAD, input_shape, weight_shape, *geometry, **given)
    close(_run(problem, put(grad), put(x), None, None), grad_weight)


def test_what_it_leaves_to_others(simulated: Backend) -> None:
    shapes = ((2, 16, 7, 7), (1, 16, 3, 3))
    assert SmallKFamily().variants(ConvProblem(FORWARD, *shapes, dtype=dtypes.float32))
    assert not SmallKFamily().variants(ConvProblem(FORWARD, *shapes, dtype=dtypes.float64))
    assert not SmallKFamily().variants(ConvProblem(FORWARD, shapes[0], (5, 16, 3, 3), dtype=dtypes.float32))
    assert not SmallKFamily().variants(ConvProblem(FORWARD, shapes[0], (1, 16, 7, 7), dtype=dtypes.float32))
