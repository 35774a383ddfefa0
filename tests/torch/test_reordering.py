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
from genesis.torch import computed, norm_factors, reordering
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
        self.conv, self.grouped = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=4)
        self.reflected = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.norm, self.few, self.relu = nn.BatchNorm2d(8), nn.BatchNorm2d(11), nn.ReLU(inplace=True)
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y, other = self.a(x), self.b(x)
        z = self.function(self, y, other, x)
        self.seen.append((type(z) is Pending, z.stride()))
        return (self.c(z), z, y, other) if self.again else (self.c(z),)


def twice(y: Tensor) -> Tensor:
    return F.relu(y) + torch.sigmoid(y) * y


def write(whole: Tensor, part: Tensor) -> Tensor:
    part.add_(1)
    return whole


def before(part: Tensor, written: object) -> Tensor:
    return part


def one_tap(m: Any, order: torch.memory_format) -> Tensor:
    """A weight that is contiguous in either order, whose strides say which: those of the result depend on it."""
    weight: Tensor = m.conv.weight[:, :, :1, :1].clone(memory_format=order)
    assert weight.is_contiguous()
    return weight


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
    "gate in place": (lambda m, y, other, x: y.mul_(squeeze(m, y, other, x)), 8, True),
    "product": (lambda m, y, other, x: y * other, 8, True),
    "sum": (lambda m, y, other, x: y + other, 8, True),
    "difference": (lambda m, y, other, x: (y - other) / 2, 8, True),
    "sum, twice": (lambda m, y, other, x: y + other * 2 + y, 8, True),
    "sum with a channels-last image": (
        lambda m, y, other, x: y + other.clone(memory_format=torch.channels_last), 8, True,
    ),
    "channels-last image and sum": (
        lambda m, y, other, x: other.clone(memory_format=torch.channels_last) + y, 8, False,
    ),
    "indices": (lambda m, y, other, x: F.max_pool2d(y, 2, return_indices=True)[0], 8, False),
    "another rank": (lambda m, y, other, x: torch.cat([y.flatten(2), other.flatten(2)], 1), 0, False),
    "changed later": (lambda m, y, other, x: F.max_pool2d(y, 2).add_(1), 8, True),
    "sum in place": (lambda m, y, other, x: y.add_(other), 8, True),
    "sum in place, broadcast": (lambda m, y, other, x: y.add_(other.mean((2, 3), keepdim=True)), 8, True),
    "wider sum in place": (lambda m, y, other, x: y.add_(other[:1] * 2), 8, True),
    "another dtype in place": (lambda m, y, other, x: y.add_(other.double()), 8, False),
    "activation": (lambda m, y, other, x: F.silu(y), 8, True),
    "activation in place": (lambda m, y, other, x: (F.hardswish(y, inplace=True), y)[1], 8, True),
    "relu in place of a summand": (lambda m, y, other, x: (y + other, y.sub_(1), y.relu_())[0] + y, 8, True),
    "a layer in place": (lambda m, y, other, x: nn.ReLU6(inplace=True)(other + y), 8, True),
    "convolution": (lambda m, y, other, x: m.conv(y), 8, True),
    "grouped convolution": (lambda m, y, other, x: m.grouped(y), 8, True),
    "convolution by torch": (lambda m, y, other, x: F.conv2d(y, m.conv.weight, None, 2, padding=1), 8, True),
    "convolution of one tap": (lambda m, y, other, x: F.conv2d(y, one_tap(m, torch.contiguous_format)), 8, True),
    "one tap in channels-last": (lambda m, y, other, x: F.conv2d(y, one_tap(m, torch.channels_last)), 8, False),
    "reflected padding": (lambda m, y, other, x: m.reflected(y), 8, False),
    "norm": (lambda m, y, other, x: m.norm(y + other), 8, True),
    "norm and relu": (lambda m, y, other, x: F.relu(m.norm(y + other)), 8, True),
    "norm and relu in place": (lambda m, y, other, x: m.relu(m.norm(y + other)), 8, True),
    "norm, used twice": (lambda m, y, other, x: twice(m.norm(y + other)), 8, True),
    "norm of few channels": (lambda m, y, other, x: m.few(torch.cat([y, x], 1)), 11, True),
    "norm by torch": (lambda m, y, other, x: F.batch_norm(y, m.few.running_mean[:8], m.few.running_var[:8]), 8, True),
    "mean": (lambda m, y, other, x: y.mean((2, 3), keepdim=True), 8, False),
    "mean of rows": (lambda m, y, other, x: torch.mean(y, 2, keepdim=True), 8, False),
    "mean, flat": (lambda m, y, other, x: y.mean((2, 3)), 0, False),
    "slice": (lambda m, y, other, x: y[:, 2:6], 4, True),
    "slice of everything": (lambda m, y, other, x: y[:, :8], 8, True),
    "slice of pixels": (lambda m, y, other, x: y[..., ::2, 1:-1], 8, True),
    "one channel": (lambda m, y, other, x: y[:, 3:4], 1, True),
    "slice of a slice": (lambda m, y, other, x: y[:, 1:7][:, 2:], 4, True),
    "an index": (lambda m, y, other, x: y[:, [0, 2]], 2, False),
    "one image": (lambda m, y, other, x: y[0], 0, False),
    "split": (lambda m, y, other, x: torch.cat([torch.split(y, [3, 5], 1)[1], y.split(4, dim=1)[0]], 1), 9, True),
    "chunk": (lambda m, y, other, x: y.chunk(2, dim=1)[1] + other.chunk(2, 1)[0], 4, True),
    "narrow": (lambda m, y, other, x: y.narrow(1, 2, 4) * 2, 4, True),
    "activated slice": (lambda m, y, other, x: F.relu(y[:, :4] - 1), 4, True),
    "convolution of a slice": (lambda m, y, other, x: m.conv(torch.cat([y, other], 1)[:, 4:12]), 8, True),
    "write into a slice": (lambda m, y, other, x: write(y, y[:, :4]), 8, False),
    "write into a slice of a slice": (lambda m, y, other, x: write(y, y[:, :4][:, 1:3]), 8, False),
    "sum in place of a whole slice": (lambda m, y, other, x: (y[:, :8].add_(other), y)[1], 8, True),
    "activate a slice in place": (lambda m, y, other, x: (F.silu(y[:, :4], inplace=True), y)[1], 8, False),
    "slice, then write": (lambda m, y, other, x: before(y[:, :4], y.mul_(-1)), 4, True),
    "slice, then write by other code": (lambda m, y, other, x: before(y[:, :4], y.sub_(1)), 4, True),
    "slice, then assign": (lambda m, y, other, x: before(y[:, :4], y.__setitem__((slice(None), 1), 3.0)), 4, True),
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


