"""One candidate of a convolution against float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from genesis import dtypes
from genesis.backends.cuda.engine.candidate import Candidate, admissible
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from genesis.backends.cuda.runtime import array, streams
from genesis.shapes import channels_last_strides

DIRECTIONS = (FORWARD, INPUT_GRAD, WEIGHT_GRAD)
TORCH = {dtypes.float32: torch.float32, dtypes.float16: torch.float16, dtypes.bfloat16: torch.bfloat16}


def problem_of(direction: str, case: Any, dtype: Any, **options: Any) -> ConvProblem:
    groups, (inputs, outputs), images, sizes, taps, stride, padding, dilation = case
    return ConvProblem(
        direction, (images, groups * inputs, *sizes), (groups * outputs, inputs, *taps), stride, padding, dilation,
        groups, dtype=dtype, **options,
    )  # fmt: skip


def product_of(case: tuple[int, ...], dtype: Any, direction: str, **options: Any) -> ConvProblem:
    """A 1×1 convolution; case: images, inputs, height, outputs."""
    images, inputs, size, outputs = case
    return ConvProblem(direction, (images, inputs, size, size), (outputs, inputs, 1, 1), dtype=dtype, **options)


def operands_of(problem: ConvProblem) -> list[torch.Tensor | None]:
    """first, second, bias, residual."""
    torch.manual_seed(0)
    p, dtype = problem, TORCH[problem.dtype]
    scale = 1 if p.direction == WEIGHT_GRAD else 1 / math.sqrt(p.num_terms)
    found = [torch.randn(p.first_shape), torch.randn(p.second_shape) * scale]
    host = [each.to(dtype).contiguous(memory_format=torch.channels_last) for each in found]
    bias = torch.randn(p.result_shape[1]).to(dtype) if p.bias else None
    residual = torch.randn(p.result_shape).to(dtype) if p.residual else None
    return [*host, bias, None if residual is None else residual.contiguous(memory_format=torch.channels_last)]


def expected_of(problem: ConvProblem, operands: list[torch.Tensor | None]) -> torch.Tensor:
    p = problem
    first, second, bias, residual = (None if each is None else each.double() for each in operands)
    assert first is not None
    assert second is not None
    options = (p.stride, p.padding, p.dilation, p.groups)
    if p.direction == FORWARD:
        result = F.conv2d(first, second, None, *options)
    elif p.direction == INPUT_GRAD:
        result = torch.nn.grad.conv2d_input(p.input_shape, second, first, *options)
    else:
        result = torch.nn.grad.conv2d_weight(second, p.weight_shape, first, *options)
    result = result if bias is None else result + bias[:, None, None]
    result = result if residual is None else result + residual
    return result.relu() if p.activation else result


def run(problem: ConvProblem, candidate: Candidate[ConvProblem], operands: list[Any]) -> Any:
    assert admissible(candidate, problem)
    out = array.empty(problem.result_shape, problem.dtype, 0, channels_last_strides(problem.result_shape))
    workspace = array.empty((max(candidate.workspace(problem), 1),), dtypes.uint8)
    given = [0 if operand is None else operand.data_pointer for operand in operands]
    candidate.prepare(problem)(streams.current_handle(0), out.data_pointer, *given, workspace.data_pointer)
    return out


_MARGIN = 512  # elements around the result that must stay as they are


def run_within_margins(
    problem: ConvProblem, candidate: Candidate[ConvProblem], put: Callable[[Any], Any], get: Any, *operands: Any
) -> Any:
    """run(), without a residual, and that nothing beside the result was written: in float64."""
    n, c, h, w = problem.result_shape
    memory = put(torch.full((n * c * h * w + 2 * _MARGIN,), -7.0, dtype=TORCH[problem.dtype]))
    workspace = array.empty((max(candidate.workspace(problem), 1),), dtypes.uint8)
    addresses = [0 if operand is None else operand.data_pointer for operand in operands]
    out = memory.data_pointer + _MARGIN * problem.dtype.itemsize
    candidate.prepare(problem)(streams.current_handle(0), out, *addresses, 0, workspace.data_pointer)
    found = get(memory).double()
    assert (found[:_MARGIN] == -7).all()
    assert (found[-_MARGIN:] == -7).all()
    return found[_MARGIN:-_MARGIN].view(n, h, w, c).permute(0, 3, 1, 2)


def check(put: Callable[[Any], Any], get: Any, problem: ConvProblem, candidate: Candidate[ConvProblem]) -> None:
    operands = operands_of(problem)
    result = run(problem, candidate, [None if each is None else put(each) for each in operands])
    expected = expected_of(problem, operands)
    error = float((get(result).double() - expected).norm() / expected.norm())
    few = 2 if expected.numel() < 200 else 1  # the error of few elements is not spread
    assert error <= few * accuracy.error_bound(problem), f"{problem}: {candidate.name}: {error:.2e}"
