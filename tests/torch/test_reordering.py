"""Functions between chains of a contiguous model take channels-last values; all that can be seen is as in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import genesis.torch
from genesis.torch import reordering
from genesis.torch.pending import Pending

Function = Callable[..., Any]


class Between(nn.Module):
    """A function of two chains' results and of a plain image, and then a third chain."""

    def __init__(self, function: Function, channels: int, again: bool) -> None:
        super().__init__()
        self.a, self.b = (nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU()) for _ in range(2))
        self.c = nn.Sequential(nn.Conv2d(channels, 4, 1), nn.BatchNorm2d(4), nn.ReLU()) if channels else nn.Identity()
        self.function, self.again = function, again
        self.up = nn.ConvTranspose2d(8, 8, 2, 2)
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, other = self.a(x), self.b(x)
        z = self.function(self, y, other, x)
        self.seen.append((type(z) is Pending, z.stride()))
        return (self.c(z), z, y, other) if self.again else (self.c(z),)


def squeeze(m: Any, y: Tensor, other: Tensor, x: Tensor) -> Tensor:
    return torch.sigmoid(F.adaptive_avg_pool2d(y, 1))


# The function, the channels of its result, and whether that is in channels-last until other code asks for it.
CASES: dict[str, tuple[Function, int, bool]] = {
    "max pooling": (lambda m, y, other, x: F.max_pool2d(y, 2), 8, True),
    "max pooling by torch": (lambda m, y, other, x: torch.max_pool2d(y, 3, stride=2, padding=1), 8, True),
    "a layer": (lambda m, y, other, x: nn.MaxPool2d(3, 2, 1)(y), 8, True),
    "average pooling": (lambda m, y, other, x: F.avg_pool2d(y, 2, ceil_mode=True), 8, True),
    "adaptive": (lambda m, y, other, x: F.adaptive_avg_pool2d(y, (3, 2)), 8, True),
    "adaptive, one pixel": (lambda m, y, other, x: F.adaptive_avg_pool2d(y, 1), 8, False),
    "an adaptive layer": (lambda m, y, other, x: nn.AdaptiveAvgPool2d([2, None])(y), 8, True),
    "cat": (lambda m, y, other, x: torch.cat([y, other], 1), 16, True),
    "cat of a tuple": (lambda m, y, other, x: torch.cat((y, other), dim=1), 16, True),
    "cat of one": (lambda m, y, other, x: torch.cat([y]), 8, True),
    "cat with an image": (lambda m, y, other, x: torch.cat([y, x], 1), 11, True),
    "cat of small parts": (lambda m, y, other, x: torch.cat([x, y, x, x, x, x], 1), 23, False),
    "cat on the batch": (lambda m, y, other, x: torch.concat([y, other]), 8, True),
    "cat with a copy": (lambda m, y, other, x: torch.cat([y, other.double().float()], 1), 16, True),
    "cat into a tensor": (lambda m, y, other, x: torch.cat([y, other], 1, out=torch.empty(0)), 16, False),
    "interpolation": (lambda m, y, other, x: F.interpolate(y, scale_factor=2.0, mode="nearest"), 8, True),
    "bilinear": (lambda m, y, other, x: F.interpolate(y, (7, 5), mode="bilinear", align_corners=False), 8, True),
    "the same size": (lambda m, y, other, x: F.interpolate(y, y.shape[2:]), 8, True),
    "upsampling": (lambda m, y, other, x: m.up(y), 8, True),
    "U-Net": (lambda m, y, other, x: torch.cat([F.avg_pool2d(m.up(y), 2), other], 1), 16, True),
    "gate": (lambda m, y, other, x: y * squeeze(m, y, other, x), 8, True),
    "gate first": (lambda m, y, other, x: squeeze(m, y, other, x) * y, 8, True),
    "gate in place": (lambda m, y, other, x: y.mul_(squeeze(m, y, other, x)), 8, False),
    "product": (lambda m, y, other, x: y * other, 8, True),
    "sum": (lambda m, y, other, x: y + other, 8, True),
    "sum, twice": (lambda m, y, other, x: y + other * 2 + y, 8, True),
    "sum with a channels-last image": (
        lambda m, y, other, x: y + other.clone(memory_format=torch.channels_last), 8, True,
    ),
    "channels-last image and sum": (
        lambda m, y, other, x: other.clone(memory_format=torch.channels_last) + y, 8, False,
    ),
    "indices": (lambda m, y, other, x: F.max_pool2d(y, 2, return_indices=True)[0], 8, False),
    "another rank": (lambda m, y, other, x: torch.cat([y.flatten(2), other.flatten(2)], 1), 0, False),
    "changed later": (lambda m, y, other, x: F.max_pool2d(y, 2).add_(1), 8, False),
    "the operand changes later": (lambda m, y, other, x: (F.avg_pool2d(y, 2), y.zero_())[0], 8, True),
}  # fmt: skip


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_without(name: str, again: bool) -> None:
    function, channels, waits = CASES[name]
    torch.manual_seed(0)
    theirs = Between(function, channels, again).eval()
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    for shape in ((2, 3, 8, 6), (2, 3, 8, 6), (1, 3, 5, 9)):
        x = torch.randn(shape)
        with torch.no_grad():
            results, expected = ours(x), theirs(x)
        for y, wanted in zip(results, expected, strict=True):
            assert type(y) is Tensor
            assert y.stride() == wanted.stride()
            torch.testing.assert_close(y, wanted, rtol=1e-5, atol=1e-5)
    assert [strides for _, strides in ours.seen] == [strides for _, strides in theirs.seen]
    assert {found for found, _ in ours.seen} == {waits}


@pytest.mark.parametrize("how", ["channels_last", "autocast", "gradients", "a mode"])
def test_what_is_left_to_pytorch(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, channels, _ = CASES["U-Net"]
    theirs = Between(function, channels, True).eval()
    x = torch.randn(2, 3, 8, 6)
    if how == "channels_last":
        theirs, x = theirs.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    monkeypatch.setattr(reordering, "pending", None)  # it would be called
    mode = torch.overrides.BaseTorchFunctionMode() if how == "a mode" else nullcontext()
    cast = torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast")
    with torch.set_grad_enabled(how == "gradients"), cast, mode:
        results, expected = ours(x), theirs(x)
    tolerance = 0.1 if how == "autocast" else 1e-5
    for y, wanted in zip(results, expected, strict=True):
        assert (y.dtype, y.stride(), y.requires_grad) == (wanted.dtype, wanted.stride(), wanted.requires_grad)
        torch.testing.assert_close(y, wanted, rtol=tolerance, atol=tolerance)
