"""Winograd's convolution against the direct one in float64: right, at least as accurate, and only where it pays."""

from __future__ import annotations

import pytest
import torch

from genesis.backends.cpu import conv, winograd
from genesis.backends.cpu.conv import PackedWeight
from genesis.precision import float32_precision
from genesis.records import ConvGeometry

# N, C, H, W; K; padding; dilation. Odd sizes leave tiles half empty; dilation takes an image apart.
CASES = [
    ((2, 32, 8, 8), 48, (1, 1), (1, 1)),
    ((3, 16, 7, 10), 16, (1, 1), (1, 1)),
    ((1, 48, 9, 5), 16, (0, 2), (1, 1)),
    ((2, 16, 13, 11), 32, (2, 2), (2, 2)),
    ((1, 16, 17, 16), 16, (4, 1), (4, 1)),
    ((1, 16, 6, 5), 16, (3, 6), (3, 6)),
    ((1, 16, 3, 3), 16, (0, 0), (1, 1)),
]


def operands(shape: tuple[int, ...], out_channels: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    input = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(out_channels, shape[1], 3, 3) / (9 * shape[1]) ** 0.5
    return input, weight, torch.randn(out_channels)


def packed_weight(
    weight: torch.Tensor, bias: torch.Tensor | None, shape: tuple[int, ...], geometry: ConvGeometry
) -> PackedWeight:
    packed = conv.conv_prepack(weight, bias, shape, geometry)
    assert isinstance(packed, PackedWeight)
    return packed


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 16, 1 << 30])
@pytest.mark.parametrize(("shape", "out_channels", "padding", "dilation"), CASES)
def test_convolve(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], out_channels: int, padding: tuple[int, int],
    dilation: tuple[int, int], chunk_bytes: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(winograd, "_CHUNK_BYTES", chunk_bytes)
    input, weight, bias = operands(shape, out_channels)
    packed = winograd.pack(weight, bias, shape, padding, dilation)
    y = winograd.convolve(input, packed)
    options = (1, padding, dilation)
    expected = torch.conv2d(input.double(), weight.double(), bias.double(), *options)
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=2e-6 * expected.abs().max().item())
    assert y.is_contiguous(memory_format=torch.channels_last)
    without_bias = winograd.convolve(input, winograd.pack(weight, None, shape, padding, dilation))
    torch.testing.assert_close(without_bias, y - bias[:, None, None], rtol=0, atol=1e-5)


def test_convolve_is_no_less_accurate_than_direct() -> None:
    input, weight, bias = operands((1, 256, 14, 14), 128)
    exact = torch.conv2d(input.double(), weight.double(), bias.double(), padding=1)
    direct = torch.conv2d(input, weight, bias, padding=1)
    y = winograd.convolve(input, winograd.pack(weight, bias, input.shape, (1, 1), (1, 1)))
    assert (y - exact).abs().max() <= (direct - exact).abs().max()


@pytest.fixture
def on_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on processors that our own kernels are not for."""
    monkeypatch.setattr(conv, "is_supported", lambda *args: False)


@pytest.mark.usefixtures("on_onednn")
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("has_residual", [False, True])
def test_conv_prepacked_takes_winograd(dilation: int, activation: str | None, has_residual: bool) -> None:
    shape, geometry = (1, 128, 28, 27), ConvGeometry((1, 1), (dilation, dilation), (dilation, dilation), 1)
    input, weight, bias = operands(shape, 144)
    assert packed_weight(weight, bias, shape, geometry).winograd is None  # its sums are too long for "highest"
    with float32_precision("high"):
        packed = packed_weight(weight, bias, shape, geometry)
    assert packed.winograd is not None
    for x in (input, input[:, :, :-3]):  # another shape takes the direct way
        residual = torch.randn(1, 144, *x.shape[2:]) if has_residual else None
        before = None if residual is None else residual.clone()
        y = conv.conv_prepacked(x, packed, residual, activation)
        expected = torch.conv2d(x.double(), weight.double(), bias.double(), *geometry)
        plain = torch.conv2d(x.contiguous(memory_format=torch.channels_last), weight, bias, *geometry)
        theirs = (plain - expected).abs().max().item()  # without AVX2, a chain of all products
        expected = expected if residual is None else expected + residual
        expected = expected.relu() if activation == "relu" else expected
        torch.testing.assert_close(y.double(), expected, rtol=0, atol=max(1e-5, 1.05 * theirs))
        if residual is not None:
            assert torch.equal(residual, before)


def test_pays() -> None:
    weight = torch.empty(256, 128, 3, 3)
    geometry = ((1, 1), (1, 1), (1, 1), 1)
    assert winograd.pays(weight, (4, 128, 14, 14), *geometry)
    assert winograd.pays(weight, (1, 128, 64, 64), (1, 1), (4, 4), (4, 4), 1)
    refused: list[tuple[torch.Tensor, tuple[int, ...], tuple[object, ...]]] = [
        (weight.double(), (4, 128, 14, 14), geometry),
        (weight.bfloat16(), (4, 128, 14, 14), geometry),
        (weight[:64, :64], (4, 64, 56, 56), geometry),  # more passes than products are saved
        (torch.empty(2048, 256, 3, 3), (1, 256, 64, 64), geometry),  # a weight that is larger than caches
        (weight, (1, 128, 64, 64), ((1, 1), (36, 36), (36, 36), 1)),  # mostly padding for the direct way
        (weight[:130], (4, 128, 14, 14), geometry),
        (weight[..., :1], (4, 128, 14, 14), geometry),
        (weight, (1, 128, 7, 7), geometry),  # too few tiles
        (weight, (64, 128, 1, 1), geometry),  # tiles that are mostly padding
        (weight, (0, 128, 14, 14), geometry),
        (weight, (4, 128, 14, 14), ((2, 2), *geometry[1:])),
        (weight, (4, 256, 14, 14), (*geometry[:3], 2)),
    ]
    for other, shape, options in refused:
        assert not winograd.pays(other, shape, *options), (tuple(other.shape), other.dtype, shape, options)


@pytest.mark.usefixtures("on_onednn")
def test_other_convolutions_stay_direct() -> None:
    packed = packed_weight(torch.randn(16, 16, 3, 3), None, (1, 16, 8, 8), ConvGeometry((1, 1), (1, 1), (1, 1), 1))
    assert packed.winograd is None
    assert packed.weight.is_mkldnn
