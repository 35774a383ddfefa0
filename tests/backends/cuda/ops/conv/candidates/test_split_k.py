"""Adding up partial sums: any number of them, against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from genesis import dtypes
from genesis.backends.backend import Backend
from genesis.backends.cuda.ops.conv.candidates.split_k import finisher
from genesis.backends.cuda.ops.conv.candidates.wgmma import folded_pixels
from genesis.backends.cuda.ops.conv.problem import FORWARD, WEIGHT_GRAD, ConvProblem
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


@pytest.mark.parametrize("pixels", [2, 4, 8])
def test_sums_of_pixels_side_by_side(cuda: Backend, put: Callable[[Any], Any], get: Any, pixels: int) -> None:
    """What the kernels compute of the folded problem, in three splits, adds up to the weight's gradient."""
    torch.manual_seed(0)
    problem = ConvProblem(WEIGHT_GRAD, (2, 10, 8, 9), (6, 10, 1, 1), dtype=dtypes.float32)
    folded = folded_pixels.fold(problem, pixels)
    assert folded is not None
    grad, input = torch.randn(2, 8, 9, 6), torch.randn(2, 8, 9, 10)
    (_, outputs, _, steps), inputs = folded.output_shape, folded.input_shape[1]
    halves = grad.reshape(steps, outputs), input.reshape(steps, inputs)
    parts = [(slice(0, 5), slice(5, 6), slice(6, None))[split] for split in range(3)]
    partial = torch.stack([halves[0][part].T @ halves[1][part] for part in parts])
    out = put(torch.full((6, 1, 1, 10), torch.nan))
    finisher(problem, 3, fold=pixels)(streams.current_handle(0), out.data_pointer, put(partial).data_pointer, 0, 0)
    expected = torch.einsum("nhwk,nhwc->kc", grad.double(), input.double())
    torch.testing.assert_close(get(out).double()[:, 0, 0], expected, rtol=1e-5, atol=1e-5)


def test_what_is_folded() -> None:
    product = ConvProblem(WEIGHT_GRAD, (2, 10, 8, 9), (6, 10, 1, 1), dtype=dtypes.float32)
    assert folded_pixels.fold(product, 2) is not None
    shape = {"input_shape": (1, 10, 7, 9)}
    for other in (
        {"direction": FORWARD},
        {"stride": (2, 2)},
        {"padding": (1, 1)},
        {"weight_shape": (6, 10, 3, 3)},
        shape,
    ):
        assert folded_pixels.fold(dataclasses.replace(product, **other), 2) is None, other
