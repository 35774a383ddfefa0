"""Chains in training that go straight to their launches, on the simulated device: when they do, and their values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis import backends
from genesis.backends.cuda.engine import planner as plans
from genesis.torch import prepared

pytestmark = pytest.mark.usefixtures("cuda_kernels")
_LAST = torch.channels_last


class Block(nn.Module):
    """conv → norm → ReLU, and conv → norm → + → ReLU."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(16, 16, 3, padding=1, bias=bias), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 16, 3, padding=1, bias=bias), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + x)


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bool]]:
    """Of each part of a chain's calls: did it go the short way?"""
    went: dict[str, list[bool]] = {"begin": [], "finish": [], "backward": []}

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            result = method(*args)
            went[name].append(result is not None)
            return result

        return run

    went["run"] = []
    monkeypatch.setattr(prepared.Folded, "run", watched("run", prepared.Folded.run))
    for name in ("begin", "finish", "backward"):
        monkeypatch.setattr(prepared.Chain, name, watched(name, getattr(prepared.Chain, name)))
    return went


def both(bias: bool = False, memory_format: Any = _LAST) -> tuple[nn.Module, nn.Module, Tensor]:
    """Plain and fused, and an input."""
    torch.manual_seed(0)
    plain = Block(bias).to(memory_format=memory_format)
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    return plain, fused, torch.randn(2, 16, 4, 4).to(memory_format=memory_format)


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The result, the gradients, the running statistics."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    y = model(x)
    weights = torch.arange(y.numel()).view_as(y).cos().contiguous(memory_format=_LAST)
    (y * weights).sum().backward()
    return [y, x.grad, *(p.grad for p in model.parameters() if p.requires_grad), *model.buffers()]  # type: ignore[list-item]


def same(found: list[Tensor], wanted: list[Tensor]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("bias", [False, True])
def test_values_gradients_and_statistics_of_several_steps(bias: bool, chains: dict[str, list[bool]]) -> None:
    plain, fused, x = both(bias)
    for _ in range(3):
        same(step(fused, x), step(plain, x))
    assert all(went for each in chains.values() for went in each)
    assert [len(each) for each in chains.values()] == [6, 6, 6, 0]


class Wide(nn.Module):
    """Convolutions whose output is not written, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm2(self.conv2(x)) + torch.relu(self.norm1(self.conv1(x))))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("frozen", [(), ("conv1.weight", "conv1.bias")])
def test_wide_convolutions(
    autocast: bool, frozen: tuple[str, ...], chains: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    fused = genesis.torch.fuse(Wide().to(torch.float32 if autocast else torch.bfloat16))
    for name in frozen:
        fused.get_parameter(name).requires_grad_(False)
    other = copy.deepcopy(fused)
    x = torch.randn(2, 16, 4, 4).bfloat16().to(memory_format=_LAST)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = step(fused, x)
            with monkeypatch.context() as patch:
                patch.setattr(prepared, "_is_plain", lambda: False)
                wanted = step(other, x)
        assert all(map(torch.equal, found, wanted))
    assert chains["begin"] == [True, True, False, False] * 2
    assert chains["finish"] == chains["backward"] == [True] * 4


def test_weights_in_another_order(chains: dict[str, list[bool]]) -> None:
    """As they are unless somebody says otherwise."""
    plain, fused, x = both(memory_format=torch.contiguous_format)
    x = x.to(memory_format=_LAST)
    for _ in range(2):
        same(step(fused, x), step(plain, x))
    assert all(went for each in chains.values() for went in each)
    for name, parameter in fused.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad.stride() == parameter.stride(), name
    y = fused(x)
    with torch.no_grad():
        fused.conv1.weight.mul_(2)  # type: ignore[operator, union-attr]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_contiguous_images(chains: dict[str, list[bool]]) -> None:
    plain, fused, x = both(memory_format=torch.contiguous_format)
    for _ in range(2):
        same(step(fused, x), step(plain, x))
    assert chains["begin"] == [True] * 2  # the second convolution, whose input has come from the first


@pytest.mark.parametrize("autocast", [False, True])
def test_the_long_way_gives_the_same_bits(
    autocast: bool, chains: dict[str, list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights in float32 are cast by the chain's own launches, and so are their gradients."""
    _, fused, x = both(memory_format=torch.contiguous_format)
    other = copy.deepcopy(fused)
    x = (x.bfloat16() if autocast else x).to(memory_format=_LAST)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            found = step(fused, x)
            with monkeypatch.context() as patch:
                patch.setattr(prepared, "_is_plain", lambda: False)
                wanted = step(other, x)
        assert all(map(torch.equal, found, wanted))
    assert chains["backward"] == [True] * 4
    assert chains["begin"] == [True, True, False, False] * 2
    assert all(parameter.grad.dtype is torch.float32 for parameter in fused.parameters())  # type: ignore[union-attr]


@pytest.mark.parametrize("frozen", [["conv1.weight"], ["norm1.weight", "norm2.bias"], ["conv1.weight", "conv2.weight"]])
def test_what_needs_no_gradient_gets_none(frozen: list[str], chains: dict[str, list[bool]]) -> None:
    plain, fused, x = both()
    for model in (plain, fused):
        for name in frozen:
            model.get_parameter(name).requires_grad_(False)
    for _ in range(2):
        same(step(fused, x), step(plain, x))
    assert False not in chains["backward"]


def test_a_gradient_in_another_order_of_memory_goes_the_long_way(chains: dict[str, list[bool]]) -> None:
    plain, fused, x = both()

    def gradients(model: nn.Module) -> tuple[Tensor, ...]:
        y = model(x)
        return torch.autograd.grad(y, list(model.parameters()), torch.ones_like(y).contiguous().cos())

    for _ in range(2):
        same(list(gradients(fused)), list(gradients(plain)))
    assert chains["backward"] == [False, True] * 2


def test_saved_tensors_that_come_back_otherwise_go_the_long_way(chains: dict[str, list[bool]]) -> None:
    plain, fused, x = both()
    step(plain, x), step(fused, x)
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.contiguous() if t.dim() == 4 else t)
    with hooks:
        # Fused chains run plainly under such hooks, unless the whole fused model is called in them.
        found, wanted = step(fused, x), step(plain, x)
    same(found, wanted)
    assert False in chains["backward"]


