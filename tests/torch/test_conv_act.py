"""Convolutions without a norm, fused with the activation that follows."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
from genesis.torch import bridge, entries
from tests.torch.chains import Parts, agree, compiled, images, pair
from tests.torch.fuzz_models import FUNCTIONS, OddConv, PaddedConv, StandardizedConv
from tests.torch.test_activations import LAYERS, kinds
from tests.torch.test_prepared_act import same, step, went

pytestmark = pytest.mark.usefixtures("activates")
_went = went  # a fixture


class Ends(nn.Module):
    """Two convolutions, each with what ends it."""

    def __init__(self, end: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.c, self.d = nn.Conv2d(3, 4, 3, padding=1, bias=bias), nn.Conv2d(4, 3, 3, groups=1)
        self.end = end
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.d(self.end(self.c(x))))


def in_order(x: Tensor, is_last: bool) -> Tensor:
    return x.to(memory_format=torch.channels_last) if is_last else x


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("make", "name"), LAYERS)
def test_layers(make: Callable[[], nn.Module], name: str, channels_last: bool) -> None:
    for inplace in (False, True):
        end = make()
        if inplace and (not hasattr(end, "inplace") or name == "leaky_relu(-0.2)"):
            continue
        end.inplace = inplace
        theirs, ours = pair(Ends(end, bias=not inplace))
        x = in_order(images(), channels_last).requires_grad_()
        agree(theirs, ours, x)
        assert kinds(ours) == (name,)
        assert len(genesis.torch.report(ours).fused) == 2
        with torch.no_grad():
            torch.testing.assert_close(ours(x), theirs(x))
            assert ours(x).stride() == theirs(x).stride()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_and_methods(function: Callable[[Tensor], Tensor]) -> None:
    theirs, ours = pair(Ends(function))
    agree(theirs, ours, images())
    assert len(kinds(ours)) == 1


@pytest.mark.parametrize("end", [nn.GELU(), nn.LeakyReLU(0.2), nn.ReLU(), nn.Sigmoid()])
@pytest.mark.parametrize("channels_last", [False, True])
def test_second_gradients(end: nn.Module, channels_last: bool) -> None:
    """As of a critic with a gradient penalty."""
    found = []
    for model in pair(Ends(end)):
        torch.manual_seed(0)
        x = in_order(images(), channels_last).requires_grad_()
        (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (grad.square().sum() + model(x).sum()).backward()
        found.append([x.grad, *(each.grad for each in model.parameters())])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_second_gradients_of_a_single_image() -> None:
    """Of views of one image in channels-last PyTorch 2.13 computes wrong gradients, where a convolution has groups."""
    theirs, ours = pair(
        nn.Sequential(nn.Conv2d(4, 4, 1, groups=2), nn.SiLU()).double().to(memory_format=torch.channels_last)
    )
    x = torch.randn(1, 4, 5, 4, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    found = []
    for model in (theirs, ours):
        (grad,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), [x, *model.parameters()]))
    torch.testing.assert_close(found[1], found[0])
    assert genesis.torch.report(ours).fused == [("0", "1")]


@pytest.mark.parametrize(("make", "name"), LAYERS)
def test_dtypes_under_autocast(make: Callable[[], nn.Module], name: str) -> None:
    theirs = nn.Sequential(nn.Conv2d(3, 4, 3), make(), nn.Conv2d(4, 4, 1), make())
    theirs, ours = pair(theirs)
    for model in (theirs, ours):
        for x in (torch.linspace(-1, 1, 150).view(2, 3, 5, 5), torch.linspace(-1, 1, 150).view(2, 3, 5, 5).bfloat16()):
            with torch.autocast("cpu", torch.bfloat16):
                y = model(x)
            y.float().square().sum().backward()
            model.last = [y, *(each.grad for each in model.parameters())]
    for mine, other in zip(ours.last, theirs.last, strict=True):
        assert mine.dtype is other.dtype
        torch.testing.assert_close(mine, other, rtol=0.03, atol=0.03)


def test_what_else_uses_the_convolution_is_not_computed_twice_for_long() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Conv2d(3, 3, 1)
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            y = self.c(x)
            return F.gelu(y) + torch.sin(y)

    theirs, ours = pair(Shared())
    agree(theirs, ours, images(), calls=6)
    assert genesis.torch.report(ours).left == [("c", "its result is used in several places")]


def test_the_result_may_change_where_pytorch_lets_it() -> None:
    class Changes(Ends):
        def forward(self, x: Tensor) -> Tensor:
            y = F.leaky_relu(self.c(x), 0.1)
            y += 1.0
            return F.hardtanh(self.d(y), 0.0, 6.0) * 2

    theirs, ours = pair(Changes(nn.Identity()))
    for is_last in (False, True):
        agree(theirs, ours, in_order(images(), is_last))


def test_in_compiled_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Parts([*(Ends(make()) for make, _ in LAYERS), *map(Ends, FUNCTIONS[:3])])
    ours, graphs = compiled(theirs, monkeypatch)
    agree(theirs, ours, images(), calls=2)
    assert [len(parts) for parts in graphs[0].fused] == [2] * 2 * len(theirs.parts)
    with torch.no_grad():
        x = images()
        torch.testing.assert_close(ours(x), theirs(x))
    assert len(graphs[-1].fused) == 2 * len(theirs.parts)


@pytest.mark.parametrize(("kind", "number"), [(PaddedConv, 2), (StandardizedConv, 2), (OddConv, 2)])
@pytest.mark.parametrize("channels_last", [False, True])
def test_subclasses_that_call_the_function(kind: type[nn.Conv2d], number: int, channels_last: bool) -> None:
    """As timm's Conv2dSame and StdConv2d."""
    parts = kind(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), kind(4, 4, 3, padding=1, bias=False), nn.GELU()
    theirs, ours = pair(nn.Sequential(*parts).double())
    x = in_order(torch.randn(2, 4, 5, 6, dtype=torch.float64), channels_last)
    agree(theirs, ours, x, calls=5)
    fused = genesis.torch.report(ours).fused
    takes_sum = kind is OddConv and channels_last  # the norm of what that convolution adds up
    assert [chain for chain in fused if chain[0] == "1"] == [("1", "relu")] * takes_sum
    assert len(fused) == number + takes_sum
    with torch.no_grad():
        for model in (theirs, ours):
            model.eval()
        torch.testing.assert_close(ours(x), theirs(x))


