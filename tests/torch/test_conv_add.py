"""Convolutions without a norm, fused with the sum that follows and its ReLU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis.torch.reasons import SUMMED
from tests.torch.chains import Parts, agree, compiled, images, pair
from tests.torch.test_prepared_act import same, step, went

pytestmark = pytest.mark.usefixtures("activates")
_went = went  # a fixture


class Net(nn.Module):
    """A convolution whose result is combined with the input."""

    def __init__(self, combine: Callable[[Tensor, Tensor], Tensor], bias: bool = True, channels: int = 3) -> None:
        super().__init__()
        self.c = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.n = nn.BatchNorm2d(channels)
        self.combine = combine

    def forward(self, x: Tensor) -> Tensor:
        return self.combine(self.c(torch.tanh(x)), x)


def in_place(y: Tensor, x: Tensor) -> Tensor:
    y += x
    return y


def shared(y: Tensor, x: Tensor) -> Tensor:
    """The convolution's result goes to two sums."""
    return torch.cat([y + x, y + 2 * x])


def both_kept(y: Tensor, x: Tensor) -> Tensor:
    """As a pre-activation block's: the sum goes to the activation and past it."""
    z = y + x
    return F.relu(z) + z


# What it does with the convolution's result, and what runs with the convolution.
SUMS: list[tuple[Callable[[Tensor, Tensor], Tensor], tuple[str, ...]]] = [
    (lambda y, x: y + x, ("add",)),
    (lambda y, x: x + y, ("add",)),
    (lambda y, x: torch.add(x, y), ("add",)),
    (lambda y, x: y.add_(x), ("add",)),
    (in_place, ("add",)),
    (both_kept, ("add",)),
    (lambda y, x: F.relu(y + x), ("add", "relu")),
    (lambda y, x: torch.relu_(x + y), ("add", "relu")),
    (lambda y, x: F.silu(y + x), ("add",)),
    (shared, ()),
    (lambda y, x: y + y, ()),
    (lambda y, x: y + x[:, :1], ()),
    (lambda y, x: y + 1.0, ()),
]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("combine", "fused"), SUMS)
def test_sums(combine: Callable[[Tensor, Tensor], Tensor], fused: tuple[str, ...], channels_last: bool) -> None:
    for bias in (True, False):
        theirs, ours = pair(Net(combine, bias).double())
        x = images()
        x = (x.to(memory_format=torch.channels_last) if channels_last else x).requires_grad_()
        grads = []
        agree(theirs, ours, x, calls=5)
        for model in (theirs, ours):
            x.grad = None
            model(x).square().sum().backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)
        kinds = fused or (("bias",) if bias and channels_last else ())
        assert genesis.torch.report(ours).fused == ([("c", *kinds)] if kinds else [])
        with torch.no_grad():
            torch.testing.assert_close(ours(x), theirs(x))
            assert ours(x).stride() == theirs(x).stride()


@pytest.mark.parametrize("combine", [SUMS[0][0], SUMS[6][0]])
def test_second_gradients(combine: Callable[[Tensor, Tensor], Tensor]) -> None:
    found = []
    for model in pair(Net(combine).double()):
        torch.manual_seed(0)
        x = images().requires_grad_()
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        (grad.square().sum() + model(x).sum()).backward()
        found.append([x.grad, *(each.grad for each in model.parameters())])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("frozen", [("c.weight",), ("c.weight", "c.bias")])
@pytest.mark.parametrize("combine", [SUMS[0][0], SUMS[6][0]])
def test_only_the_summand_needs_a_gradient(
    combine: Callable[[Tensor, Tensor], Tensor], frozen: tuple[str, ...]
) -> None:
    found = []
    for model in pair(Net(lambda y, x: y, bias=True).double()):
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
        torch.manual_seed(0)
        x, other = images(), images().requires_grad_()
        model.combine = lambda y, x, other=other: combine(y, other)
        model(x).square().sum().backward()
        found.append([other.grad, model.c.bias.grad])
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][1], found[0][1])


def test_a_summand_that_changes_before_the_sum_is_used_is_an_error() -> None:
    def changes(y: Tensor, x: Tensor) -> Tensor:
        other = x * 1.0
        z = y + other
        other.zero_()
        return z.sin()

    theirs, ours = pair(Net(changes).double())
    x = images()
    with pytest.raises(RuntimeError, match="other summand was changed in place"):
        ours(x)
    torch.testing.assert_close(ours(x), theirs(x))


def test_a_norm_before_the_sum_takes_it() -> None:
    """Of two convolutions that meet in a sum, and in any order."""

    class Meets(Net):
        def __init__(self, first: bool) -> None:
            super().__init__(lambda y, x: y)
            self.d, self.first = nn.Conv2d(3, 3, 1), first

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.n(self.c(x)), self.d(x)
            return F.relu(a + b if self.first else b + a)

    for first in (True, False):
        theirs, ours = pair(Meets(first).double())
        agree(theirs, ours, images(), calls=5)
        assert ("c", "n", "add", "relu") in genesis.torch.report(ours).fused


@pytest.mark.parametrize("bias", [False, True])
def test_the_sum_of_two_convolutions_runs_with_one(bias: bool) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.d = (nn.Conv2d(3, 3, 3, padding=1, bias=bias) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            return self.c(x) + self.d(x)

    theirs, ours = pair(Two().double())
    agree(theirs, ours, images().to(memory_format=torch.channels_last), calls=5)
    found = genesis.torch.report(ours)
    assert ("c", "add") in found.fused
    assert found.left == ([] if bias else [("d", SUMMED)])


def test_in_compiled_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Parts([Net(combine) for combine, _ in SUMS], torch.cat)
    ours, graphs = compiled(theirs, monkeypatch)
    agree(theirs, ours, images().requires_grad_(), calls=2)
    wanted = [1 + len(fused) for _, fused in SUMS if fused]
    assert [len(parts) for parts in graphs[0].fused] == wanted
    with torch.no_grad():
        x = images()
        torch.testing.assert_close(ours(x), theirs(x))
    assert len(graphs[-1].fused) == len(wanted)


@pytest.mark.usefixtures("cuda_kernels")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_prepared_launches(memory_format: Any, bias: bool, went: dict[str, list[bool]]) -> None:
    """On the simulated device."""
    x = torch.randn(2, 16, 4, 4).to(memory_format=torch.channels_last)
    for combine in (SUMS[0][0], SUMS[6][0]):
        plain = Net(combine, bias, 16).to(memory_format=memory_format)
        del plain.n
        fused = genesis.torch.fuse(copy.deepcopy(plain))
        for _ in range(2):
            same(step(fused, x), step(plain, x))
        with torch.no_grad():
            for _ in range(2):
                same([fused(x)], [plain(x)])
    assert went == {"run": [True] * 8, "backward": [True] * 4}
