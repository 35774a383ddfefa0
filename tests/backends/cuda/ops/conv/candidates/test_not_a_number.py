"""ReLU after a convolution keeps what is not a number, whichever candidate computes them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.engine.bench import build
from genesis.backends.cuda.ops.conv.operation import CONV
from genesis.backends.cuda.ops.conv.problem import FORWARD, ConvProblem
from tests.backends.cuda.ops.conv.candidates import against_float64 as candidates
from tests.backends.cuda.ops.conv.fuzz import ways

SHAPES = {
    "1x1": ((2, 64, 14, 14), (128, 64, 1, 1), (0, 0), 1),
    "3x3": ((2, 64, 14, 14), (64, 64, 3, 3), (1, 1), 1),
    "grouped": ((2, 64, 14, 14), (64, 16, 3, 3), (1, 1), 4),
    "depthwise": ((2, 64, 14, 14), (64, 1, 3, 3), (1, 1), 64),
}
ENDS: dict[str, dict[str, Any]] = {"plain": {}, "bias": {"bias": True}, "sum": {"bias": True, "residual": True}}
WORKSPACE = 1 << 28


def _lost(cuda: Backend, problem: ConvProblem, most: int) -> tuple[list[str], int]:
    """Of the first `most` candidates that can be built: those that made a number of NaN, and how many ran."""
    put, get = ways(cuda)
    operands = candidates.operands_of(problem)
    first, second, _, residual = operands
    assert first is not None
    assert second is not None
    first[0, 3, 5, 5] = math.nan
    if residual is not None:
        residual[1, 2, 7, 7] = math.nan
    wanted = candidates.expected_of(problem, operands).isnan()
    assert 0 < int(wanted.sum()) < wanted.numel()
    on_device = [None if each is None else put(each) for each in operands]
    lost, ran = [], 0
    buildable = (each for each in CONV.in_turns(problem) if build(each, problem, WORKSPACE) is not None)
    for candidate in itertools.islice(buildable, most):
        ran += 1
        result = get(candidates.run(problem, candidate, on_device))
        if not result.isnan()[wanted].all():
            lost.append(candidate.name)
    return lost, ran


def _problem(shape: str, dtype: dtypes.DType, end: str) -> ConvProblem:
    input, weight, padding, groups = SHAPES[shape]
    return ConvProblem(
        FORWARD, input, weight, padding=padding, groups=groups, dtype=dtype, activation="relu", **ENDS[end]
    )


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_first_candidate(cuda: Backend, shape: str, end: str) -> None:
    lost, ran = _lost(cuda, _problem(shape, dtypes.float32, end), 1)
    assert not lost
    assert ran


@pytest.mark.gpu
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16, dtypes.bfloat16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_candidate(gpu: Backend, shape: str, dtype: dtypes.DType, end: str) -> None:
    lost, ran = _lost(gpu, _problem(shape, dtype, end), 24)
    assert not lost
    assert ran > 3