class Dense(nn.Module):
    """Norm, activation and convolution, of all that came before; half of the channels go on."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 * n) for n in (1, 2, 3))
        self.convs = nn.ModuleList(nn.Conv2d(8 * n, 8, 3, padding=1) for n in (1, 2, 3))
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Sequential(nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            parts.append(conv(self.relu(norm(torch.cat(parts, 1)))))
        first, second = torch.cat(parts, 1).chunk(2, 1)
        first = first + second
        return self.last(first)


def test_a_dense_block_copies_its_result_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    theirs = Dense().eval()
    for norm in theirs.norms:
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias)
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    x = torch.randn(2, 3, 9, 8)
    copies: list[torch.Size] = []
    ordered = computed.ordered
    monkeypatch.setattr(computed, "ordered", lambda y, plan: (copies.append(y.shape), ordered(y, plan))[1])
    with torch.no_grad():
        for _ in range(5):  # by then it is known which convolutions no norm follows
            copies.clear()
            y = ours(x)
            torch.testing.assert_close(y, theirs(x), rtol=1e-5, atol=1e-5)
    assert copies == [y.shape]
    follows = None if norm_factors._kernel() is None else "relu"
    assert {(norm.forward.bare.follows, norm.forward.bare.in_vain) for norm in ours.norms} == {(follows, 0)}


@pytest.mark.skipif(norm_factors._kernel() is None, reason="this processor has no kernel")
def test_an_activation_that_no_longer_follows_is_not_computed_ahead() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
            self.norm, self.activate = nn.BatchNorm2d(8), True

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.a(x) * 2 - 1)
            return F.relu(y) if self.activate else y

    model = genesis.torch.fuse(Model().eval())
    plain = genesis.torch.unfuse(copy.deepcopy(model))
    bare = model.norm.forward.bare
    x = torch.randn(2, 3, 9, 8)
    for model.activate in (True, True, False, False, False, False, True):
        plain.activate = model.activate
        with torch.no_grad():
            torch.testing.assert_close(model(x), plain(x), rtol=1e-5, atol=1e-5)
    assert bare.follows == "relu"
    assert bare.in_vain == 3  # then it was given up


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
