"""Chains in a Sequential: without deferred tensors and calls of their layers, unless someone looks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import genesis.torch
from genesis.torch import pending, sequences
from tests.torch.chains import agree, images


@pytest.fixture
def went(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of each convolution, batch norm and activation in a row: a chain, a deferred tensor, or neither."""
    found: list[str] = []
    take, defer = sequences._take, sequences.pending

    def took(*args: Any) -> bool:
        found.append("chain" if take(*args) else "deferred")
        return found[-1] == "chain"

    monkeypatch.setattr(sequences, "_take", took)
    monkeypatch.setattr(sequences, "pending", lambda *args: found.append("pending") or defer(*args))
    return found


class Kind(nn.Sequential):
    """As torchvision's Conv2dNormActivation: a class of its own that runs its layers as Sequential does."""


class Backwards(nn.Sequential):
    def __iter__(self) -> Iterator[nn.Module]:
        return iter([*self._modules.values()][::-1])  # type: ignore[arg-type]


def chain(kind: type[nn.Sequential] = nn.Sequential, act: nn.Module | None = None, channels: int = 3) -> nn.Sequential:
    return kind(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), act or nn.ReLU()).double()


def nested() -> nn.Sequential:
    return nn.Sequential(chain(), chain(Kind, nn.SiLU(inplace=True)), nn.Sequential(chain(), nn.Flatten(2)))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_values_gradients_and_buffers(training: bool, grad: bool, order: Any, went: list[str]) -> None:
    _agree(nested().train(training), grad, order, went)


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_values_on_the_simulated_device(order: Any, went: list[str], cuda_kernels: None) -> None:
    training = order is torch.channels_last
    _agree(nn.Sequential(chain()).train(training), training, order, went)


def _agree(theirs: nn.Sequential, grad: bool, order: Any, went: list[str]) -> None:
    torch.manual_seed(0)
    number = sum(isinstance(module, nn.Conv2d) for module in theirs.modules())
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    with nullcontext() if grad else torch.no_grad():
        if not grad:
            theirs.requires_grad_(False), ours.requires_grad_(False)
            for _ in range(4):
                x = images().to(memory_format=order)
                torch.testing.assert_close(ours(x), theirs(x), rtol=1e-8, atol=1e-8, check_stride=True)
            torch.testing.assert_close(list(ours.buffers()), list(theirs.buffers()))
        else:
            agree(theirs, ours, images().to(memory_format=order), calls=4)
    assert went[-number:] == ["chain"] * number
    assert len(genesis.torch.report(ours).fused) == number


