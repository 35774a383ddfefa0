"""Float32 convolutions in "highest" against float64: mission's bound, and torch in its own order of memory."""

from __future__ import annotations

import pytest
import torch

import genesis
from genesis.backends.cpu import conv, sums
from genesis.nn import functional as F
from genesis.precision import float32_precision
from genesis.records import ConvGeometry

BOUND = 3e-7
# PyTorch's products, which 1×1 taps are, add up longer sums where it has no vectors.
BOUND_OF_PRODUCTS = 4e-7 if torch.backends.cpu.get_cpu_capability() == "DEFAULT" else BOUND
# N, C, H, K, kernel, stride, padding, dilation, groups
CASES = {
    "k3s1p0": (2, 128, 9, 64, 3, 1, 0, 1, 1),
    "k3s1p1": (2, 512, 7, 64, 3, 1, 1, 1, 1),
    "k3s2p1": (2, 256, 9, 64, 3, 2, 1, 1, 1),
    "k1s1p0": (2, 1024, 7, 64, 1, 1, 0, 1, 1),
    "k1s2p0": (2, 1024, 9, 64, 1, 2, 0, 1, 1),
    "k7s2p3": (2, 3, 24, 64, 7, 2, 3, 1, 1),
    "channels that fill no part": (2, 101, 9, 30, 3, 1, 1, 1, 1),
    "groups": (2, 256, 9, 96, 3, 1, 1, 1, 2),
    "dilation": (2, 128, 9, 64, 3, 1, 2, 2, 1),
    "1×1, padded": (2, 1024, 9, 64, 1, 2, 1, 1, 1),
}


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    return ((found.double() - exact).norm() / exact.norm()).item()


def operands(case: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, ConvGeometry]:
    torch.manual_seed(0)
    num, channels, size, outputs, kernel, stride, padding, dilation, groups = CASES[case]
    input = torch.randn(num, channels, size, size)
    weight = torch.randn(outputs, channels // groups, kernel, kernel)
    geometry = ConvGeometry((stride,) * 2, (padding,) * 2, (dilation,) * 2, groups)
    return input, weight, torch.randn(outputs), geometry


@pytest.fixture(params=["parts of the kernels", "parts of ours", "parts that PyTorch adds"])
def kernels_have_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways, where this processor has them; the last one is that of processors without AVX2."""
    if request.param == "parts of the kernels" and not sums._kernels_have_parts():
        return
    monkeypatch.setattr(sums, "_kernels_have_parts", lambda: request.param == "parts of the kernels")
    if request.param == "parts that PyTorch adds":
        monkeypatch.setattr(sums, "_adds_whole_sums", lambda: False)


@pytest.mark.usefixtures("kernels_have_parts")
@pytest.mark.parametrize("case", CASES)
def test_forward(case: str) -> None:
    input, weight, bias, geometry = operands(case)
    exact = torch.conv2d(input.double(), weight.double(), bias.double(), *geometry)
    found = conv.conv_forward(input, weight, bias, geometry)
    assert found.is_contiguous(memory_format=torch.channels_last)
    theirs = distance(torch.conv2d(input, weight, bias, *geometry), exact)
    bound = BOUND_OF_PRODUCTS if case.startswith("k1") else BOUND
    assert distance(found, exact) <= (bound if case.startswith("k") else max(BOUND, 1.05 * theirs))
    if sums._kernels_have_parts():
        assert distance(found, exact) <= 1.05 * theirs


@pytest.mark.parametrize("case", CASES)
def test_input_grad(case: str) -> None:
    input, weight, _, geometry = operands(case)
    exact_output = torch.conv2d(input.double(), weight.double(), None, *geometry)
    grad = torch.randn(exact_output.shape)
    options = (None, *geometry[:3], False, (0, 0), geometry[3], (True, False, False))
    exact = torch.ops.aten.convolution_backward(grad.double(), input.double(), weight.double(), *options)[0]
    found = conv.conv_input_grad(grad, weight, input.shape, geometry)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert distance(found, exact) <= 3.1e-7
    offset = torch.randn(weight.shape[1] * geometry[3])
    found = conv.conv_input_grad(grad, weight, input.shape, geometry, offset)
    assert distance(found, exact + offset.view(-1, 1, 1)) <= 3.1e-7


@pytest.mark.parametrize("kernels", ["ours", "oneDNN"])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_packed(
    monkeypatch: pytest.MonkeyPatch, case: str, has_residual: bool, activation: str | None, kernels: str
) -> None:
    if kernels == "oneDNN":
        monkeypatch.setattr(conv, "is_supported", lambda *args: False)
    input, weight, bias, geometry = operands(case)
    exact = torch.conv2d(input.double(), weight.double(), bias.double(), *geometry)
    residual = torch.randn(exact.shape) if has_residual else None
    before = None if residual is None else residual.clone()
    exact = exact if residual is None else exact + residual
    exact = exact.relu() if activation == "relu" else exact
    packed = conv.conv_prepack(weight, bias, input.shape, geometry)
    assert distance(conv.conv_prepacked(input, packed, residual, activation), exact) <= BOUND
    if residual is not None:
        assert torch.equal(residual, before)


def test_only_long_sums_of_the_highest_precision() -> None:
    assert sums.are_long(torch.float32, 512, (3, 3), (1, 1))
    assert not sums.are_long(torch.float32, 16, (3, 3), (1, 1))
    assert sums.are_long(torch.float32, 1024, (1, 1), (1, 1)) is not sums._adds_whole_sums()
    assert sums.are_long(torch.float32, 1024, (1, 1), (1, 1), is_packed=True)
    assert not sums.are_long(torch.float64, 512, (3, 3), (1, 1))
    with float32_precision("high"):
        assert not sums.are_long(torch.float32, 512, (3, 3), (1, 1))


def test_a_folded_layer_follows_the_precision() -> None:
    genesis.manual_seed(0)
    layer, x = genesis.nn.ConvBNReLU(256, 64, 3, padding=1).eval(), genesis.randn(1, 256, 7, 7)
    exact = layer.double()(x.double()).detach().numpy()
    layer = layer.float()
    with genesis.no_grad():
        with float32_precision("high"):
            layer(x)
        found = layer(x).numpy()
    assert ((found - exact) ** 2).sum() ** 0.5 <= 4e-7 * (exact**2).sum() ** 0.5


def test_the_sums_of_conv2d_and_its_transpose() -> None:
    genesis.manual_seed(0)
    x, weight = genesis.randn(2, 256, 9, 9), genesis.randn(256, 256, 3, 3)
    for function in (F.conv2d, F.conv_transpose2d):
        exact = function(x.double(), weight.double(), padding=1).numpy()
        found = function(x, weight, padding=1).numpy()
        assert ((found - exact) ** 2).sum() ** 0.5 <= BOUND * (exact**2).sum() ** 0.5, function.__name__
