"""Pooling, interpolation, padding and pixel shuffling: memory order, gradients, and the message of every refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as TF

import genesis
import genesis.nn.functional as F
from genesis.errors import DTypeError, ShapeError
from tests.functional.agreement import assert_agreement, assert_close, normal, to_genesis

CALLS = [
    lambda F, x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda F, x: F.max_pool2d(x, (2, 3), dilation=(2, 1)),
    lambda F, x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    lambda F, x: F.avg_pool2d(x, (2, 3), divisor_override=5),
    lambda F, x: F.adaptive_avg_pool2d(x, (3, None)),
    lambda F, x: F.adaptive_max_pool2d(x, 3),
    lambda F, x: F.interpolate(x, scale_factor=(1.5, 0.7), mode="bilinear"),
    lambda F, x: F.interpolate(x, scale_factor=1.7, mode="bilinear", recompute_scale_factor=True),
    lambda F, x: F.interpolate(x, size=5, mode="area"),
    lambda F, x: F.interpolate(x, scale_factor=2),
    lambda F, x: F.pad(x, (1, 2, -1, 3), value=2.5),
    lambda F, x: F.pad(x, (1, 2, 3, 0), mode="reflect"),
    lambda F, x: F.pad(x, (1, 2, 3, 0), mode="replicate"),
    lambda F, x: F.pad(x, (1, -2, 3, 0), mode="circular"),
    lambda F, x: F.interpolate(x, size=(4, 9), mode="bicubic", align_corners=True),
    lambda F, x: F.pixel_shuffle(x, 2),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_agreement(call: Any, channels_last: bool) -> None:
    x = normal(2, 4, 6, 7)
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    assert_agreement(lambda x: call(F, x), lambda x: call(TF, x), x)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("window", [{}, {"ceil_mode": True}, {"stride": 1}, {"dilation": 2}, {"padding": 1}], ids=str)
@pytest.mark.parametrize("size", [(6, 8), (5, 7)], ids=str)
def test_max_pool2d_without_indices(size: tuple[int, int], window: dict[str, Any], channels_last: bool) -> None:
    x = normal(2, 4, *size)
    x[0, 1, 2, 2], x[1, 2, 1] = float("nan"), float("-inf")
    x = x.contiguous(memory_format=torch.channels_last) if channels_last else x
    y, expected = F.max_pool2d(to_genesis(x), 2, **window), TF.max_pool2d(x, 2, **window)
    assert torch.equal(y.to_torch().nan_to_num(7.0), expected.nan_to_num(7.0))
    assert y.is_contiguous(memory_format=genesis.channels_last) == channels_last
    with_indices = F.max_pool2d(to_genesis(x), 2, **window, return_indices=True)
    assert torch.equal(with_indices[1].to_torch(), TF.max_pool2d(x, 2, **window, return_indices=True)[1])


@pytest.mark.parametrize("call", CALLS[:-1])  # PyTorch's pixel_shuffle has no gradient there
def test_empty_batch(call: Any) -> None:
    assert_agreement(lambda x: call(F, x), lambda x: call(TF, x), normal(0, 4, 6, 7))


@pytest.mark.parametrize("call", CALLS)
def test_gradcheck(call: Any) -> None:
    assert genesis.autograd.gradcheck(lambda x: call(F, x), [to_genesis(normal(1, 4, 5, 6), True)])


@pytest.mark.parametrize("call", CALLS[:-2])
def test_channels_last_is_kept(call: Any) -> None:
    x = to_genesis(normal(2, 4, 6, 7).contiguous(memory_format=torch.channels_last), True)
    y = call(F, x)
    assert y.is_contiguous(memory_format=genesis.channels_last)
    start = genesis.ones_like(y).contiguous(memory_format=genesis.channels_last)
    (grad,) = genesis.autograd.grad(y, x, start)
    assert grad.is_contiguous(memory_format=genesis.channels_last)


def test_volume_by_area() -> None:
    call = {"size": (2, 3, 4), "mode": "area"}
    assert_agreement(lambda x: F.interpolate(x, **call), lambda x: TF.interpolate(x, **call), normal(2, 3, 5, 7, 6))


def test_indices() -> None:
    x = normal(2, 3, 6, 7)
    for name, args in (("max_pool2d", (2,)), ("adaptive_max_pool2d", (2,))):
        y, indices = getattr(F, name)(to_genesis(x), *args, return_indices=True)
        expected, expected_indices = getattr(TF, name)(x, *args, return_indices=True)
        assert_close(y, expected)
        assert indices.tolist() == expected_indices.tolist()


REFUSALS = [
    (lambda x: F.max_pool2d(x[0, 0], 2), ShapeError, "max_pool2d: argument 'input': expected 4 dimensions, or 3 witho"),
    (lambda x: F.max_pool2d(x[:, :0], 2), ShapeError, "'input': expected sizes >= 1 but for the batch"),
    (lambda x: F.max_pool2d(x.long(), 2), DTypeError, "'input': expected a floating dtype"),
    (lambda x: F.max_pool2d(x, 0), ShapeError, "'kernel_size': expected numbers >= 1, got 0"),
    (lambda x: F.max_pool2d(x, 2, 0), ShapeError, "'stride': expected numbers >= 1, got 0"),
    (lambda x: F.max_pool2d(x, 2, padding=2), ShapeError, "'padding': expected at most half of kernel_size 2, got 2"),
    (lambda x: F.max_pool2d(x, 9), ShapeError, "at least the window's 9, got 6"),
    (lambda x: F.avg_pool2d(x, 2, divisor_override=0), ValueError, "'divisor_override': expected a number other than"),
    (lambda x: F.avg_pool1d(x, 2), ShapeError, "avg_pool1d: argument 'input': expected 3 dimensions, or 2 without"),
    (lambda x: F.adaptive_avg_pool2d(x, (1, 2, 3)), ShapeError, "'output_size': expected 1 or 2 numbers"),
    (lambda x: F.adaptive_avg_pool2d(x, -1), ShapeError, "'output_size': expected numbers >= 0"),
    (lambda x: F.interpolate(x), ValueError, "'size': expected either size or scale_factor"),
    (lambda x: F.interpolate(x, 3, 2.0), ValueError, "'size': expected either size or scale_factor"),
    (lambda x: F.interpolate(x, 3, mode="cubic"), ValueError, "'mode': expected one of nearest, nearest-exact"),
    (lambda x: F.interpolate(x, 3, mode="linear"), ShapeError, "with 1 spatial dimensions for mode 'linear'"),
    (lambda x: F.interpolate(x, 3, align_corners=True), ValueError, "'align_corners': expected None with mode 'neares"),
    (lambda x: F.interpolate(x, 3, antialias=True), ValueError, "'antialias': expected False with mode 'nearest'"),
    (lambda x: F.interpolate(x, 3, recompute_scale_factor=True), ValueError, "'recompute_scale_factor': expected None"),
    (lambda x: F.interpolate(x, scale_factor=(1, 2, 3)), ShapeError, "'scale_factor': expected 1 or 2 numbers"),
    (lambda x: F.interpolate(x, scale_factor=0.01), ShapeError, r"before and after; \(6, 6\) became \(0, 0\)"),
    (lambda x: F.interpolate(x.long(), 3), DTypeError, "'input': expected a floating dtype"),
    (lambda x: F.pad(x, (1, 2, 3)), ShapeError, "'pad': expected an even count of at most 8 numbers"),
    (lambda x: F.pad(x, 1), DTypeError, "'pad': expected a tuple of ints, got 1"),
    (lambda x: F.pad(x, (-4, -3)), ShapeError, "'pad': expected to crop no more than there is"),
    (lambda x: F.pad(x, (1, 1), mode="wrap"), ValueError, "'mode': expected \"constant\", \"reflect\", \"replicate\""),
    (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect", value=1), ValueError, "'value': expected None with mode 'reflec"),
    (lambda x: F.pad(x, (6, 1, 1, 1), mode="reflect"), ShapeError, "'pad': expected less than the size 6 it repeats"),
    (lambda x: F.pad(x, (7, 1, 1, 1), mode="circular"), ShapeError, "'pad': expected at most the size 6 it repeats"),
    (lambda x: F.pad(x, (1, 1), mode="replicate"), ShapeError, "'input': expected 2 or 3 dimensions, as mode 'replica"),
    (lambda x: F.pixel_shuffle(x, 3), ShapeError, "'input': expected channels divisible by 3²"),
    (lambda x: F.pixel_shuffle(x, 0), ShapeError, "'upscale_factor': expected numbers >= 1, got 0"),
    (lambda x: F.pixel_shuffle(x[0, 0], 2), ShapeError, "'input': expected at least 3 dimensions"),
    (lambda x: F.pixel_unshuffle(x, 4), ShapeError, "'input': expected height and width divisible by 4"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSALS)
def test_refusals(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(genesis.zeros(2, 4, 6, 6))