def test_on_the_cpu_the_pair_is_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none of its passes is saved; on CUDA the same model is fused."""
    monkeypatch.undo()
    monkeypatch.setattr(bridge, "trains", lambda x: True)
    theirs, ours = pair(Ends(nn.ReLU()))
    sequence = genesis.torch.fuse(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()))
    assert genesis.torch.report(sequence).left == [("0", entries.BY_PYTORCH)]
    x = images()
    agree(theirs, ours, x, calls=4)
    assert genesis.torch.report(ours).left == [("c", entries.BY_PYTORCH), ("d", entries.BY_PYTORCH)]
    assert not ours.c.forward.active


def test_reasons_name_what_follows() -> None:
    class Joins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c, self.d, self.e = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(3, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.d(self.c(x)), self.e(x)], 1)

    ours = genesis.torch.fuse(Joins().double())
    for _ in range(3):
        ours(images())
    reasons = dict(genesis.torch.report(ours).left)
    assert [reasons[name].partition(":")[0].rpartition(" ")[2] for name in "cde"] == ["conv2d", "cat", "cat"]


def test_inference_mode_unlearns_nothing() -> None:
    """There the activation runs by itself; training is fused as before."""
    theirs, ours = pair(Ends(nn.ReLU()))
    x = images()
    for _ in range(5):
        with torch.inference_mode():
            torch.testing.assert_close(ours(x), theirs(x))
    assert ours.c.forward.active
    agree(theirs, ours, x.requires_grad_())
    assert len(genesis.torch.report(ours).fused) == 2


class Bare(nn.Module):
    """A convolution that nothing of a chain follows."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.c(x))