class Seen(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        NAMES.append(func.__name__)
        return func(*args, **(kwargs or {}))


NAMES: list[str] = []


def _note(*args: Any) -> None:
    NAMES.append("hook")


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward": lambda layer: layer.register_forward_hook(_note),
    "before forward": lambda layer: layer.register_forward_pre_hook(_note),
    "backward": lambda layer: layer.register_full_backward_hook(_note),
    "before backward": lambda layer: layer.register_full_backward_pre_hook(_note),
    "of all": lambda layer: nn.modules.module.register_module_forward_hook(_note),
    "before all": lambda layer: nn.modules.module.register_module_forward_pre_hook(_note),
    "compiled": lambda layer: layer.__dict__.update(_compiled_call_impl=lambda x: (_note(), layer._call_impl(x))[1]),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_of_each_layer_are_called(name: str) -> None:
    theirs = chain()
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    counts, x = [], images().requires_grad_()
    for model in (theirs, ours):
        model(x), model(x)
        for place in range(3):
            handle = HOOKS[name](model[place])
            NAMES.clear()
            model(x).sum().backward()
            counts.append(len(NAMES))
            if handle is None:
                del model[place].__dict__["_compiled_call_impl"]
            else:
                handle.remove()
    assert counts[:3] == counts[3:]
    assert 0 not in counts


CHANGES: dict[str, Callable[[Any], object]] = {
    "weight, uncounted": lambda model: model[0].weight.data.mul_(2),
    "gamma, uncounted": lambda model: model[1].weight.data.mul_(2),
    "variance": lambda model: model[1].running_var.mul_(3),
    "eps": lambda model: setattr(model[1], "eps", 0.5),
    "no momentum": lambda model: setattr(model[1], "momentum", None),
    "another stride": lambda model: setattr(model[0], "stride", (2, 2)),
    "training": lambda model: model[1].train(not model[1].training),
    "no batch statistics": lambda model: setattr(model[1], "track_running_stats", False),
    "no weight": lambda model: setattr(model[1], "weight", None),
    "another norm": lambda model: model.__setitem__(1, nn.InstanceNorm2d(3)),
    "another activation": lambda model: model.__setitem__(2, nn.GELU()),
    "in place": lambda model: setattr(model[2], "inplace", True),
    "no activation": lambda model: model.__delitem__(2),
    "a layer between": lambda model: model.insert(1, nn.Dropout(0.0)),
    "a parametrization": lambda model: torch.nn.utils.parametrizations.weight_norm(model[0]),
    "a method": lambda model: setattr(model[1], "forward", lambda x: x * 2),
    "frozen": lambda model: model[0].weight.requires_grad_(False),
}


IN_TRAINING = ("gamma, uncounted", "no momentum", "no batch statistics", "training", "frozen", "in place")


@pytest.mark.parametrize("name", CHANGES)
def test_changes_count(name: str) -> None:
    training = name in IN_TRAINING
    theirs = chain().train(training)
    ours = genesis.torch.fuse(copy.deepcopy(theirs))
    for i in range(4):
        x = images().requires_grad_()
        if i == 2:
            CHANGES[name](theirs), CHANGES[name](ours)
        with torch.set_grad_enabled(training):
            y, wanted = ours(x), theirs(x)
            torch.testing.assert_close(y, wanted, rtol=1e-8, atol=1e-8, check_stride=True)
        if training:
            torch.testing.assert_close(_gradients(ours, x, y), _gradients(theirs, x, wanted), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(list(ours.buffers()), list(theirs.buffers()))


def _gradients(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    leaves = [x, *[each for each in model.parameters() if each.requires_grad]]
    return torch.autograd.grad(y.square().sum(), leaves, allow_unused=True, materialize_grads=True)


def test_modes_see_the_layers(went: list[str]) -> None:
    ours = genesis.torch.fuse(chain().eval())
    x = images()
    with torch.no_grad():
        for _ in range(3):
            ours(x)
        NAMES.clear()
        with Seen():
            ours(x)
        assert {"conv2d", "batch_norm", "relu"} <= set(NAMES)
        with FlopCounterMode(display=False) as flops:
            ours(x)
    assert flops.get_total_flops() == 2 * 2 * 5 * 4 * 3 * 3 * 9
    assert went.count("chain") == 2


def test_copies_compute_with_their_own_parameters() -> None:
    ours = genesis.torch.fuse(nn.Sequential(chain(), nn.Identity()).eval())
    x = images()
    with torch.no_grad():
        for _ in range(3):
            y = ours(x)
        replica = copy.copy(ours[0])  # as DataParallel makes them
        replica._modules = {name: copy.copy(layer) for name, layer in ours[0]._modules.items()}
        replica[0]._parameters = {name: 2 * p.detach() for name, p in ours[0][0]._parameters.items()}
        for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
            other[0][0].weight.zero_(), other[0][0].bias.zero_()
            assert other(x).abs().max() < 1e-2
        doubled = ours[0][1](2 * torch.conv2d(x, ours[0][0].weight, ours[0][0].bias, padding=1)).relu()
        torch.testing.assert_close(replica(x), doubled, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(ours(x), y)
    plain = genesis.torch.unfuse(ours)
    assert not any("forward" in module.__dict__ for module in plain.modules())


def test_sequentials_with_an_order_of_their_own_are_left() -> None:
    model = Backwards(nn.ReLU(), nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3, padding=1)).double()
    outer = nn.Sequential(model)
    fused = genesis.torch.fuse(copy.deepcopy(outer))
    agree(outer, fused, images())
    assert "forward" not in fused[0].__dict__


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_layer_is_refused(place: int) -> None:
    model = genesis.torch.fuse(chain())
    model(images())
    model._modules[str(place)] = None
    with pytest.raises(TypeError, match="NoneType"):
        model(images())


def test_a_row_that_ends_in_another_sequential_is_fused_too() -> None:
    """A row of layers that a Sequential ends is continued outside."""
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)), nn.ReLU()).double()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    agree(model, fused, images())
    assert genesis.torch.report(fused).fused == [("0.0", "0.1", "relu")]
    assert type(fused(images())) is not pending.Pending
