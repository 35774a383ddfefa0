"""Batch norm of few channels against torch's in float64: right, at least as accurate, and only where it pays."""

from __future__ import annotations

import pytest
import torch

from genesis.backends.cpu import batchnorm

# N, C, H, W. Numbers of pixels that two, three or nothing divides; one channel; as many channels as there may be.
SHAPES = [(2, 16, 8, 8), (3, 24, 5, 7), (2, 5, 9, 6), (1, 1, 16, 15), (1, 7, 11, 13)]


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchnorm, "_LEAST_NUMBERS", 1)


def channels_last(*shape: int) -> torch.Tensor:
    return torch.randn(shape).mul_(3).add_(2).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_tracked", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_normalize(shape: tuple[int, ...], is_tracked: bool, has_bias: bool, has_weight: bool) -> None:
    torch.manual_seed(0)
    x, channels = channels_last(*shape), shape[1]
    given = [torch.randn(channels) if wanted else None for wanted in (has_weight, has_bias, is_tracked)]
    weight, bias, mean = given
    var = torch.rand(channels) + 0.5 if is_tracked else None
    exact = [None if each is None else each.double() for each in (weight, bias, mean, var)]
    assert batchnorm._pays(x, weight, bias, mean, var)
    found = batchnorm.normalize(x, weight, bias, mean, var, True, 0.1, 1e-5)
    expected = torch.native_batch_norm(x.double(), *exact, True, 0.1, 1e-5)
    pairs = [*zip(found, expected, strict=True), *zip((mean, var), exact[2:], strict=True)]
    for ours, theirs in pairs:
        if theirs is not None:
            assert ours is not None
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6 * theirs.abs().max().item())
    assert found[0].is_contiguous(memory_format=torch.channels_last)


def test_normalize_is_more_accurate_than_torch() -> None:
    torch.manual_seed(0)
    x = channels_last(2, 16, 128, 128)
    exact, ours, theirs = (
        normalize(values, None, None, None, None, True, 0.1, 1e-5)[0]
        for normalize, values in (
            (torch.native_batch_norm, x.double()), (batchnorm.normalize, x), (torch.native_batch_norm, x),
        )
    )  # fmt: skip
    assert (ours - exact).abs().max() < (theirs - exact).abs().max()


def test_pays() -> None:
    x, vector = channels_last(2, 16, 8, 8), torch.ones(16)
    assert batchnorm._pays(x, vector, None)
    refused = [
        (x.contiguous(), vector),
        (x[..., :7], vector),
        (x.double(), vector.double()),
        (x.bfloat16(), vector),
        (x, vector.double()),
        (channels_last(2, 25, 8, 8), None),
        (x.flatten(2), vector),
    ]
    for other, of_channels in refused:
        assert not batchnorm._pays(other, of_channels), (other.shape, other.dtype)


def test_small_images_take_torchs_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not batchnorm._pays(channels_last(1, 16, 8, 8))
    assert batchnorm._pays(torch.empty(4, 16, 128, 128, memory_format=torch.channels_last))