def test_one_norm_in_two_sums() -> None:
    """The second finds no room for its bits in what the first has kept."""

    class TwoSums(Block):
        def forward(self, x: Tensor) -> Tensor:
            y = self.norm1(self.conv1(x))
            return torch.relu(y + x) * torch.relu(y - 0.5 + x.neg()) + torch.relu(y + x.neg())

    torch.manual_seed(0)
    plain = TwoSums().to(memory_format=_LAST)
    fused = genesis.torch.fuse(copy.deepcopy(plain))
    x = torch.randn(2, 16, 4, 4).to(memory_format=_LAST)
    for _ in range(3):
        fused_step, plain_step = (step_of_some(model, x) for model in (fused, plain))
        same(fused_step, plain_step)


def step_of_some(model: nn.Module, x: Tensor) -> list[Tensor]:
    """step() of a model that does not use all parameters."""
    y = model(x)
    some = [p for name, p in model.named_parameters() if "1" in name]
    return [y, *torch.autograd.grad(y.cos().sum(), some), *model.buffers()]


def _one_pixel(model: Any) -> None:
    model.conv2.padding, model.conv2.kernel_size = (0, 0), (1, 1)
    model.conv2.weight = nn.Parameter(model.conv2.weight.detach()[..., :1, :1].contiguous())


def _with_gaps(model: Any) -> None:
    """PyTorch's own batch norm on the CPU gives wrong gradients then."""
    data = torch.arange(32.0)[::2]
    model.norm1.weight.data = data if hasattr(model, "fusion") else data.contiguous()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "eps": lambda model: setattr(model.norm1, "eps", 0.5),
    "momentum": lambda model: setattr(model.norm1, "momentum", 0.5),
    "another kernel": _one_pixel,
    "weight, uncounted": lambda model: model.conv1.weight.data.mul_(2),
    "other data": lambda model: setattr(model.conv1.weight, "data", model.conv1.weight.data * 2),
    "data with gaps": _with_gaps,
    "another buffer": lambda model: setattr(model.norm1, "running_mean", torch.arange(16.0)),
    "not at a multiple of 16 bytes": lambda model: setattr(model.norm2, "running_var", torch.ones(17)[1:]),
    "count": lambda model: model.norm2.num_batches_tracked.fill_(7),
    "a bias": lambda model: setattr(model.conv2, "bias", nn.Parameter(torch.ones(16))),
    "dtype": lambda model: model.double(),
}


@pytest.mark.parametrize("bias", [False, True])
def test_inference(bias: bool, chains: dict[str, list[bool]]) -> None:
    plain, fused, x = both(bias)
    for _ in range(2):
        same(step(fused, x), step(plain, x))
    plain.eval(), fused.eval()
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fused(x), plain(x), atol=2e-4, rtol=2e-4)
    assert chains["run"] == [True] * 6


@pytest.mark.parametrize("name", CHANGES)
def test_changes_between_calls_count_in_inference(name: str) -> None:
    plain, fused, x = both()
    plain.eval(), fused.eval()
    with torch.no_grad():
        fused(x), fused(x)
        for model in (plain, fused):
            CHANGES[name](model)
        x = x.to(next(plain.parameters()).dtype)
        for _ in range(2):
            torch.testing.assert_close(fused(x), plain(x), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", CHANGES)
def test_changes_between_calls_count(name: str) -> None:
    plain, fused, x = both()
    step(fused, x), step(plain, x)
    for model in (plain, fused):
        CHANGES[name](model)
    x = x.to(next(plain.parameters()).dtype)
    for _ in range(2):
        same(step(fused, x), step(plain, x))


def test_other_inputs() -> None:
    plain, fused, x = both()
    for images in (x, x[:1], torch.randn(3, 16, 5, 7).to(memory_format=_LAST), x, x.contiguous(), x[:, :, ::2]):
        same(step(fused, images), step(plain, images))


def test_plans_that_are_chosen_anew_and_tools(chains: dict[str, list[bool]]) -> None:
    plain, fused, x = both()
    step(fused, x), step(plain, x)
    plans.forget()
    same(step(fused, x), step(plain, x))
    assert all(went for each in chains.values() for went in each)
    calls: list[str] = []
    with backends.recording(lambda call: calls.append(call.op)):
        same(step(fused, x), step(plain, x))
    assert "conv_bn_begin" in calls or "conv_bn_relu" in calls
    assert "conv_bn_relu_backward" in calls
