"""genesis.fuse: what it finds, that nothing changes by it, and why it leaves what it leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import genesis
import genesis.nn.functional as F
from genesis import nn
from genesis.errors import DTypeError
from genesis.fusion.modules import Fused, fuse


class Block(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(filters, momentum=None)
        self.relu = nn.ReLU()
        self.down = None
        if channels != filters:
            self.down = nn.Sequential(nn.Conv2d(channels, filters, 1), nn.BatchNorm2d(filters, affine=False))

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(Block(8, 8), Block(8, 12))
        self.head = nn.Linear(12, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


def pair() -> tuple[Any, Any, Any]:
    """A network, the same fused, and an input; float64."""
    genesis.manual_seed(0)
    net = Net().double()
    x = genesis.randn(2, 3, 8, 8, dtype=genesis.float64)
    return net, fuse(copy.deepcopy(net), x), x


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual.detach().to_torch(), expected.detach().to_torch(), rtol=1e-9, atol=1e-9)


def test_public_name() -> None:
    assert genesis.fuse is fuse


def test_report() -> None:
    _, fused, _ = pair()
    assert fused.fusion.fused == [
        ("stem.0", "stem.1", "stem.2"),
        ("blocks.0.conv1", "blocks.0.bn1", "blocks.0.relu"),
        ("blocks.0.conv2", "blocks.0.bn2", "blocks.0.sum", "blocks.0.ReLU"),
        ("blocks.1.conv1", "blocks.1.bn1", "blocks.1.relu"),
        ("blocks.1.conv2", "blocks.1.bn2", "blocks.1.sum", "blocks.1.ReLU"),
        ("blocks.1.down.0", "blocks.1.down.1"),
    ]
    assert fused.fusion.left == []
    assert str(fused.fusion).startswith("6 fused, 0 left\n  stem.0 → stem.1 → stem.2\n")


def test_without_an_example_only_sequentials() -> None:
    net = fuse(Net())
    assert [names[0] for names in net.fusion.fused] == ["stem.0", "blocks.1.down.0"]
    reason = "what it does with its layers is only seen with an example"
    assert net.fusion.left == [("blocks.0", reason), ("blocks.1", reason)]


def test_training_and_inference_are_those_of_the_layers() -> None:
    net, fused, x = pair()
    assert list(fused.state_dict()) == list(net.state_dict())
    assert isinstance(fused.blocks[0], Block)
    assert isinstance(fused.blocks[0], Fused)
    for _ in range(2):
        results = [model(x) for model in (net, fused)]
        close(results[1], results[0])
        for result in results:
            result.square().sum().backward()
    for (name, theirs), ours in zip(net.named_parameters(), fused.parameters(), strict=True):
        if name not in ("stem.0.bias", "blocks.0.conv2.bias", "blocks.1.conv2.bias", "blocks.1.down.0.bias"):
            close(ours.grad, theirs.grad)
    for theirs, ours in zip(net.buffers(), fused.buffers(), strict=True):
        close(ours, theirs)
    net.eval()
    fused.eval()
    with genesis.no_grad():
        close(fused(x), net(x))
        fused.load_state_dict(Net().double().state_dict())
        net.load_state_dict(fused.state_dict())
        close(fused(x), net(x))


def test_fusing_changes_no_state() -> None:
    net, fused, _ = pair()
    for (name, theirs), ours in zip(net.state_dict().items(), fused.state_dict().values(), strict=True):
        assert torch.equal(theirs.to_torch(), ours.to_torch()), name
    assert all(module.training for module in fused.modules())


def test_copies_and_slices() -> None:
    _, fused, x = pair()
    fused.eval()
    with genesis.no_grad():
        close(copy.deepcopy(fused)(x), fused(x))
        close(fused.stem[:2](x), fused.stem[1](fused.stem[0](x)))
        fused.stem[1] = nn.Identity()  # rebuilt: what was planned no longer holds
        close(fused.stem(x), F.relu(fused.stem[0](x)))


class Custom(nn.Module):
    """One convolution and one norm, and a forward of its own."""

    def __init__(self, compute: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.conv, self.norm, self.compute = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), compute

    def forward(self, x: Any) -> Any:
        return self.compute(self, x)


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda m, x: m.norm(m.conv(x)).mean(), "it computes mean beside its layers"),
        (lambda m, x: m.norm(m.conv(x * 2)), "it computes mul beside its layers"),
        (lambda m, x: (m.norm(m.conv(x)), 1), "it returns something else than one tensor"),
        (lambda m, x: m.norm(m.conv(x)) if m.training else m.conv(x), "it does something else in training"),
    ],
)
def test_forwards_that_are_left(compute: Callable[[Any, Any], Any], reason: str) -> None:
    net = fuse(Custom(compute), genesis.ones(2, 3, 4, 4))
    assert net.fusion.left == [("", reason)]
    assert type(net) is Custom


def test_layers_of_another_module_are_left_to_it() -> None:
    class Outer(Custom):
        def __init__(self) -> None:
            super().__init__(lambda m, x: m.inner.norm(m.inner.conv(x)))
            self.inner = Custom(lambda m, x: m.norm(m.conv(x)))

    net, x = Outer(), genesis.ones(2, 3, 4, 4)
    expected = net(x)
    fused = fuse(net, x)
    assert ("", "it calls a layer of another module") in fused.fusion.left
    close(fused(x), expected)


@pytest.mark.parametrize("is_last", [False, True])
def test_a_relu_in_place_ends_a_chain(is_last: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
            self.head = nn.Conv2d(4, 2, 1)

        def forward(self, x: Any) -> Any:
            y = self.relu(self.norm(self.conv(x)))
            return y if is_last else self.head(y)

    genesis.manual_seed(0)
    net, x = Net().double(), genesis.randn(2, 3, 4, 4, dtype=genesis.float64)
    fused = fuse(copy.deepcopy(net), x)
    assert fused.fusion.fused == [("conv", "norm", "relu")]
    close(fused(x), net(x))


def test_layers_that_are_left() -> None:
    class Own(nn.BatchNorm2d):
        pass

    hooked = nn.Conv2d(4, 4, 1)
    hooked.register_forward_hook(lambda module, args, output: None)
    layers = nn.Conv2d(3, 4, 1), Own(4), hooked, nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
    net = fuse(nn.Sequential(*layers))
    assert net.fusion.left == [
        ("0", "Own is a subclass of BatchNorm2d"), ("2", "it has hooks"), ("4", "no batch norm follows")
    ]  # fmt: skip
    with pytest.raises(DTypeError, match="fuse: argument 'model': expected a Module, got int"):
        fuse(3)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kernel_size": 2, "padding": "same"}, "it pads one side more than the other"),
        ({"kernel_size": (3, 2), "padding": "same", "dilation": (1, 3)}, "it pads one side more than the other"),
        ({"kernel_size": 3, "padding": 1, "padding_mode": "circular"}, "its padding_mode is 'circular'"),
        ({"kernel_size": 3, "padding": "same", "padding_mode": "reflect"}, "its padding_mode is 'reflect'"),
        ({"kernel_size": 2, "padding": "same", "dilation": 2}, ""),
        ({"kernel_size": 2, "padding": "valid"}, ""),
    ],
)
@pytest.mark.parametrize("train", [True, False])
def test_padding_that_the_fused_op_lacks(options: dict[str, Any], reason: str, train: bool) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, **options), nn.BatchNorm2d(3), nn.ReLU()).double().train(train)
    x = genesis.randn(2, 2, 6, 6).double()
    with genesis.no_grad():
        expected = net(x)
        fused = fuse(net, x)
        close(fused(x), expected)
    assert fused.fusion.left == ([("0", reason)] if reason else [])


def test_activations() -> None:
    """Each in a Sequential, in training and folded; one of a subclass stays."""
    genesis.manual_seed(0)
    ends = [
        nn.ReLU6(), nn.LeakyReLU(0.2), nn.ELU(0.5), nn.SiLU(), nn.Mish(), nn.GELU(), nn.GELU("tanh"), nn.Hardswish(),
        nn.Hardsigmoid(), nn.Sigmoid(), nn.Tanh(),
    ]  # fmt: skip
    model = nn.Sequential(
        *[nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), end) for end in ends]
    ).double()
    fused = fuse(copy.deepcopy(model))
    assert fused.fusion.fused == [(f"{i}.0", f"{i}.1", f"{i}.2") for i in range(len(ends))]
    x = genesis.randn(2, 3, 5, 4, dtype=genesis.float64)
    outcomes = []
    for net in (model, fused):
        loss = (net(x) ** 2).sum()
        loss.backward()
        with genesis.no_grad():
            outcomes.append([loss, *(p.grad for p in net.parameters()), *net.buffers(), net.eval()(x)])
    for one, other in zip(*outcomes, strict=True):
        close(one, other)
