"""What results are judged by: the extended precision of the fuzzer's float64 reference, and the tuner's bounds."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

from genesis import dtypes
from genesis.backends.cuda.ops.conv import accuracy
from genesis.backends.cuda.ops.conv.problem import FORWARD, INPUT_GRAD, WEIGHT_GRAD, ConvProblem
from tests.backends.cuda.ops.conv.exact import convolved


def by_definition(problem: ConvProblem, first: torch.Tensor, second: torch.Tensor) -> np.ndarray:
    """In fractions, term by term."""
    p = problem
    out = np.full(p.result_shape, Fraction(0))
    images, outputs, rows, columns = p.output_shape
    per_group, outputs_per_group = p.weight_shape[1], outputs // p.groups
    for n, k, y, x, c, r, s in product(*map(range, (images, outputs, rows, columns, *p.weight_shape[1:]))):
        h = y * p.stride[0] + r * p.dilation[0] - p.padding[0]
        w = x * p.stride[1] + s * p.dilation[1] - p.padding[1]
        if not (0 <= h < p.input_shape[2] and 0 <= w < p.input_shape[3]):
            continue
        places = {
            "input": (n, k // outputs_per_group * per_group + c, h, w), "weight": (k, c, r, s), "output": (n, k, y, x),
        }  # fmt: skip
        result, *operands = {
            FORWARD: ("output", "input", "weight"), INPUT_GRAD: ("input", "output", "weight"),
            WEIGHT_GRAD: ("weight", "output", "input"),
        }[p.direction]  # fmt: skip
        term = Fraction(float(first[places[operands[0]]])) * Fraction(float(second[places[operands[1]]]))
        out[places[result]] += term
    return out


@pytest.mark.parametrize("direction", [FORWARD, INPUT_GRAD, WEIGHT_GRAD])
def test_extended_precision(direction: str) -> None:
    problem = ConvProblem(
        direction, (2, 4, 6, 7), (6, 2, 2, 3), (2, 1), (1, 2), (1, 2), groups=2, dtype=dtypes.float64
    )  # fmt: skip
    torch.manual_seed(0)
    first, second = (torch.randn(s, dtype=torch.float64) for s in (problem.first_shape, problem.second_shape))
    result, exact = convolved(problem, first, second), by_definition(problem, first, second)
    high = result.astype(np.float64)
    low = (result - high).astype(np.float64)
    errors = [
        abs(float(Fraction(float(a)) + Fraction(float(b)) - c))
        for a, b, c in zip(high.flat, low.flat, exact.flat, strict=True)
    ]
    assert max(errors) < 2.0**-58  # of float64 it would be 2⁻⁵²


@pytest.mark.parametrize(("dtype", "wide"), [(np.float32, np.float64), (np.float64, np.longdouble)])
@pytest.mark.parametrize("terms", [40, 250])
def test_a_chain_of_multiply_adds_is_the_bound(dtype: type, wide: type, terms: int) -> None:
    """What error_bound() says of a chain is measured: not less, so that a right result passes, and hardly more."""
    results = 4096
    rng = np.random.default_rng(0)
    chain, exact = np.zeros(results, dtype), np.zeros(results, wide)
    for _ in range(terms):
        term = wide(1) * rng.standard_normal(results).astype(dtype) * rng.standard_normal(results).astype(dtype)
        chain = (chain + term).astype(dtype)
        exact += term
    error = math.sqrt(float(np.square(chain - exact).sum() / np.square(exact).sum()))
    kind = dtypes.BY_NAME[np.dtype(dtype).name]
    problem = ConvProblem(FORWARD, (1, terms, 64, 64), (1, terms, 1, 1), dtype=kind)
    assert 0.95 <= error / accuracy.chain_error(problem) <= 1.05
    assert error <= accuracy.error_bound(problem) * (1.05 if dtype is np.float32 else 1)
    assert accuracy.error_bound(problem) <= 1.2 * error


@pytest.mark.parametrize(
    ("problem", "bound"),
    [
        (ConvProblem(FORWARD, (1, 4608, 9, 9), (64, 4608, 1, 1), dtype=dtypes.float32), 3e-7),
        (ConvProblem(FORWARD, (1, 1, 9, 9), (64, 1, 1, 1), dtype=dtypes.float32), 1e-7),
        (ConvProblem(FORWARD, (1, 64, 9, 9), (64, 64, 1, 1), dtype=dtypes.float32, precision="high"), 2.0**-10),
        (ConvProblem(FORWARD, (1, 64, 9, 9), (64, 64, 1, 1), dtype=dtypes.bfloat16), 2.0**-9),
        (ConvProblem(FORWARD, (1, 900, 8, 8), (1, 900, 1, 1), dtype=dtypes.float64), 0.3 * 30 * 2.05 * 2.0**-53),
    ],
    ids=str,
)  # fmt: skip
def test_bounds(problem: ConvProblem, bound: float) -> None:
    assert accuracy.error_bound(problem) == pytest.approx(bound, rel=1e-2)
