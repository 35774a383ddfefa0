"""Gradients of gradients through fused layers: those of PyTorch's layers, or an error; never a zero that isn't one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hvp

import genesis.torch
from genesis.settings import override
from genesis.torch import norms
from tests.torch.simulated import PATCHES


class Block(nn.Module):
    def __init__(self, end: nn.Module) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.beside = nn.Sequential(nn.Conv2d(3, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.end = end

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.end(self.second(self.first(x)) + self.beside(x))
        return y


def _conv(norm: nn.Module, *end: nn.Module, groups: int = 1, bias: bool = False) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 3 if groups > 1 else 8, 3, padding=1, groups=groups, bias=bias), norm, *end)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "norm": lambda: _conv(nn.BatchNorm2d(8)),
    "relu": lambda: _conv(nn.BatchNorm2d(8), nn.ReLU(), bias=True),
    "silu": lambda: _conv(nn.BatchNorm2d(8), nn.SiLU()),
    "plain norm": lambda: _conv(nn.BatchNorm2d(8, affine=False), nn.LeakyReLU(0.1)),
    "depthwise": lambda: _conv(nn.BatchNorm2d(3), nn.ReLU6(), groups=3),
    "twice": lambda: nn.Sequential(_conv(nn.BatchNorm2d(8), nn.ReLU()), nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)),
    "sum": lambda: Block(nn.ReLU()),
    "norm alone": lambda: nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
}


@pytest.fixture(params=["cpu", "simulated"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The CPU's ops, or the simulated device's, of norms too."""
    if request.param == "cpu":
        yield
        return
    with override(cuda="simulated"):
        for patch in PATCHES:
            monkeypatch.setattr(*patch)
        monkeypatch.setattr(norms, "has_kernels", lambda input: True)
        yield


def _images(order: torch.memory_format) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 6, 5, dtype=torch.float64).contiguous(memory_format=order)


def _second(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Of a loss that is no sum of results, nor quadratic: by the input, by the parameters, and of a penalty."""
    found = [hvp(lambda y: model(y).pow(3).sum(), x.detach(), torch.ones_like(x))[1]]
    parameters = [each for each in model.parameters() if each.requires_grad]
    grads = torch.autograd.grad(model(x).pow(3).sum(), parameters, create_graph=True)
    found += torch.autograd.grad(sum(grad.square().sum() for grad in grads), parameters)
    x = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad(model(x).sin().sum(), x, create_graph=True)
    (grad.square().sum() + model(x).sum()).backward()
    return [*found, x.grad, *(each.grad for each in parameters)]


def _agree(found: list[Tensor], expected: list[Tensor]) -> None:
    """Up to roundings of the largest: some of these are zero, as that of a bias before a norm."""
    largest = max(float(each.norm()) for each in expected)
    for result, wanted in zip(found, expected, strict=True):
        assert result.shape == wanted.shape
        assert float((result - wanted).norm()) <= 1e-11 * largest


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_those_of_the_layers(name: str, training: bool, order: torch.memory_format) -> None:
    torch.manual_seed(0)
    theirs = NETWORKS[name]().double().train(training).to(memory_format=order)
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    for _ in range(2):  # launches are prepared from the second call on
        expected, found = _second(theirs, _images(order)), _second(ours, _images(order))
        _agree(found, expected)
        theirs.zero_grad()
        ours.zero_grad()
    for result, wanted in zip(ours.buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(result, wanted)
    assert genesis.torch.report(ours).fused


@pytest.mark.usefixtures("device")
def test_frozen_layers() -> None:
    torch.manual_seed(0)
    theirs = NETWORKS["sum"]().double()
    theirs.first.requires_grad_(False)  # type: ignore[union-attr]
    theirs.second[1].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    _agree(*(_second(each, _images(torch.channels_last)) for each in (ours, theirs)))


class _GroupNorm(nn.GroupNorm):
    def forward(self, input: Tensor) -> Tensor:
        return genesis.torch.group_norm(input, self.num_groups, self.weight, self.bias, self.eps, "silu")


@pytest.mark.usefixtures("device")
def test_group_norms() -> None:
    torch.manual_seed(0)
    norm = nn.GroupNorm(3, 3).double()
    ours = _GroupNorm(3, 3).double()
    nn.init.normal_(norm.weight)
    ours.load_state_dict(norm.state_dict())
    _agree(*(_second(each, _images(torch.channels_last)) for each in (ours, nn.Sequential(norm, nn.SiLU()))))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["relu", "twice", "sum"])
def test_under_autocast(name: str) -> None:
    """Through casts of parameters, which the op computes by itself."""
    torch.manual_seed(0)
    theirs = NETWORKS[name]().to(memory_format=torch.channels_last)
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    found = []
    for model in (copy.deepcopy(theirs).double(), theirs, ours):
        x = _images(torch.channels_last)
        for _ in range(2):
            model.zero_grad()
            y = x.to(next(model.parameters()).dtype).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=y.dtype is torch.float32):
                result = model(y)
            (grad,) = torch.autograd.grad(result.sin().sum(), y, create_graph=True)
            (grad.square().sum() + result.double().sum()).backward()
        assert y.grad is not None
        found.append(torch.cat([each.double().flatten() for each in (y.grad, *(p.grad for p in model.parameters()))]))
    exact, plain, fused = found
    assert (fused - exact).norm() <= 2 * (plain - exact).norm()


def test_a_parameter_that_changed_before() -> None:
    ours = genesis.torch.fuse(NETWORKS["relu"]())
    x = _images(torch.channels_last).float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss = ours(x).float().pow(3).sum()
    with torch.no_grad():
        next(ours.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="changed in place before"):
        torch.autograd.grad(loss, x, create_graph=True)


def test_refused_where_operands_were_not_kept() -> None:
    """Also where a gradient that leads nowhere would be taken for zero."""
    ours = genesis.torch.fuse(NETWORKS["relu"]().eval())
    ours[0].requires_grad_(False)  # type: ignore[index, operator]
    gamma = ours[1].weight  # type: ignore[index, union-attr]
    (grad,) = torch.autograd.grad(ours(_images(torch.channels_last).float()).pow(3).sum(), gamma, create_graph=True)
    assert torch.isfinite(grad).all()
    with pytest.raises(RuntimeError, match=r"conv_bn_relu: .* cannot be differentiated again.*genesis\.torch\.unfuse"):
        torch.autograd.grad(grad.sum(), gamma, allow_unused=True)


def test_refused_through_a_sum_and_silu() -> None:
    ours = genesis.torch.fuse(Block(nn.SiLU()).double())
    x = _images(torch.channels_last)
    with pytest.raises(RuntimeError, match="a sum has another activation than ReLU"):
        hvp(lambda y: ours(y).pow(3).sum(), x, torch.ones_like(x))
    theirs = genesis.torch.unfuse(ours)
    assert hvp(lambda y: theirs(y).pow(3).sum(), x, torch.ones_like(x))[1].abs().sum() > 0
