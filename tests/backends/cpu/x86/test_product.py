"""Products with the weight where it lies, against float64: convolutions of few pixels and their input gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from genesis.backends.cpu import conv
from genesis.backends.cpu.x86 import changing, choices, machine, product
from genesis.backends.cpu.x86.problem import Problem
from genesis.records import ConvGeometry

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")

BOUND = 3e-7
# N, C, H, W, K, kernel, stride, padding, dilation
CASES = {
    "late 3×3": (1, 512, 7, 7, 512, (3, 3), (1, 1), (1, 1), (1, 1)),
    "several images": (3, 64, 5, 4, 100, (3, 3), (1, 1), (1, 1), (1, 1)),
    "strides": (2, 80, 9, 7, 68, (3, 3), (2, 3), (1, 0), (1, 1)),
    "strides leave pixels out": (1, 64, 8, 8, 64, (1, 1), (3, 2), (0, 0), (1, 1)),
    "dilation": (1, 96, 8, 9, 72, (3, 2), (1, 1), (2, 1), (2, 3)),
    "1×1": (2, 160, 7, 7, 960, (1, 1), (1, 1), (0, 0), (1, 1)),
    "1×1 with padding": (1, 64, 3, 3, 64, (1, 1), (1, 1), (1, 1), (1, 1)),
    "one pixel": (1, 64, 1, 1, 64, (1, 1), (1, 1), (0, 0), (1, 1)),
    "uneven blocks of pixels": (1, 64, 14, 15, 64, (5, 1), (1, 1), (2, 0), (1, 1)),
}


@pytest.fixture(params=["avx512", "avx2"], autouse=True)
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "avx512" and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    monkeypatch.setattr(machine, "vectors", lambda: request.param)
    return str(request.param)


def last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_both_directions(case: str, threads: int, order: torch.memory_format, vectors: str) -> None:
    batch, channels, height, width, outputs, kernel, *settings = CASES[case]
    geometry, wide = ConvGeometry(*settings, 1), vectors == "avx512"
    torch.manual_seed(0)
    x = last(torch.randn(batch, channels, height, width))
    weight = torch.randn(outputs, channels, *kernel).contiguous(memory_format=order)
    problem = Problem(tuple(x.shape), x.stride(), tuple(weight.shape), geometry, False, False, None)
    exact_x = x.double().requires_grad_()
    exact = F.conv2d(exact_x, weight.double(), None, *geometry)
    num_pixels = exact.numel() // outputs
    assert product.is_supported(num_pixels, tuple(weight.shape), 1)
    forward = product.Forward(problem, wide, threads)
    for bias in (None, torch.randn(outputs)):
        expected = exact.detach() if bias is None else exact.detach() + bias.view(-1, 1, 1)
        y = forward.run(x, weight, bias)
        assert y.shape == exact.shape
        assert y.is_contiguous(memory_format=torch.channels_last)
        assert (y - expected).norm() <= BOUND * expected.norm()
    if not product.has_input_grad(num_pixels, tuple(weight.shape), 1, wide):
        pytest.skip("no kernel for so many outputs")
    grad = last(torch.randn(exact.shape))
    (expected,) = torch.autograd.grad(exact, exact_x, grad.double())
    found = product.InputGrad(problem, wide, threads).run(grad, weight, None)
    assert found.shape == x.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert (found - expected).norm() <= BOUND * expected.norm()


def test_where_they_are_chosen() -> None:
    def refuse(*args: object) -> torch.Tensor:
        raise AssertionError("not chosen")

    plain = ConvGeometry((1, 1), (1, 1), (1, 1), 1)
    x, weight = last(torch.randn(1, 512, 7, 7)), last(torch.randn(512, 512, 3, 3))
    assert isinstance(planned(choices.FORWARD, x, weight, plain), product.Forward)
    assert isinstance(planned(choices.INPUT_GRAD, x, weight, plain), product.InputGrad)
    few = last(torch.randn(64, 64, 3, 3))
    assert isinstance(planned(choices.FORWARD, last(torch.randn(1, 64, 14, 14)), few, plain), changing.Repacked)
    assert planned(choices.FORWARD, last(torch.randn(1, 32, 2, 2)), last(torch.randn(16, 32, 3, 3)), plain) is None
    for stride, size in (((2, 2), 4), ((1, 1), 7)):
        geometry = plain._replace(stride=stride)
        grad = last(torch.randn(1, 512, size, size))
        found = changing.input_grad(grad, weight, (1, 512, 7, 7), geometry, refuse)
        assert found is not None
        assert torch.equal(conv.conv_input_grad(grad, weight, (1, 512, 7, 7), geometry), found)
    many = last(torch.randn(1, 512, 40, 40))  # pixels
    assert changing.input_grad(many, weight, (1, 512, 80, 80), plain._replace(stride=(2, 2)), refuse) is None


def planned(direction: str, x: torch.Tensor, weight: torch.Tensor, geometry: ConvGeometry) -> object:
    shape = (
        tuple(weight.shape) if direction == choices.FORWARD else (weight.shape[1], weight.shape[0], *weight.shape[2:])
    )
    key = tuple(x.shape), x.stride(), shape, geometry, False
    return changing._plan(direction, key, machine.vectors(), 2, "highest", 0, lambda *args: torch.empty(0))


def test_the_tuner_measures_strided_input_gradients(vectors: str) -> None:
    problem = Problem(
        (1, 64, 8, 8), (4096, 1, 512, 64), (64, 64, 3, 3), ConvGeometry((2, 2), (1, 1), (1, 1), 1), False, False, None
    )
    bench = changing._strided_bench(problem, vectors == "avx512", 2, conv.input_grad_by_onednn)
    choice = choices.ConvChoice(choices.STRIDED_INPUT_GRAD, problem, choices.PRODUCT, vectors, 2, "highest")
    assert choice.candidates == (choices.PRODUCT, choices.PLAIN)
    for name in choice.candidates:
        assert bench.milliseconds(name) > 0
        assert bench.error(name) <= 1e-6
    assert bench.error(choices.PRODUCT) <= BOUND
