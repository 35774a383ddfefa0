"""Adding up partial sums: any number of them, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.problem import FORWARD, ConvProblem
from genesis.backends.cuda.runtime import streams


@pytest.mark.parametrize("splits", [1, 3, 64, 67, 530])
@pytest.mark.parametrize("whole", [False, True], ids=["sums", "bias, residual, relu"])
def test_partial_sums(cuda: Backend, put: Callable[[Any], Any], get: Any, splits: int, whole: bool) -> None:
    torch.manual_seed(0)
    activation = "relu" if whole else None
    problem = ConvProblem(
        FORWARD, (2, 16, 3, 3), (20, 16, 1, 1), dtype=dtypes.float32, bias=whole, residual=whole, activation=activation
    )
    images, outputs, height, width = problem.result_shape
    partial = torch.randn(splits, images, height, width, outputs)
    partial[:, 1, 2, 1, 3] = 0
    partial[-1, 1, 2, 1, 3] = torch.nan  # in the last one of a result near the end
    bias, residual = torch.randn(outputs), torch.randn(images, height, width, outputs)
    out = put(torch.full_like(residual, torch.nan))
    given = [put(each) for each in (partial, bias, residual)]
    finisher(problem, splits)(streams.current_handle(0), out.data_pointer, *[each.data_pointer for each in given])
    expected = partial.double().sum(0)
    if whole:
        expected = (expected + bias + residual).relu()
    torch.testing.assert_close(get(out).double(), expected, rtol=1e-6, atol=1e-6, equal_nan=True)
