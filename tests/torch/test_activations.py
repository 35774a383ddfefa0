"""Chains that end in each activation: deferred, in compiled graphs, and by the kernels' prepared launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis import activations as known
from genesis.torch import activations
from genesis.torch.norm_entries import NormCallEntry
from tests.torch.chains import Parts, agree, compiled, images, pair
from tests.torch.fuzz_models import CHANNELS, FUNCTIONS, BatchNormAct, FrozenBatchNorm

LAYERS: list[tuple[Callable[[], nn.Module], str]] = [
    (nn.ReLU, "relu"), (nn.ReLU6, "relu6"), (lambda: nn.Hardtanh(0, 6), "relu6"),
    (nn.LeakyReLU, "leaky_relu(0.01)"), (lambda: nn.LeakyReLU(-0.2), "leaky_relu(-0.2)"), (nn.ELU, "elu(1.0)"),
    (nn.SiLU, "silu"), (nn.Mish, "mish"), (nn.GELU, "gelu"), (lambda: nn.GELU("tanh"), "gelu_tanh"),
    (nn.Hardswish, "hardswish"), (nn.Hardsigmoid, "hardsigmoid"), (nn.Sigmoid, "sigmoid"), (nn.Tanh, "tanh"),
]  # fmt: skip


class Ends(nn.Module):
    """A convolution, its norm, perhaps a sum, and what ends it."""

    def __init__(self, end: Callable[[Tensor], Tensor], has_sum: bool = False) -> None:
        super().__init__()
        self.c, self.b, self.end, self.has_sum = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), end, has_sum
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(self.c(x))
        return self.end(y + x if self.has_sum else y)


def kinds(fused: nn.Module) -> tuple[str, ...]:
    kinds: tuple[str, ...] = fused.c.__dict__["forward"].kinds
    return kinds


def test_every_activation_has_a_layer() -> None:
    assert {known.parse(name).name for _, name in LAYERS} == set(known.NUMBERS)
    assert {type(make()) for make, _ in LAYERS} == set(activations.LAYERS)


@pytest.mark.parametrize("has_sum", [False, True])
@pytest.mark.parametrize(("make", "name"), LAYERS)
def test_layers(make: Callable[[], nn.Module], name: str, has_sum: bool) -> None:
    for inplace in (False, True):
        end = make()
        if inplace and (not hasattr(end, "inplace") or name == "leaky_relu(-0.2)"):
            continue
        end.inplace = inplace
        theirs, ours = pair(Ends(end, has_sum))
        agree(theirs, ours, images())
        assert kinds(ours) == (("norm", "add", name) if has_sum else ("norm", name))
        for model in (theirs, ours):
            model.eval().zero_grad()
        agree(theirs, ours, images())
        with torch.no_grad():
            torch.testing.assert_close(ours(images(1)).shape, theirs(images(1)).shape)
            x = images()
            torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_and_methods(function: Callable[[Tensor], Tensor]) -> None:
    theirs, ours = pair(Ends(function))
    agree(theirs, ours, images())
    assert len(kinds(ours)) == 2


@pytest.mark.parametrize(
    "end", [nn.Hardtanh(), nn.PReLU(), nn.Softplus(), lambda x: torch.tanh(x, out=None), lambda x: F.elu(x, True)]
)
def test_others_are_computed_by_pytorch(end: Any) -> None:
    theirs, ours = pair(Ends(end))
    agree(theirs, ours, images())
    assert kinds(ours) == ("norm",) or isinstance(end, type(lambda: 0))


def test_another_activation_than_the_last_time() -> None:
    """What was computed ahead for one of them is no use for the other; the statistics have moved once."""

    class Turns(Ends):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y = self.b(self.c(x))
            return (F.silu, torch.relu, lambda y: F.leaky_relu(y, 0.1), lambda y: F.leaky_relu(y, 0.2))[self.calls % 4](
                y
            )

    theirs, ours = pair(Turns(F.relu))
    agree(theirs, ours, images(), calls=9)


@pytest.mark.parametrize("is_known", [False, True], ids=["called", "known"])
@pytest.mark.parametrize("act", [nn.ReLU(True), nn.SiLU(True), nn.Identity()])
def test_a_norm_with_its_activation_inside(act: nn.Module, is_known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As timm's BatchNormAct2d, in eval mode by its own forward or by its parts."""
    if is_known:
        name = f"{BatchNormAct.__module__}.{BatchNormAct.__qualname__}"
        monkeypatch.setattr(NormCallEntry, "ACTIVATING", NormCallEntry.ACTIVATING | {name})
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Identity(), BatchNormAct(act, 4)).double()
    theirs, ours = pair(model)
    agree(theirs, ours, images())
    assert len(genesis.torch.report(ours).fused[0]) == (2 if type(act) is nn.Identity else 3)
    for each in (theirs, ours):
        each.eval()
    calls: list[Tensor] = []
    forward = BatchNormAct.forward
    monkeypatch.setattr(BatchNormAct, "forward", lambda norm, x: (calls.append(x), forward(norm, x))[1])
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(ours(x), theirs(x), rtol=1e-12, atol=1e-12)
    assert len(calls) == (4 if is_known else 6)  # ours asks once what the norm is


