"""Average pooling of a 1×1 convolution's result: the input is pooled instead."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from tests.torch.chains import agree, agree_in_order, pair

pytestmark = pytest.mark.usefixtures("activates")


class Net(nn.Module):
    """A 1×1 convolution whose result goes somewhere."""

    def __init__(self, after: Callable[[nn.Module, Tensor], Tensor], kernel: int = 1, bias: bool = False) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 6, kernel, bias=bias)
        self.n = nn.BatchNorm2d(6)
        self.pool = nn.AvgPool2d(2)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self, self.c(torch.tanh(x)))


def used_twice(net: nn.Module, y: Tensor) -> Tensor:
    return net.pool(y) + y[:, :, :4:2, :4:2]


POOLED = ("avg_pool2d",)
AFTER: list[tuple[Callable[[nn.Module, Tensor], Tensor], tuple[str, ...]]] = [
    (lambda net, y: net.pool(y), POOLED),
    (lambda net, y: F.avg_pool2d(y, (2, 3), (3, 4)), POOLED),  # some pixels belong to no window
    (lambda net, y: F.avg_pool2d(y, [2]), POOLED),
    (lambda net, y: F.relu(net.n(net.pool(y))), (*POOLED, "norm", "relu")),
    (lambda net, y: net.n(net.pool(y)).sigmoid(), (*POOLED, "norm", "sigmoid")),
    (lambda net, y: F.silu(net.pool(y)), (*POOLED, "silu")),
    (lambda net, y: net.n(net.pool(y)).exp(), (*POOLED, "norm")),
    (lambda net, y: net.pool(y * 0.5), ("mul", *POOLED)),
    (lambda net, y: net.pool(y) * 0.5 + 1, (*POOLED, "mul")),
    (lambda net, y: F.avg_pool2d(y, 3, 2), ()),  # windows overlap
    (lambda net, y: F.avg_pool2d(y, 2, padding=1), ()),
    (lambda net, y: F.avg_pool2d(y, 2, ceil_mode=True), ()),
    (lambda net, y: F.avg_pool2d(y, 2, divisor_override=3), ()),
    (lambda net, y: F.avg_pool2d(y, y.shape[2:]), ()),  # one pixel is left
    (lambda net, y: F.max_pool2d(y, 2), ()),
    (used_twice, ()),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("number", range(len(AFTER)))
def test_pooling(number: int, channels_last: bool) -> None:
    after, fused = AFTER[number]
    theirs, ours = pair(Net(after, bias=number % 2 == 0).double())
    agree_in_order(theirs, ours, channels_last)
    if not fused and channels_last and number % 2 == 0:
        fused = ("bias",)
    found = genesis.torch.report(ours).fused
    assert [tuple({"n": "norm"}.get(part, part) for part in parts[1:]) for parts in found] == [fused] * bool(fused)


@pytest.mark.parametrize(("kernel", "channels"), [(3, 6), (1, 1), (1, 32)])
def test_other_convolutions_are_left(kernel: int, channels: int) -> None:
    """More than one tap; and a weight whose input has more numbers than the result that would be pooled."""
    x = torch.randn(2, channels if kernel == 1 else 3, 8, 8, dtype=torch.float64)
    theirs, ours = pair(nn.Sequential(nn.Conv2d(x.shape[1], 6, kernel, bias=False), nn.AvgPool2d(2)).double())
    agree(theirs, ours, x.requires_grad_())
    assert bool(genesis.torch.report(ours).fused) is (channels == 1)


def test_an_input_that_changes_before_the_pooling() -> None:
    model = genesis.torch.fuse(nn.Sequential(nn.Conv2d(3, 6, 1), nn.AvgPool2d(2)))
    x = torch.randn(2, 3, 8, 8)
    y = model[0](x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place before its result was used"):
        model[1](y)


def test_the_pooled_input_may_change_afterwards() -> None:
    """Gradients don't need the input itself."""
    plain = nn.Sequential(nn.Conv2d(3, 6, 1), nn.AvgPool2d(2)).double()
    grads = []
    for model in (plain, genesis.torch.fuse(copy.deepcopy(plain))):
        torch.manual_seed(0)
        x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        y = model(x)
        if model is not plain:
            x.zero_()
        y.square().sum().backward()
        grads.append([each.grad for each in model.parameters()])
    torch.testing.assert_close(*grads)


def test_under_autocast_and_hooks() -> None:
    """The dtype that autocast prescribes; a convolution that is watched computes its own result."""
    theirs, ours = pair(nn.Sequential(nn.Conv2d(3, 6, 1), nn.AvgPool2d(2), nn.Conv2d(6, 6, 1), nn.AvgPool2d(2)))
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = ours(x), theirs(x)
    assert found.dtype is expected.dtype is torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.03, atol=0.03)
    assert ("2", *POOLED) in genesis.torch.report(ours).fused
    seen: list[torch.Size] = []
    ours[0].register_forward_hook(lambda layer, given, y: seen.append(y.shape))
    torch.testing.assert_close(ours(x), theirs(x))
    assert seen == [(2, 6, 8, 8)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accuracy(dtype: torch.dtype) -> None:
    """No farther from float64 than twice PyTorch's layers."""
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Conv2d(64, 32, 1), nn.AvgPool2d(2)).to(dtype)
    x = torch.randn(4, 64, 16, 16).to(dtype).to(memory_format=torch.channels_last)
    found = []
    for model in (copy.deepcopy(theirs).double(), copy.deepcopy(theirs), genesis.torch.fuse(copy.deepcopy(theirs))):
        y = model(x.to(model[0].weight.dtype))
        y.double().square().mean().backward()
        found.append([each.double() for each in (y, *(parameter.grad for parameter in model.parameters()))])
    for exact, plain, fused in zip(*found, strict=True):
        assert (fused - exact).norm() <= 2 * (plain - exact).norm() + 1e-7 * exact.norm()


@pytest.mark.usefixtures("cuda_kernels")
def test_on_the_simulated_device() -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 8, 1), nn.AvgPool2d(2)).to(memory_format=torch.channels_last)
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for _ in range(2):
        torch.testing.assert_close(fused(x), plain(x), rtol=1e-5, atol=1e-6)
    assert genesis.torch.report(fused).fused == [("0", *POOLED)]
