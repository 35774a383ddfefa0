"""Convolution nets run NHWC in memory without being asked: no op between convolutions changes the order."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import genesis
import genesis.nn.functional as F
from genesis import backends, shapes
from genesis.backends.cpu import conv as cpu_conv
from tests.functional.agreement import normal, to_genesis


@contextmanager
def counted_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, ...]]]:
    """The shapes of the planes that had to be copied into NHWC order."""
    copies: list[tuple[int, ...]] = []
    backend, to_channels_last = backends.get("cpu"), cpu_conv._channels_last
    copy = backend.copy

    def counting_copy(x: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
        if x.ndim == 4 and strides != x.stride() and strides == shapes.channels_last_strides(x.shape):
            copies.append(tuple(x.shape))
        return copy(x, strides)

    def counting_channels_last(x: torch.Tensor) -> torch.Tensor:
        y = to_channels_last(x)
        if y.data_ptr() != x.data_ptr():
            copies.append(tuple(x.shape))
        return y

    with monkeypatch.context() as patch:
        patch.setattr(backend, "copy", counting_copy)
        patch.setattr(cpu_conv, "_channels_last", counting_channels_last)
        yield copies


def net(x: Any, weights: list[Any]) -> Any:
    """Every kind of op that stands between the convolutions of a segmentation net."""
    first, second, third, up, last = weights
    x = F.relu(F.batch_norm(F.conv2d(x, first, padding=1), None, None, training=True))
    skip = F.silu(F.group_norm(F.conv2d(x, second, padding=1), 4))
    x = F.max_pool2d(skip, 2)
    x = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), third) + x
    x = F.avg_pool2d(F.dropout(F.leaky_relu(x), 0.1), 3, 1, 1)
    x = F.conv_transpose2d(x, up, stride=2)
    x = genesis.cat([x, skip], 1)
    x = F.conv2d(F.gelu(x) * 0.5, last)
    return F.interpolate(F.instance_norm(x), scale_factor=2, mode="bilinear")


def test_no_layout_copies_between_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ((8, 3, 3, 3), (8, 8, 3, 3), (8, 8, 3, 3), (8, 8, 2, 2), (2, 16, 1, 1))
    weights = [to_genesis(normal(*shape, dtype=torch.float32), True) for shape in shapes]
    x = to_genesis(normal(2, 3, 8, 8, dtype=torch.float32))
    with counted_copies(monkeypatch) as copies:
        y = net(x, weights)
        assert y.is_contiguous(memory_format=genesis.channels_last)
        assert copies == [(2, 3, 8, 8)]  # the picture itself, once
        start = genesis.ones_like(y).contiguous(memory_format=genesis.channels_last)
        copies.clear()
        y.backward(start)
        assert copies == [(2, 8, 8, 8)]  # a half of the concatenation's gradient: channels cut from NHWC aren't dense


def test_the_count_sees_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    x = to_genesis(normal(2, 3, 8, 8, dtype=torch.float32))
    weight = to_genesis(normal(3, 3, 1, 1, dtype=torch.float32))
    with counted_copies(monkeypatch) as copies:
        F.conv2d(F.conv2d(x, weight).contiguous(), weight)
    assert len(copies) == 2


@pytest.mark.parametrize("shape", [(16, 1, 3, 3), (4, 3, 1, 1), (1, 3, 4, 4), (2, 1, 1, 5)])
def test_a_copy_keeps_the_strides_of_dimensions_of_size_1(shape: tuple[int, ...]) -> None:
    """torch tells by them in which order a convolution of one channel writes."""
    strides = shapes.channels_last_strides(shape)
    weight = genesis.from_torch(torch.empty_strided(shape, strides).fill_(1))
    assert weight.clone().stride() == copy.deepcopy(weight).stride() == strides
