"""Convolutions whose result is scaled, with a sum and an activation: constants are folded into weight and bias, and a
layer scale that is trained is a batch norm's with constant statistics."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis.torch.reasons import NOTHING_FOLLOWS
from tests.torch.chains import Parts, agree, agree_in_order, compiled, images, pair
from tests.torch.test_prepared_act import same, step, went

_went = went  # a fixture


class Net(nn.Module):
    """A convolution whose result is scaled by something and combined with the input."""

    def __init__(self, combine: Callable[[nn.Module, Tensor, Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 3, 3, padding=1, bias=bias)
        self.combine = combine
        self.gain = nn.Parameter(torch.tensor(0.7))
        self.gamma = nn.Parameter(torch.tensor([0.5, -1.0, 0.0]).view(1, 3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.combine(self, self.c(torch.tanh(x)), x)
        return y + 0.0 * (self.gain + self.gamma.sum())  # so that all have a gradient


def in_place(net: nn.Module, y: Tensor, x: Tensor) -> Tensor:
    """As an NFNet's."""
    y.mul_(0.5)
    return y * 0.2 + x


def shared(net: nn.Module, y: Tensor, x: Tensor) -> Tensor:
    return torch.cat([y * 2.0, y])


# What it does with the convolution's result, and what runs with the convolution.
SCALES: list[tuple[Callable[[nn.Module, Tensor, Tensor], Tensor], tuple[str, ...]]] = [
    (lambda net, y, x: y * 0.2 + x, ("mul", "add")),
    (lambda net, y, x: x + 2 * y, ("mul", "add")),
    (in_place, ("mul", "add")),
    (lambda net, y, x: F.relu(x + F.dropout(net.gamma * y, 0.0)), ("mul", "add", "relu")),
    (lambda net, y, x: F.silu(x + y * net.gain.detach()), ("mul", "add")),
    (lambda net, y, x: F.relu(y * net.gamma.detach() + x), ("mul", "add", "relu")),
    (lambda net, y, x: F.gelu(torch.mul(y, net.gamma[0])), ("mul", "gelu")),
    (lambda net, y, x: y.mul_(net.gain) - x, ("mul",)),
    (lambda net, y, x: F.silu(F.dropout(y, training=False)), ("silu",)),
    (shared, ()),
    (lambda net, y, x: y * x[:, :, :1, :1] + x, ()),  # a factor for each image
    (lambda net, y, x: y * x[:1, :1, :1] + x, ()),  # for each column
    (lambda net, y, x: y * y, ()),
]


@pytest.mark.usefixtures("activates")
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("number", range(len(SCALES)))
def test_scales(number: int, channels_last: bool) -> None:
    combine, fused = SCALES[number]
    theirs, ours = pair(Net(combine, bias=number % 2 == 0).double())
    agree_in_order(theirs, ours, channels_last)
    if not fused and channels_last and number % 2 == 0:
        fused = ("bias",)
    assert genesis.torch.report(ours).fused == ([("c", *fused)] if fused else [])


@pytest.mark.usefixtures("activates")
def test_a_weight_larger_than_the_result_is_not_scaled() -> None:
    theirs, ours = pair(Net(SCALES[0][0]).double())
    x = images()[:1, :, :2, :2]
    agree(theirs, ours, x)
    ((name, reason),) = genesis.torch.report(ours).left
    assert (name, reason.partition(":")[0]) == ("c", f"{NOTHING_FOLLOWS}, but mul")
    assert reason.endswith("in torch.channels_last its bias would run with it")


@pytest.mark.usefixtures("activates")
@pytest.mark.parametrize(("dtype", "factor", "fits"), [
    (torch.bfloat16, 1e-6, True), (torch.float16, 1e-6, False), (torch.float16, 0.25, True),
    (torch.float16, "gain", True), (torch.bfloat16, "gain", True), (torch.bfloat16, "gamma", False),
])  # fmt: skip
def test_dtypes_under_autocast(dtype: torch.dtype, factor: Any, fits: bool) -> None:
    """float16 could not hold all scaled weights; a float32 factor of each channel makes the result float32."""

    def combine(net: nn.Module, y: Tensor, x: Tensor) -> Tensor:
        return y * (getattr(net, factor) if isinstance(factor, str) else factor) + x.to(y.dtype)

    theirs, ours = pair(Net(combine))
    x = images().float()
    found = []
    for model in (theirs, ours):
        with torch.autocast("cpu", dtype):
            y = model(x)
        y.float().square().sum().backward()
        found.append([y, *(each.grad for each in model.parameters())])
    for mine, other in zip(found[1], found[0], strict=True):
        assert mine.dtype is other.dtype
        torch.testing.assert_close(mine, other, rtol=0.03, atol=0.03)
    assert genesis.torch.report(ours).fused == ([("c", "mul", "add")] if fits else [])


def test_a_norm_whose_weight_is_expanded() -> None:
    """PyTorch's own kernel for channels-last images reads past the end of such a weight."""
    theirs, ours = pair(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)).double().eval())
    x = images().to(memory_format=torch.channels_last)
    found = []
    for model, expands in ((theirs, False), (ours, True)):
        weight = torch.full((1,), 0.7, dtype=torch.float64).expand(3)
        model[1].weight = nn.Parameter(weight if expands else weight.contiguous())
        model(x).square().sum().backward()
        found.append(model[0].weight.grad)
    torch.testing.assert_close(*found)


@pytest.mark.usefixtures("activates")
def test_second_gradients() -> None:
    found = []
    for model in pair(Net(SCALES[5][0]).double()):
        torch.manual_seed(0)
        x = images().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        (grad.square().sum() + model(x).sum()).backward()
        found.append([x.grad, *(each.grad for each in model.parameters())])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("activates")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accuracy(dtype: torch.dtype) -> None:
    """No farther from float64 than twice PyTorch's layers."""
    torch.manual_seed(0)
    theirs = nn.Sequential(Net(SCALES[3][0]), Net(SCALES[2][0]))
    x = torch.randn(8, 3, 24, 24)
    found = []
    for model in (copy.deepcopy(theirs).to(dtype).double(), copy.deepcopy(theirs).to(dtype), None):
        model = genesis.torch.fuse(copy.deepcopy(theirs).to(dtype)) if model is None else model
        y = model(x.to(dtype).to(next(model.parameters()).dtype))
        y.double().square().mean().backward()
        found.append([each.double() for each in (y, *(parameter.grad for parameter in model.parameters()))])
    for exact, plain, fused in zip(*found, strict=True):
        assert (fused - exact).norm() <= 2 * (plain - exact).norm() + 1e-7 * exact.norm()


@pytest.mark.usefixtures("activates")
def test_in_compiled_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Parts([Net(combine) for combine, _ in SCALES], torch.cat)
    ours, graphs = compiled(theirs, monkeypatch)
    agree(theirs, ours, images().requires_grad_(), calls=2)
    assert [len(parts) for parts in graphs[0].fused] == [3, 3, 4, 3, 4, 2]
    with torch.no_grad():
        x = images()
        torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.usefixtures("cuda_kernels")
def test_prepared_launches(went: dict[str, list[bool]]) -> None:
    """On the simulated device."""
    x = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    plain = Net(in_place).to(memory_format=torch.channels_last)
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    for _ in range(2):
        same(step(fused, x), step(plain, x))
    assert went == {"run": [True] * 2, "backward": [True] * 2}
    assert genesis.torch.report(fused).fused == [("c", "mul", "add")]
