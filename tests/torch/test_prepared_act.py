"""Convolutions and activations that go straight to their launches, on the simulated device: when, and their values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis.torch import bridge, prepared_act
from genesis.torch.prepared_act import Activated

pytestmark = pytest.mark.usefixtures("cuda_kernels")
_LAST = torch.channels_last


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
    """Of each call: did it go the short way?"""
    found: dict[str, list[bool]] = {"run": [], "backward": []}
    for name, calls in found.items():
        method = getattr(Activated, name)

        def watched(*args: Any, method: Any = method, calls: list[bool] = calls) -> Any:
            result = method(*args)
            calls.append(result is not None)
            return result

        monkeypatch.setattr(Activated, name, watched)
    return found


def both(*ends: nn.Module, bias: bool = True, memory_format: Any = _LAST) -> tuple[nn.Module, nn.Module, Tensor]:
    """Plain and fused, and an input."""
    torch.manual_seed(0)
    layers = [each for end in ends for each in (nn.Conv2d(16, 16, 3, padding=1, bias=bias), end)]
    plain = nn.Sequential(*layers).to(memory_format=memory_format)
    return plain, genesis.torch.fuse(copy.deepcopy(plain)), torch.randn(2, 16, 4, 4).to(memory_format=_LAST)


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The result and the gradients."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    weights = torch.arange(y.numel()).view_as(y).cos().contiguous(memory_format=_LAST)
    (y * weights).sum().backward()
    return [y, x.grad, *(p.grad for p in model.parameters() if p.requires_grad)]  # type: ignore[list-item]


def same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)
        assert one.stride() == other.stride()


@pytest.mark.parametrize("memory_format", [_LAST, torch.contiguous_format])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_of_several_steps(bias: bool, memory_format: Any, went: dict[str, list[bool]]) -> None:
    ends = nn.ReLU(), nn.GELU(), nn.LeakyReLU(0.1, inplace=True)
    plain, fused, x = both(*ends, bias=bias, memory_format=memory_format)
    for _ in range(2):
        same(step(fused, x), step(plain, x))
    assert went == {"run": [True] * 6, "backward": [True] * 6}
    with torch.no_grad():
        for _ in range(2):
            same([fused(x)], [plain(x)])
    assert went["run"] == [True] * 12


@pytest.mark.parametrize("autocast", [False, True])
def test_the_long_way_gives_the_same_bits(
    autocast: bool, went: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights in float32 are cast by the launches, and so are their gradients."""
    _, fused, x = both(nn.ReLU(), nn.SiLU(), nn.Sigmoid(), memory_format=torch.contiguous_format)
    other = copy.deepcopy(fused)
    x = x.bfloat16() if autocast else x
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = step(fused, x)
            with torch.no_grad():
                found.append(fused(x))
            with monkeypatch.context() as patch:
                patch.setattr(prepared_act, "_is_plain", lambda: False)
                wanted = step(other, x)
                with torch.no_grad():
                    wanted.append(other(x))
        for one, another in zip(found, wanted, strict=True):
            assert one.dtype is another.dtype
            torch.testing.assert_close(one, another, rtol=0, atol=0)
    assert went == {"run": ([True] * 6 + [False] * 6) * 2, "backward": ([True] * 3 + [False] * 3) * 2}


def test_frozen_parameters_and_inputs(went: dict[str, list[bool]]) -> None:
    for frozen in (("0.weight",), ("0.bias", "2.weight"), ("0.weight", "0.bias")):
        plain, fused, x = both(nn.SiLU(), nn.ReLU())
        for model in (plain, fused):
            for name in frozen:
                model.get_parameter(name).requires_grad_(False)
        same(step(fused, x), step(plain, x))
        for model in (plain, fused):
            model.zero_grad()
            model(x).square().sum().backward()
        for one, other in zip(fused.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, atol=2e-4, rtol=2e-4)
    assert all(went["run"])
    assert all(went["backward"])


@pytest.mark.parametrize("memory_format", [_LAST, torch.contiguous_format])
def test_changed_weights_are_noticed(memory_format: Any) -> None:
    """Where the kernels took a copy of the weight, too."""
    _, fused, x = both(nn.ReLU(), memory_format=memory_format)
    y = fused(x.requires_grad_())
    with torch.no_grad():
        fused[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = fused(x)
    y.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_looks_otherwise_goes_the_long_way(went: dict[str, list[bool]]) -> None:
    plain, fused, x = both(nn.ReLU(), nn.SiLU())
    for model in (plain, fused):
        model(x).contiguous(memory_format=torch.contiguous_format).mul(2).sum().backward()
    same([p.grad for p in fused.parameters()], [p.grad for p in plain.parameters()])  # type: ignore[misc]
    block = torch.empty(x.numel() + 1)[1:].view(2, 4, 4, 16).permute(0, 3, 1, 2)
    block.copy_(x)
    same([fused(block)], [plain(block)])
    assert False in went["run"]
    del went["run"][:]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        same(step(fused, x), step(plain, x))
    other = torch.randn(3, 16, 6, 5).to(memory_format=_LAST)
    same(step(fused, other), step(plain, other))
    same(step(fused, x), step(plain, x))


def test_second_gradients(went: dict[str, list[bool]]) -> None:
    plain, fused, x = both(nn.SiLU(), nn.ReLU(), memory_format=torch.contiguous_format)
    found = []
    for model in (plain, fused):
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(model(leaf).square().sum(), leaf, create_graph=True)
        grad.square().sum().backward()
        found.append([leaf.grad, *(each.grad for each in model.parameters())])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3 * float(theirs.abs().max()))
    assert went["run"] == [True, True]


def test_choices_made_anew(went: dict[str, list[bool]]) -> None:
    """After tuning, and with another precision."""
    plain, fused, x = both(nn.ReLU())
    for _ in range(2):
        same(step(fused, x), step(plain, x))
    first = next(iter(fused[0].forward.guarded.activated.values()))  # type: ignore[union-attr]
    with genesis.float32_precision("high"):
        assert not first.is_current()
        step(fused, x)
        assert next(iter(fused[0].forward.guarded.activated.values())) is not first  # type: ignore[union-attr]
    assert all(went["run"])


@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm2d(16)])
def test_sizes_that_take_turns_are_prepared_once(norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a detector's head, which several feature maps share."""
    made: list[str] = []
    for name in ("prepare_activation", "prepare_inference"):
        prepare = getattr(bridge, name)
        monkeypatch.setattr(bridge, name, lambda *args, prepare=prepare, name=name: made.append(name) or prepare(*args))
    plain = nn.Sequential(nn.Conv2d(16, 16, 1), norm, nn.ReLU()).to(memory_format=_LAST).eval()
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    sizes = [torch.randn(2, 16, size, size).to(memory_format=_LAST) for size in (3, 4, 5)]
    with torch.no_grad():
        for _ in range(5):
            same([fused(x) for x in sizes], [plain(x) for x in sizes])
    assert len(made) == len(sizes)
