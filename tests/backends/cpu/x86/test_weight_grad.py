"""The weight gradient by our kernel, against float64."""

from __future__ import annotations

import pytest
import torch

from genesis.backends.cpu.x86 import machine, weight_grad
from genesis.backends.cpu.x86.problem import Problem
from genesis.records import ConvGeometry

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")

aten = torch.ops.aten
BOUND = 3e-7
# x, K, kernel, stride, padding, dilation
CASES = {
    "3×3": ((2, 32, 9, 8), 20, (3, 3), (1, 1), (1, 1), (1, 1)),
    "strides": ((3, 64, 11, 13), 7, (3, 2), (2, 3), (1, 0), (1, 1)),
    "dilation": ((1, 16, 12, 12), 16, (3, 3), (1, 1), (2, 2), (2, 2)),
    "1×1": ((2, 96, 7, 7), 33, (1, 1), (1, 1), (0, 0), (1, 1)),
    "1×1, strides": ((2, 48, 7, 9), 5, (1, 1), (2, 2), (0, 0), (1, 1)),
    "wide padding": ((1, 16, 3, 2), 1, (5, 5), (1, 1), (3, 3), (1, 1)),
    "vectors of two sizes": ((1, 80, 20, 30), 12, (1, 3), (1, 1), (0, 1), (1, 1)),
    "many rows": ((5, 16, 40, 3), 30, (3, 3), (1, 1), (1, 1), (1, 1)),
}


@pytest.fixture(params=["avx512", "avx2"], autouse=True)
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "avx512" and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    monkeypatch.setattr(machine, "vectors", lambda: request.param)


def problem_of(shape: tuple, outputs: int, kernel: tuple, *geometry: tuple) -> Problem:
    strides = shape[1] * shape[2] * shape[3], 1, shape[1] * shape[3], shape[1]
    return Problem(shape, strides, (outputs, shape[1], *kernel), ConvGeometry(*geometry, 1), False, False, None)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_against_float64(case: str, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    problem = problem_of(*CASES[case])
    assert weight_grad.is_supported(problem, machine.vectors() == "avx512")
    torch.manual_seed(0)
    x, weight = torch.randn(problem.input_shape), torch.empty(problem.weight_shape, dtype=torch.float64)
    grad = torch.randn(problem.output_shape)
    stride, padding, dilation, _ = problem.geometry
    options = (None, stride, padding, dilation, False, (0, 0), 1, (False, True, False))
    exact = aten.convolution_backward(grad.double(), x.double(), weight, *options)[1]
    operands = [each.contiguous(memory_format=torch.channels_last) for each in (grad, x)]
    for _ in range(2):  # nothing is left over from a run before
        found = weight_grad.weight_grad(*operands, problem.weight_shape, problem.geometry)
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert (found - exact).norm() <= BOUND * exact.norm()


def test_what_is_left_to_others() -> None:
    wide = machine.vectors() == "avx512"
    assert not weight_grad.is_supported(problem_of((1, 12, 5, 5), 8, (1, 1), (1, 1), (0, 0), (1, 1)), wide)
    never_met = problem_of((1, 16, 1, 1), 8, (3, 3), (1, 1), (1, 1), (1, 1))
    assert not weight_grad.is_supported(never_met, wide), "of taps that never meet the image, nothing would be written"
    assert not weight_grad.is_supported(problem_of((0, 16, 5, 5), 8, (1, 1), (1, 1), (0, 0), (1, 1)), wide)
    assert weight_grad.pays((64, 64, 3, 3), wide)
    assert not weight_grad.pays((96, 16, 1, 1), wide)
    assert weight_grad.pays((1024, 512, 1, 1), wide) == wide
