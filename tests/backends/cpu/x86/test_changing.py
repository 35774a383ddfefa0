"""Convolutions of training against float64: the forward pass and the input gradient, with weights that change."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from genesis.backends.cpu.x86 import changing, machine
from genesis.records import ConvGeometry

pytestmark = pytest.mark.skipif(machine.vectors() is None, reason="not an x86-64 processor with AVX2, on Linux")

BOUND = 3e-7
# C, K, kernel, stride, padding, dilation
CASES = {
    "Winograd": (64, 64, 3, 1, 1, 1),
    "few channels": (3, 24, 7, 2, 3, 1),
    "dilation": (128, 96, 3, 1, 2, 2),
    "1×1": (160, 48, 1, 1, 0, 1),
    "uneven parts": (72, 40, 5, 1, 2, 1),
    "depthwise": (48, 48, 3, 1, 1, 1),
    "depthwise, strides": (32, 32, 5, 2, 1, 1),
    "depthwise, 1×1": (16, 16, 1, 1, 0, 1),
}


def sliced(x: torch.Tensor) -> torch.Tensor:
    """The values of x, as a view of a larger tensor: its elements are apart in memory."""
    larger = x.new_zeros([size + 1 for size in x.shape])
    view = larger[tuple(slice(size) for size in x.shape)]
    return view.copy_(x)


@pytest.fixture(params=["avx512", "avx2"], autouse=True)
def vectors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "avx512" and machine.vectors() != "avx512":
        pytest.skip("no AVX-512")
    monkeypatch.setattr(machine, "vectors", lambda: request.param)
    monkeypatch.setattr(changing, "_LEAST_PIXELS", 0)


def plain(*args: object) -> torch.Tensor:
    raise AssertionError("nothing is measured unasked")


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format, None])
@pytest.mark.parametrize("case", CASES)
def test_with_changing_weights(case: str, order: torch.memory_format | None) -> None:
    channels, outputs, kernel, stride, padding, dilation = CASES[case]
    torch.manual_seed(0)
    geometry = ConvGeometry((stride,) * 2, (padding,) * 2, (dilation,) * 2, channels if "depthwise" in case else 1)
    x = torch.randn(2, channels, 17, 16).contiguous(memory_format=torch.channels_last)
    for has_bias in (True, False, True):  # the plan is kept, the weights are not
        weight = torch.randn(outputs, channels // geometry.groups, kernel, kernel)
        weight = sliced(weight) if order is None else weight.contiguous(memory_format=order)
        bias = torch.randn(outputs, 2)[:, 0] if has_bias else None
        exact_x = x.double().requires_grad_()
        exact = F.conv2d(exact_x, weight.double(), None if bias is None else bias.double(), *geometry)
        found = changing.forward(x, weight, bias, geometry, plain)
        assert found is not None
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert (found - exact).norm() <= BOUND * exact.norm()
        grad = torch.randn(exact.shape).contiguous(memory_format=torch.channels_last)
        (exact_grad,) = torch.autograd.grad(exact, exact_x, grad.double())
        found = changing.input_grad(grad, weight, tuple(x.shape), geometry, plain)
        if stride > 1:
            assert found is None  # of few channels
        elif found is not None:  # of AVX2's kernels, those of three channels are missing
            assert found.shape == x.shape
            assert (found - exact_grad).norm() <= BOUND * exact_grad.norm()


def test_what_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    x, geometry = (
        torch.randn(2, 8, 9, 9).contiguous(memory_format=torch.channels_last),
        ConvGeometry((1, 1), (1, 1), (1, 1), 1),
    )
    assert changing.forward(x.double(), torch.randn(16, 8, 3, 3).double(), None, geometry, plain) is None
    assert changing.forward(x, torch.randn(16, 1, 3, 3), None, geometry._replace(groups=8), plain) is None
    assert changing.forward(x[:0], torch.randn(16, 8, 3, 3), None, geometry, plain) is None
    turned = geometry._replace(padding=(3, 3))
    assert changing.input_grad(x, torch.randn(8, 16, 3, 3), (2, 16, 5, 5), turned, plain) is None
    monkeypatch.setattr(changing, "_LEAST_PIXELS", 400)
    assert not changing.pays(tuple(x.shape), (16, 8, 3, 3), geometry)
    assert changing.pays((4, 8, 14, 14), (16, 8, 3, 3), geometry)
    assert changing.pays(tuple(x.shape), (16, 1, 3, 3), geometry._replace(groups=16))
