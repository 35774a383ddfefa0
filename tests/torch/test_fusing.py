"""genesis.torch.fuse on PyTorch models."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import genesis.torch
from genesis.errors import DTypeError
from genesis.torch import bridge, pooling
from tests.models.torch_resnet import BasicBlock, Bottleneck, ResNet


def vgg() -> nn.Module:
    """The first layers of VGG with batch norm."""
    layers: list[nn.Module] = []
    for channels, filters in ((3, 8), (8, 12)):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.BatchNorm2d(filters), nn.ReLU(inplace=True)]
    return nn.Sequential(OrderedDict(features=nn.Sequential(*layers, nn.MaxPool2d(2)), flat=nn.Flatten()))


class Pooled(nn.Sequential):
    """As DeepLab's pooling branch: a Sequential with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        for module in self:
            x = module(x)
        return nn.functional.interpolate(x, size=size, mode="bilinear", align_corners=False)


class Branches(nn.Module):
    """As DeepLab's: parallel branches side by side, one of them dilated, then a projection."""

    def __init__(self) -> None:
        super().__init__()
        one = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        two = nn.Sequential(nn.Conv2d(3, 4, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        pooled = Pooled(nn.AdaptiveAvgPool2d(1), nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.convs = nn.ModuleList([one, two, pooled])
        self.project = nn.Sequential(nn.Conv2d(12, 5, 1, bias=False), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.project(torch.cat([conv(x) for conv in self.convs], dim=1))


class Down(nn.Sequential):
    """As U-Net's: no convolution of its own but pooling."""

    def __init__(self) -> None:
        block = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        super().__init__(nn.MaxPool2d(2), block)


MODELS = {
    "basic": (lambda: ResNet(BasicBlock, (1, 1, 1, 1), 5), 12),
    "bottleneck": (lambda: ResNet(Bottleneck, (1, 1, 1, 1), 5), 17),
    "vgg": (vgg, 2),
    "branches": (Branches, 4),
    "down": (Down, 1),
}
POOLS = {"vgg": ["features.6"], "down": ["0"]}


@pytest.mark.parametrize("name", MODELS)
def test_training_and_inference_are_those_of_the_model(name: str) -> None:
    torch.manual_seed(0)
    make, num_chains = MODELS[name]
    model = make().double()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    assert fused.fusion.replaced == POOLS.get(name, [])
    assert list(fused.state_dict()) == list(model.state_dict())
    for _ in range(2):
        x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
        results = [net(x) for net in (model, fused)]
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)
        for result in results:
            result.square().mean().backward()
    assert len(fused.fusion.fused) == num_chains
    assert fused.fusion.left == []
    for (key, theirs), ours in zip(model.named_parameters(), fused.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9, msg=key)
    for theirs, ours in zip(model.buffers(), fused.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    model.load_state_dict(fused.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(fused.eval()(x), model.eval()(x), rtol=1e-9, atol=1e-9)


def test_classes_copies_and_pickles() -> None:
    """Every layer stays what it is; a copy's attributes are its own."""
    model = genesis.torch.fuse(vgg().eval())
    assert [type(layer) for layer in model.features] == [type(layer) for layer in vgg().features]
    x = torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            torch.testing.assert_close(other(x), model(x))
            assert len(other.fusion.fused) == 2
            conv = other.features[0]
            assert conv.__dict__["forward"].layer() is conv
    before = str(model.fusion)
    assert str(genesis.torch.fuse(model).fusion) == before


def test_a_model_is_freed_at_once() -> None:
    model = genesis.torch.fuse(vgg())
    model(torch.randn(1, 3, 8, 8)).sum().backward()
    conv = weakref.ref(model.features[0])
    gc.disable()
    try:
        del model
        assert conv() is None
    finally:
        gc.enable()


class Stem(nn.Module):
    """As torchvision's ResNet's; and with the pooling as a function, which stays PyTorch's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return nn.functional.max_pool2d(x, kernel_size=3, stride=1, padding=1) + torch.max_pool2d(x, 1, (1, 1))


class OwnPool(nn.MaxPool2d):
    pass


def test_pooling_is_by_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    ops: list[str] = []

    def noted(op: str, first: Tensor, *args: Any) -> Any:
        ops.append(op)
        return bridge.call(op, first, *args)

    monkeypatch.setattr(pooling, "call", noted)
    torch.manual_seed(0)
    model = Stem()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    x = torch.randn(2, 3, 13, 13)
    torch.testing.assert_close(fused(x), model(x))
    assert str(fused.fusion).splitlines() == [
        "1 fused, 1 replaced, 0 left",
        "  conv1 → bn1 → relu",
        "  maxpool: replaced",
    ]
    assert ops == []  # on the CPU, PyTorch's
    monkeypatch.setattr(pooling, "takes", lambda input: True)
    for net in (fused, copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        model.load_state_dict(net.state_dict())
        results = [module(x) for module in (net, model)]
        torch.testing.assert_close(*results)
        for result in results:
            result.square().sum().backward()
        assert ops == ["max_pool2d", "max_pool2d_backward"]
        torch.testing.assert_close(net.conv1.weight.grad, model.conv1.weight.grad, rtol=1e-4, atol=1e-4)
        net.maxpool.stride = 5  # a layer's settings are asked for at each call
        assert net(x).shape == (2, 4, 3, 3)
        ops.clear()
        model.zero_grad()
        net.maxpool.stride = 2


def test_pooling_that_is_left() -> None:
    hooked = nn.MaxPool2d(2)
    hooked.register_forward_hook(lambda module, args, output: None)
    model = genesis.torch.fuse(nn.Sequential(OwnPool(2), hooked, nn.MaxPool2d(2), nn.MaxPool2d(1, return_indices=True)))
    assert model.fusion.replaced == ["1", "2"]
    assert model.fusion.left == [("0", "OwnPool is a subclass of MaxPool2d"), ("3", "it returns indices too")]
    y, indices = model(torch.arange(64.0).reshape(1, 1, 8, 8))
    assert (y.item(), indices.item()) == (63.0, 0)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class DependsOnData(Custom):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)) if x.sum() > 0 else x


class DependsOnMode(Custom):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return y if self.training else torch.relu(y + x)


class ChangesItsInput(Custom):
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return torch.relu(y + x.mul_(2.0))


@pytest.mark.parametrize("kind", [DependsOnData, DependsOnMode, ChangesItsInput])
def test_forwards_with_a_catch(kind: type[Custom]) -> None:
    torch.manual_seed(0)
    model = kind()
    fused = genesis.torch.fuse(copy.deepcopy(model))
    for mode in (True, False):
        model.train(mode)
        fused.train(mode)
        x = torch.randn(2, 3, 4, 4)
        torch.testing.assert_close(fused(x.clone()), model(x.clone()))


def test_layers_that_are_left() -> None:
    hooked = nn.Conv2d(4, 4, 1)
    hooked.register_forward_hook(lambda module, args, output: None)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.SyncBatchNorm(4), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.BatchNorm2d(4), hooked, nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1), nn.Softplus(),
    )  # fmt: skip
    assert genesis.torch.fuse(model).fusion.left == [
        ("0", "SyncBatchNorm is not BatchNorm2d"), ("2", "its padding mode is circular"), ("4", "it has hooks"),
        ("6", "no batch norm or activation follows"),
    ]  # fmt: skip
    custom = genesis.torch.fuse(DependsOnData())
    assert custom.fusion.left == [("conv", "it has not been called yet")]
    for op in (genesis.torch.fuse, genesis.torch.unfuse, genesis.torch.report):
        with pytest.raises(DTypeError, match=rf"{op.__name__}: argument 'model': expected a torch.nn.Module, got int"):
            op(3)


@pytest.mark.parametrize("train", [True, False])
def test_a_wrong_input_is_an_error_of_pytorchs(train: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU()).train(train)
    fused = genesis.torch.fuse(copy.deepcopy(model))
    for x in ("an image", None, torch.ones(2, 4, 5, 5), torch.ones(4, 5), torch.ones(2, 3, 5, 5, dtype=torch.float64)):
        messages = []
        for each in (model, fused):
            with pytest.raises((TypeError, RuntimeError)) as caught:
                each(x)
            messages.append(str(caught.value))
        assert messages[0] == messages[1], x