def test_a_bias_alone_runs_with_its_convolution_in_channels_last() -> None:
    """PyTorch adds it in a pass of its own."""
    for last in (True, False):
        found = []
        theirs, ours = pair(Bare().double())
        x = in_order(images(), last)
        agree(theirs, ours, x, calls=5)
        for model in (theirs, ours):
            y = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad(model(y).square().sum(), y, create_graph=True)
            (grad.square().sum() + model(y).sum()).backward()
            found.append([y.grad, *(each.grad for each in model.parameters())])
        torch.testing.assert_close(found[1], found[0])
        assert genesis.torch.report(ours).fused == ([("c", "bias")] if last else [])
        with torch.no_grad():
            assert ours(x).stride() == theirs(x).stride()


@pytest.mark.usefixtures("cuda_kernels")
def test_a_bias_alone_by_prepared_launches(went: dict[str, list[bool]]) -> None:
    """On the simulated device."""
    plain = Bare().to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last)
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    same(step(fused, x), step(plain, x))
    assert went == {"run": [True], "backward": [True]}


class Gate(nn.Module):
    """Squeeze-and-excite, whose pictures of one pixel have strides that fit both orders of memory."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.down, self.act, self.up = nn.Conv2d(4, 3, 1), act, nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        u = self.act(self.down(x.mean((2, 3), keepdim=True)))
        gate = self.up(u)
        return x * gate.sigmoid(), u, gate


@pytest.mark.parametrize("act", [nn.ReLU(), nn.ReLU(True), nn.SiLU(), nn.SiLU(True), nn.GELU(), nn.Hardswish()])
def test_pictures_of_one_pixel(act: nn.Module) -> None:
    """Their strides are what PyTorch's layers give, which disagree on the order."""
    theirs, ours = pair(Gate(act).double())
    pooled = torch.randn(2, 4, 1, 1, dtype=torch.float64).as_strided(
        (2, 4, 1, 1), (4, 1, 4, 4)
    )  # as a pooling gives it
    for x in (pooled, in_order(torch.randn(2, 4, 3, 3, dtype=torch.float64), True)):
        for grad in (True, False):
            results = []
            with torch.set_grad_enabled(grad):
                for model in (theirs, ours):
                    leaf = x.clone().requires_grad_(grad)
                    found = list(model(leaf))
                    strides = [each.stride() for each in found]
                    if grad:
                        found += torch.autograd.grad(sum(each.square().sum() for each in found), leaf)
                    results.append((strides, found))
            assert results[1][0] == results[0][0]
            torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-12, atol=1e-12)
    assert len(genesis.torch.report(ours).fused) == 2


@pytest.mark.usefixtures("cuda_kernels")
def test_pictures_of_one_pixel_by_prepared_launches(went: dict[str, list[bool]]) -> None:
    """On the simulated device; the gradient comes in the other order of memory."""
    plain = Gate(nn.ReLU()).to(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 2, 2).to(memory_format=torch.channels_last)
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    for model in (plain, fused):
        model.forward = lambda x, model=model: type(model).forward(model, x)[0]  # type: ignore[method-assign]
    same(step(fused, x), step(plain, x))
    assert went["run"] == [True, True]


class KeepsConvolution(nn.Module):
    """Other code takes a convolution's result after its norm did."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.b = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        u = self.c(x)
        v = self.b(u)
        return torch.sin(u), torch.cos(v)


@pytest.mark.parametrize("training", [True, False])
def test_a_bias_alone_leaves_the_norm_what_it_is(training: bool) -> None:
    theirs, ours = pair(KeepsConvolution().double().train(training))
    x = in_order(images(), True)
    for _ in range(3):
        with torch.set_grad_enabled(training):
            torch.testing.assert_close(ours(x), theirs(x))
