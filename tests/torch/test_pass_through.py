"""What uses a chain's input later takes it from the chain: gradients are summed in its backward, and nothing else."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import genesis.torch
from genesis.torch.modules import conv_bn_relu, conv_bn_relu_and_input
from tests.models.torch_resnet import BasicBlock, Bottleneck
from tests.torch.residual_blocks import BLOCKS, agree, gradients, same


class KeepsIts(nn.Module):
    """A module that looks into what it is given, and hands it back."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return x


class Other(nn.Module):
    """Uses that must get the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.keep = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), KeepsIts()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = torch.relu(self.norm(self.conv(x)))
        return y, self.keep(x), x


@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_those_of_the_layers(
    block: tuple[nn.Module, int], handed: list[bool], apart: Any, training: bool
) -> None:
    model, number = block
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    theirs, ours, plain = (gradients(each.train(training), x) for each in (model, fused, apart(model)))
    assert handed.count(True) == number
    agree(ours, theirs, 1e-9)
    agree(ours, plain, 1e-12)  # the sums are the same, but for the order of more than two


@pytest.mark.parametrize("block", ["in place, downsampling", "thrice"], indirect=True)
def test_hooks_see_the_whole_gradient(block: tuple[nn.Module, int]) -> None:
    model, _ = block
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    found = []
    for net in (model, fused):
        seen: list[Tensor] = []
        leaf = x.clone().requires_grad_()
        inner = leaf * 1.0
        inner.register_hook(lambda grad, seen=seen: (seen.append(grad), grad * 2)[1])
        leaf.register_hook(lambda grad, seen=seen: seen.append(grad))
        net(inner).square().sum().backward()
        found.append([*seen, leaf.grad])
        assert len(seen) == 2
    agree(found[1], found[0], 1e-9)  # type: ignore[arg-type]


def test_other_uses_get_the_input_itself(handed: list[bool]) -> None:
    """What keeps a tensor, or returns it, may ask it for its gradient, or change it in place."""
    torch.manual_seed(0)
    model = Other().double()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    found = []
    for net in (model, fused):
        leaf = x.clone().requires_grad_()
        inner = leaf * 1.0
        y, kept, back = net(inner)
        assert back is inner
        assert kept is net.keep.seen is inner
        (y * kept + back).sum().backward()
        found.append(leaf.grad)
    torch.testing.assert_close(found[1], found[0])
    assert not any(handed)


class ChangesLater(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.conv(x)))
        z = torch.relu(self.norm2(self.conv2(x)))
        return y + z + x.mul_(2.0)


class ChangesBefore(ChangesLater):
    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu_(x.mul_(2.0))
        return torch.relu(self.norm(self.conv(x))) + self.norm2(self.conv2(x)) + x


@pytest.mark.parametrize("fuse", [False, True])
def test_changes_in_place_are_noticed(fuse: bool) -> None:
    def prepared(model: nn.Module) -> nn.Module:
        return genesis.torch.fuse(model) if fuse else model

    x = torch.randn(2, 8, 3, 3, requires_grad=True)
    y = prepared(ChangesLater())(x * 1.0)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|modified inplace"):
        y.sum().backward()
    inner = x * 1.0
    y = prepared(Bottleneck(8, 2, 1))(inner)
    with torch.no_grad():
        inner.add_(1.0)  # by whoever has it too
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|modified inplace"):
        y.sum().backward()
    with torch.no_grad():
        prepared(ChangesLater())(x * 1.0)


def test_the_view_shares_memory_and_version() -> None:
    layer = genesis.torch.ConvBNReLU(8, 8, 1)
    x = torch.randn(2, 8, 3, 3, requires_grad=True) * 1.0
    y, view = conv_bn_relu_and_input(layer.conv, layer.norm, x)
    assert view is not x
    assert view.data_ptr() == x.data_ptr()
    x.detach().mul_(2.0)
    assert view._version == x._version > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="has been modified inplace"):
        view.sum().backward()
    _, view = conv_bn_relu_and_input(layer.conv, layer.norm, x)
    with pytest.raises(RuntimeError, match="modified inplace"):
        view.mul_(2.0)


def test_changes_in_place_before_it() -> None:
    torch.manual_seed(0)
    model = ChangesBefore().double()
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    found = []
    for net in (model, genesis.torch.fuse(copy.deepcopy(model))):
        leaf = x.clone().requires_grad_()
        net(leaf * 1.0).square().sum().backward()
        found.append([leaf.grad, *[p.grad for p in net.parameters()]])
    agree(found[1], found[0], 1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("frozen", ["conv1", "bn1", "conv2", "all", "none, with a constant input"])
def test_frozen_parameters(frozen: str, handed: list[bool]) -> None:
    torch.manual_seed(0)
    model = Bottleneck(8, 2, 1).double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (frozen == "all" or name.startswith(frozen)))
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    nets = model, genesis.torch.fuse(copy.deepcopy(model))
    if frozen == "none, with a constant input":
        for net in nets:
            net(x).square().sum().backward()
        assert not any(handed)
        agree(*([p.grad for p in net.parameters()] for net in nets), 1e-9)  # type: ignore[arg-type]
    else:
        agree(gradients(nets[1], x), gradients(nets[0], x), 1e-9)
        assert handed.count(True) == 1


def test_the_input_itself_where_nothing_is_gained() -> None:
    """Without gradients, and where the convolution takes a copy in another dtype."""
    layer = genesis.torch.ConvBNReLU(8, 8, 1)
    x = torch.randn(2, 8, 3, 3)
    assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is x
    x.requires_grad_()
    with torch.no_grad():
        assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is x
        layer.eval()
        assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is x
    layer.train()
    with torch.autocast("cpu", torch.bfloat16):
        y, same = conv_bn_relu_and_input(layer.conv, layer.norm, x)
        assert (y.dtype, same) == (torch.bfloat16, x) or same is x
    with torch.inference_mode():
        assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is x
    assert conv_bn_relu_and_input(layer.conv, layer.norm, x)[1] is not x
    batchless = torch.randn(8, 3, 3, requires_grad=True)
    layer.eval()
    norm = nn.BatchNorm2d(8, track_running_stats=False)
    with pytest.raises(ValueError, match="expected 4D input"):
        conv_bn_relu_and_input(layer.conv, norm, batchless)
    circular = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    assert conv_bn_relu_and_input(circular, layer.norm, x)[1] is x


@pytest.mark.parametrize("used", ["result", "input", "both"])
def test_a_gradient_of_one_of_the_outputs(used: str) -> None:
    torch.manual_seed(0)
    layer = genesis.torch.ConvBNReLU(8, 8, 1, dtype=torch.float64)
    x = torch.randn(2, 8, 3, 3, dtype=torch.float64)
    found = []
    for way in (conv_bn_relu_and_input, lambda conv, norm, x: (conv_bn_relu(conv, norm, x), x)):
        leaf = x.clone().requires_grad_()
        outputs = dict(zip(("result", "input"), way(layer.conv, layer.norm, leaf), strict=True))
        chosen = list(outputs.values()) if used == "both" else [outputs[used]]
        sum([each.square().sum() for each in chosen]).backward()  # type: ignore[union-attr]
        found.append([leaf.grad, *[p.grad for p in layer.parameters() if p.grad is not None]])
        layer.zero_grad()
    same(*found)
    assert len(found[0]) == (1 if used == "input" else 4)


def test_against_differences() -> None:
    torch.manual_seed(0)
    layer = genesis.torch.ConvBNReLU(2, 3, 3, dtype=torch.float64, activation=None)
    x = torch.randn(2, 2, 4, 4, dtype=torch.float64, requires_grad=True)

    def both(x: Tensor) -> Tensor:
        y, view = conv_bn_relu_and_input(layer.conv, layer.norm, x)
        return y.square().sum() + (y[:, :2] * view).sum()

    torch.autograd.gradcheck(both, (x,))


@pytest.mark.parametrize("block", ["in place, downsampling", "two of them"], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast(block: tuple[nn.Module, int], apart: Any, dtype: torch.dtype) -> None:
    model = block[0].float()
    x = torch.randn(2, 8, 6, 6).to(dtype)
    fused, plain = genesis.torch.fuse(copy.deepcopy(model)), apart(model)
    with torch.autocast("cpu", torch.bfloat16):
        same(gradients(fused, x), gradients(plain, x))


@pytest.mark.parametrize("block", ["in place, downsampling", "two of them"], indirect=True)
def test_gradients_add_up_over_calls(block: tuple[nn.Module, int], apart: Any) -> None:
    model, _ = block
    found = []
    for net in (genesis.torch.fuse(copy.deepcopy(model)), apart(model)):
        torch.manual_seed(1)
        leaf = torch.randn(2, 8, 6, 6, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            y = net(leaf)
            y.square().sum().backward(retain_graph=True)
            y.sum().backward()
        found.append([leaf.grad, *[p.grad for p in net.parameters()], *net.buffers()])
    same(*found)  # type: ignore[arg-type]


@pytest.mark.parametrize("block", ["in place, downsampling", "thrice"], indirect=True)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(block: tuple[nn.Module, int], handed: list[bool], reentrant: bool) -> None:
    model, number = block
    net = genesis.torch.fuse(model)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.net, x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    same(gradients(Checkpointed(), x), gradients(net, x))
    assert handed.count(True) == 2 * number


@pytest.mark.parametrize("block", ["in place, downsampling", "thrice"], indirect=True)
def test_copies_and_pickles(block: tuple[nn.Module, int], handed: list[bool]) -> None:
    model, number = block
    fused = genesis.torch.fuse(model)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    expected = gradients(copy.deepcopy(fused), x)
    same(gradients(pickle.loads(pickle.dumps(fused)), x), expected)
    assert handed.count(True) == 2 * number


@pytest.mark.parametrize("name", ["bottleneck", "bottleneck, downsampling"])
def test_under_a_compiler(name: str) -> None:
    torch.manual_seed(0)
    model = BLOCKS[name][0]().double()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    compiled = torch.compile(copy.deepcopy(fused), backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 8, 6, 6, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch's own, about what it deprecates
        agree(gradients(compiled, x), gradients(fused, x), 1e-12)


def test_a_downsampling_that_looks_at_its_input_gets_the_input(handed: list[bool]) -> None:
    block = BasicBlock(8, 16, 2)
    assert block.downsample is not None
    seen: list[Tensor] = []
    block.downsample.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = torch.randn(2, 8, 4, 4, requires_grad=True) * 1.0
    genesis.torch.fuse(block)(x).sum().backward()
    assert seen[0] is x
    assert handed.count(True) == 1  # its convolution has the view all the same
