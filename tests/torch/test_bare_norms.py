"""Batch norms of tensors that no convolution of ours made, fused with the activation that follows."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis.torch.norm_entries import BareNorm
from tests.torch.chains import agree, pair

CHANNELS_LAST = torch.channels_last
pytestmark = pytest.mark.usefixtures("activates")


@pytest.fixture(params=["cpu", "simulated"])
def device(request: pytest.FixtureRequest) -> str:
    torch.manual_seed(0)
    if request.param == "simulated":
        request.getfixturevalue("cuda_kernels")
    return str(request.param)


class Dense(nn.Module):
    """A layer of a dense block: a concatenation, normalized and activated before its convolution; a sum too."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.norm, self.act, self.conv = nn.BatchNorm2d(6), act, nn.Conv2d(6, 6, 1, bias=False)
        self.after = nn.BatchNorm2d(6)
        nn.init.uniform_(self.norm.weight)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        joined = torch.cat([x, x.sin()], 1)
        y = self.conv(self.act(self.norm(joined)))
        return self.act(self.after(y.cos()) + joined)


class NormAct(nn.BatchNorm2d):
    """As timm's BatchNormAct2d."""

    def forward(self, input: Tensor) -> Tensor:
        assert input.ndim == 4
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        how = (self.weight, self.bias, self.training, self.momentum or 0.0, self.eps)
        return F.silu(F.batch_norm(input, self.running_mean, self.running_var, *how), inplace=True)


def images(*shape: int) -> Tensor:
    return torch.randn(*(shape or (2, 3, 4, 3)), dtype=torch.float64).contiguous(memory_format=CHANNELS_LAST)


def kinds(model: nn.Module) -> list[tuple[str, ...]]:
    found = [module.__dict__.get("forward") for module in model.modules()]
    return [each.bare.kinds for each in found if isinstance(getattr(each, "bare", None), BareNorm)]


@pytest.mark.parametrize("act", [nn.ReLU(), nn.ReLU(True), nn.SiLU(), nn.GELU()])
def test_one_pass_before_a_convolution(act: nn.Module, device: str) -> None:
    theirs, ours = pair(Dense(act))
    x = images().requires_grad_()
    for training in (True, False):
        theirs.train(training)
        ours.train(training)
        agree(theirs, ours, x, calls=2)
        with torch.no_grad():
            agree(theirs, ours, x, calls=1)
            assert ours(x).stride() == theirs(x).stride()
    name = {nn.SiLU: "silu", nn.GELU: "gelu"}.get(type(act), "relu")
    assert kinds(ours) == [("norm", name), ("norm", "add", name)]
    assert ("norm", name) in genesis.torch.report(ours).fused
    gradients = [model(x).square().sum() for model in (theirs, ours)]
    found = [torch.autograd.grad(each, x)[0] for each in gradients]
    torch.testing.assert_close(found[1], found[0])


def test_norms_with_an_activation_inside(device: str) -> None:
    theirs, ours = pair(nn.Sequential(NormAct(3)).double())
    x = images().requires_grad_()
    agree(theirs, ours, x)
    assert kinds(ours) == [("norm", "silu")]
    copied = copy.deepcopy(ours)
    torch.testing.assert_close(copied(x), theirs(x))
    assert kinds(copied) == [("norm", "silu")]
    assert type(genesis.torch.unfuse(ours)[0]) is NormAct


class AndThen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.then: Any = torch.sin
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.then(self.norm(x))
        return result


def test_left_to_pytorch() -> None:
    """Contiguous images, one pixel, and norms that nothing follows."""
    theirs, ours = pair(AndThen())
    theirs.then = ours.then = torch.relu
    for x in (images().contiguous(), images(4, 3, 1, 1), images(4, 3, 2, 2)[:, :, ::2]):
        agree(theirs, ours, x, calls=1)
        assert kinds(ours) == [()]
    theirs.then = ours.then = torch.sin
    agree(theirs, ours, images(), calls=4)
    assert not ours.norm.__dict__["forward"].bare.active


@pytest.mark.parametrize("training", [True, False])
def test_an_input_that_changes_before_the_activation(training: bool) -> None:
    ours = genesis.torch.fuse(AndThen().train(training))
    x = images()

    def then(y: Tensor) -> Tensor:
        x.add_(1)
        return torch.relu(y)

    ours.then = then
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="norm"):
            ours(x)
        plain = genesis.torch.unfuse(copy.deepcopy(ours))
        values = x.clone()
        mine = ours(x)
        x.copy_(values)
        torch.testing.assert_close(mine, plain(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_farther_from_float64_than_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = AndThen().train()
    plain.then = F.silu
    x = images(4, 3, 8, 8) * 3 + 5
    results = []
    for kind, fused in ((torch.float64, False), (dtype, False), (dtype, True)):
        model = copy.deepcopy(plain)
        model.norm.to(torch.float64 if kind is torch.float64 else torch.float32)
        model = genesis.torch.fuse(model) if fused else model
        leaf = x.to(dtype).to(kind).requires_grad_()
        y = model(leaf)
        y.backward(torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(dtype).to(kind))
        found = (y, leaf.grad, model.norm.weight.grad, model.norm.bias.grad, model.norm.running_var)
        results.append([each.detach().double() for each in found if each is not None])
    assert len(results[0]) == 5
    for exact, theirs, ours in zip(*results, strict=True):
        rounding = torch.finfo(dtype if exact.dim() == 4 else torch.float32).eps * exact.norm()
        assert (ours - exact).norm() <= 2 * (theirs - exact).norm() + rounding


def test_numbers_are_those_after_a_convolution(device: str) -> None:
    """Which does nothing."""
    conv = nn.Conv2d(3, 3, 1, bias=False)
    with torch.no_grad():
        conv.weight.copy_(torch.eye(3).view(3, 3, 1, 1))
    x = images(4, 3, 8, 8).float() * 3 + 5
    found = []
    for first in (conv, nn.Identity()):
        model = genesis.torch.fuse(nn.Sequential(first, nn.BatchNorm2d(3), nn.SiLU()))
        leaf = x.clone().requires_grad_()
        y = model(leaf)
        y.backward(x)
        norm = model[1]
        found.append((y, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var))
    for other, bare in zip(*found, strict=True):
        assert torch.equal(other, bare)


class PreActivation(nn.Module):
    """Norms of a sum that ran with a convolution; the second has its activation inside."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.d = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1)
        self.norm, self.last = nn.BatchNorm2d(3), NormAct(3)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.c(x) + x
        y = self.d(torch.relu(self.norm(y))) + y
        result: Tensor = self.last(y)
        return result


def test_norms_of_sums(device: str) -> None:
    theirs, ours = pair(PreActivation())
    x = images().requires_grad_()
    agree(theirs, ours, x)
    assert kinds(ours) == [("norm", "relu"), ("norm", "silu")]
    assert len(genesis.torch.report(ours).fused) == 4