def test_identities_are_passed_through() -> None:
    parts = nn.Conv2d(3, 4, 1), nn.Identity(), nn.BatchNorm2d(4), nn.Identity(), nn.GELU(), nn.Identity()
    theirs, ours = pair(nn.Sequential(*parts).double())
    assert ours.fusion.fused == [("0", "2", "4")]
    agree(theirs, ours, images())
    assert ours.fusion.fused == [("0", "2", "4")]


def test_in_compiled_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One graph of all layers and functions, the sums among them."""

    layers = [Ends(make(), number % 2 == 0) for number, (make, _) in enumerate(LAYERS)]
    theirs = Parts([*layers, *map(Ends, FUNCTIONS)])
    ours, graphs = compiled(theirs, monkeypatch)
    agree(theirs, ours, images(), calls=2)
    lengths = [len(parts) for parts in graphs[0].fused]
    assert lengths == [4 - number % 2 for number in range(len(LAYERS))] + [3] * len(FUNCTIONS)
    for model in (theirs, ours):
        model.eval()
    with torch.no_grad():
        x = images()
        torch.testing.assert_close(ours(x), theirs(x))
    assert len(graphs[-1].fused) == len(lengths)


@pytest.mark.parametrize("has_sum", [False, True])
@pytest.mark.parametrize("make", [nn.SiLU, lambda: nn.LeakyReLU(0.1), nn.GELU])
@pytest.mark.usefixtures("cuda_kernels")
def test_by_prepared_launches(make: Callable[[], nn.Module], has_sum: bool) -> None:
    theirs, ours = pair(Ends(make(), has_sum).to(memory_format=torch.channels_last))
    x = images().to(memory_format=torch.channels_last)
    agree(theirs, ours, x)
    with torch.no_grad():
        for model in (theirs, ours):
            model.eval()
        for _ in range(2):
            torch.testing.assert_close(ours(x), theirs(x))


class FrozenNorm(FrozenBatchNorm):
    eps = 1e-5


FrozenNorm.__module__, FrozenNorm.__qualname__ = "torchvision.ops.misc", "FrozenBatchNorm2d"


def test_a_frozen_norm() -> None:
    """As torchvision's FrozenBatchNorm2d: an affine map, whose buffers may be exchanged."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.b, self.r = nn.Conv2d(3, CHANNELS, 3), FrozenNorm(), nn.SiLU()
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            return self.r(self.b(self.c(x)))

    theirs, ours = pair(Frozen())
    for _ in range(2):
        agree(theirs, ours, images())
        assert kinds(ours) == ("norm", "silu")
        for model in (theirs, ours):
            model.zero_grad()
            model.b.running_mean += 1.0
            model.b.bias = None if model.b.bias is None else model.b.bias * 2
    with torch.no_grad():
        x = images()
        torch.testing.assert_close(ours(x), theirs(x))
