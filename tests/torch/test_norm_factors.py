"""Batch norms that follow no convolution, in inference on the CPU: one pass by kept factors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis.backends.cpu.x86 import micro
from genesis.torch import norm_factors
from genesis.torch.norm_entries import NormCallEntry
from genesis.torch.norm_factors import NormFactors

pytestmark = pytest.mark.skipif(norm_factors._kernel() is None, reason="this processor has no kernel")
MANY = 3, 64, 30, 29


class NormAct(nn.BatchNorm2d):
    """As timm's BatchNormAct2d."""

    def __init__(self, channels: int, act: nn.Module) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), act

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self.act(self.drop(super().forward(input)))
        return y


class Dense(nn.Module):
    """Two layers of a dense block."""

    def __init__(self, norms: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList([norms(64), norms(80)])
        self.convs = nn.ModuleList([nn.Conv2d(64, 16, 3, padding=1), nn.Conv2d(80, 24, 1)])

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([x, self.convs[0](self.norms[0](x))], 1)
        z: Tensor = self.convs[1](self.norms[1](y))
        return z


def images(*shape: int) -> Tensor:
    return torch.randn(*(shape or MANY)).contiguous(memory_format=torch.channels_last)


def trained(model: nn.Module) -> nn.Module:
    """With statistics and parameters that are not those it began with."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.1, 3)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.eval()


def norm(channels: int = 64, affine: bool = True) -> nn.BatchNorm2d:
    layer = trained(nn.BatchNorm2d(channels, affine=affine))
    assert isinstance(layer, nn.BatchNorm2d)
    return layer


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("activation", norm_factors.ACTIVATIONS)
@pytest.mark.parametrize("shape", [MANY, (2, 8, 120, 120), (1, 1024, 14, 14), (131072, 8, 1, 1)])
def test_against_float64(shape: tuple[int, ...], activation: str | None, affine: bool) -> None:
    layer, x = norm(shape[1], affine), images(*shape)
    act = {"relu": nn.ReLU(), "relu6": nn.ReLU6()}.get(activation or "", nn.Identity())
    factors = NormFactors()
    with torch.no_grad():
        found = [factors.run(x, layer, activation) for _ in range(2)]
        theirs, exact = act(layer(x)), act(copy.deepcopy(layer).double()(x.double()))
    for y in found:
        assert y is not None
        assert y.stride() == x.stride()
        assert distance(y, exact) <= 1.1 * distance(theirs, exact)


@pytest.mark.parametrize("activation", norm_factors.ACTIVATIONS)
def test_what_is_no_number_stays(activation: str | None) -> None:
    layer, x = norm(), images()
    x[0, 3, 2, 1], x[1, 5, 0, 0], x[1, 6, 0, 0] = torch.nan, torch.inf, -torch.inf
    act = {"relu": nn.ReLU(), "relu6": nn.ReLU6()}.get(activation or "", nn.Identity())
    with torch.no_grad():
        torch.testing.assert_close(NormFactors().run(x, layer, activation), act(layer(x)), equal_nan=True)


@pytest.mark.parametrize("change", ["data", "eps", "statistics", "another parameter", "state"])
def test_every_change_is_seen(change: str) -> None:
    layer, x, factors = norm(), images(), NormFactors()
    with torch.no_grad():
        before = factors.run(x, layer, None)
        if change == "data":
            layer.weight.data[5] *= 2
        elif change == "eps":
            layer.eps = 0.5
        elif change == "statistics":
            layer.running_var.numpy()[:] *= 3
        elif change == "another parameter":
            layer.bias = nn.Parameter(layer.bias + 1)
        else:
            layer.load_state_dict(norm().state_dict())
        after = factors.run(x, layer, None)
        assert before is not None
        assert after is not None
        assert not torch.equal(before, after)
        torch.testing.assert_close(after, layer(x))


def test_activations_are_the_kernels() -> None:
    assert norm_factors.ACTIVATIONS == micro.ACTIVATIONS


def test_what_is_left_to_the_layer() -> None:
    layer, x, factors = norm(), images(), NormFactors()
    assert factors.run(x, layer, None) is None  # there may be gradients
    with torch.no_grad():
        negative = torch._neg_view(x)  # its numbers are not those that lie in memory
        others = [x.double(), x.contiguous(), x[:, :, ::2], x[:, :5], images(2, 72, 40, 40), x[:0], x[0], negative]
        for other in others:
            assert factors.run(other, layer, "relu") is None, other.shape
        assert factors.run(images(1, 64, 8, 8), layer, None) is None  # too little to be worth it
        assert factors.run(images(1, 64, 8, 8), layer, "relu") is not None
        assert factors.run(x, layer.train(), None) is None
        assert factors.run(x, nn.BatchNorm2d(64, track_running_stats=False).eval(), None) is None
        assert factors.run(x, trained(nn.BatchNorm2d(64)).double(), None) is None  # type: ignore[arg-type]
        with torch.autocast("cpu"):
            assert factors.run(x, layer.eval(), None) is None
        found = factors.run(x, layer, None)
        assert found is not None
        assert not found.is_inference()
    with torch.inference_mode():
        inferred = factors.run(images(), layer, None)
        assert inferred is not None
        assert inferred.is_inference()


@pytest.mark.parametrize("kind", ["norms", "relu", "silu", "a hook on the activation"])
def test_a_dense_block(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NormCallEntry, "ACTIVATING", {f"{__name__}.NormAct"})
    runs: list[str | None] = []
    run = NormFactors.run

    def counted(self: NormFactors, x: object, layer: nn.BatchNorm2d, activation: str | None) -> Tensor | None:
        y = run(self, x, layer, activation)
        if y is not None:
            runs.append(activation)
        return y

    monkeypatch.setattr(NormFactors, "run", counted)
    act = nn.SiLU(inplace=True) if kind == "silu" else nn.ReLU(inplace=True)
    plain = trained(Dense(nn.BatchNorm2d if kind == "norms" else lambda n: NormAct(n, act)))
    model = genesis.torch.fuse(copy.deepcopy(plain).to(memory_format=torch.channels_last))
    seen: list[Tensor] = []
    if kind == "a hook on the activation":
        for module in model.modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(lambda _, inputs, y: seen.append(inputs[0]))
    x = images()
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(model(x), plain(x), rtol=1e-4, atol=1e-5)
    assert runs == {"norms": [None] * 4, "relu": ["relu"] * 4}.get(kind, [])
    assert len(seen) == (4 if kind == "a hook on the activation" else 0)
    x.requires_grad_()
    theirs, ours = (torch.autograd.grad(each(x).square().sum(), x)[0] for each in (plain, model))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
