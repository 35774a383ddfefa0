"""Results have the order of memory that PyTorch's layers give, for code that views them, draws masks or asks for it."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import genesis.torch
import genesis.torch.dynamo
from tests.torch.chains import agree, pair

CHANNELS_LAST = torch.channels_last


@pytest.fixture(params=["cpu", "simulated"], autouse=True)
def device(request: pytest.FixtureRequest) -> str:
    torch.manual_seed(0)
    if request.param == "simulated":
        request.getfixturevalue("cuda_kernels")
    return str(request.param)


class Net(nn.Module):
    """A residual block and one without activation, each layer's result kept as somebody else would see it."""

    def __init__(self, channels: int = 4, inplace: bool = False) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.c2, self.b2 = nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)
        self.c3, self.b3 = nn.Conv2d(channels, channels, 1), nn.BatchNorm2d(channels)
        self.r = nn.ReLU(inplace)
        self.double()

    def forward(self, x: Tensor) -> Any:
        y = self.r(self.b1(self.c1(x)))
        z = self.r(self.b2(self.c2(y)) + y)
        shortcut = self.b3(self.c3(z))
        return self.r(shortcut + z)


class Looks(Net):
    def forward(self, x: Tensor) -> Any:
        u = self.c1(x)
        v = self.b1(u)
        y = self.r(v)
        z = self.b2(self.c2(y))
        z += y
        z = self.r(z)
        found = [t.stride() for t in (u, v, y, z)] + [t.is_contiguous() for t in (u, v, y, z)]
        assert found == [t.clone().stride() for t in (u, v, y, z)] + [t.clone().is_contiguous() for t in (u, v, y, z)]
        return y, z, u, v, self.r(self.b3(self.c3(y)) + z)


class Drops(Net):
    def forward(self, x: Tensor) -> Any:
        y = self.r(self.b1(self.c1(x)))
        y = F.dropout(y, 0.5) + torch.rand_like(y)
        return F.dropout(self.b2(self.c2(y)), 0.5)


class OtherOrder(Net):
    """Sums of tensors in two orders: the first decides."""

    def forward(self, x: Tensor) -> Any:
        u, v = self.b1(self.c1(x)), self.b3(self.c3(self.r(self.b1(self.c1(x)))))
        order = CHANNELS_LAST if u.is_contiguous() else torch.contiguous_format
        other = torch.ones(u.shape, dtype=u.dtype).contiguous(memory_format=order)
        return self.r(u + other), self.r(other + v), self.r(v.add_(other))


class Kept(Net):
    """What was used by the next convolution is looked at, changed, and differentiated later."""

    def forward(self, x: Tensor) -> Any:
        y = self.r(self.b1(self.c1(x)))
        z = self.r(self.b2(self.c2(y)))
        if y.requires_grad:
            y.retain_grad()
            (grad,) = torch.autograd.grad(z.square().sum() + y.sum(), y, retain_graph=True)
            z = z + grad
        with torch.no_grad():
            first = y.detach().reshape(-1)[:7].sum()
        return self.r(self.b3(self.c3(y)) + y) * z + first


class Twice(Net):
    """Two convolutions take their input, the second as a view that the first hands on."""

    def forward(self, x: Tensor) -> Any:
        first, second = self.c1(x), self.c1(x)
        second, first = self.b1(second), self.b1(first)
        return self.r(first) + self.r(second)


class BothStages(Net):
    """A sum with the first chain's result, and its other summand alone."""

    def forward(self, x: Tensor) -> Any:
        y = self.r(self.b1(self.c1(x)))
        v = self.b2(self.c2(y))
        z = v + y
        return self.r(v), self.r(z), v


KINDS = [BothStages, Twice, Net, Looks, Drops, OtherOrder, Kept]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 4])
def test_strides_are_those_of_the_layers(kind: type[Net], channels: int, device: str) -> None:
    model = kind(channels, inplace=channels == 1)
    sizes = [(3, 5, 4), (3, 1, 1), (1, 5, 4)] if device == "cpu" else [(1, 5, 4)]
    for image_order, weight_order, size in itertools.product((0, 1), (0, 1), sizes):
        if device == "simulated" and weight_order:
            continue
        if size != (3, 5, 4) and device == "cpu" and (image_order + weight_order + (channels == 1)) % 2:
            continue  # each pair of orders once in every size, with one channel or several
        theirs = copy.deepcopy(model)
        theirs = theirs.to(memory_format=CHANNELS_LAST) if weight_order else theirs
        theirs, ours = pair(theirs)
        x = torch.randn(size[0], 3, *size[1:], dtype=torch.float64)
        x = x.contiguous(memory_format=CHANNELS_LAST) if image_order else x
        for training in (True, False):
            theirs.train(training)
            ours.train(training)
            agree(theirs, ours, x.requires_grad_(training), calls=2)
            _same_order(theirs, ours, x)
            for mode in (torch.no_grad, torch.inference_mode)[: 2 if device == "cpu" else 1]:
                with mode():
                    agree(theirs, ours, x, calls=2)
                    _same_order(theirs, ours, x)


def _same_order(theirs: nn.Module, ours: nn.Module, x: Tensor) -> None:
    outputs = []
    for net in (theirs, ours):
        torch.manual_seed(1)
        outputs.append(torch.utils._pytree.tree_leaves(net(x)))
    assert [y.stride() for y in outputs[1]] == [y.stride() for y in outputs[0]]
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("image_order", [None, CHANNELS_LAST])
@pytest.mark.parametrize("weight_order", [None, CHANNELS_LAST])
@pytest.mark.parametrize("training", [True, False])
def test_of_the_layer_too(image_order: Any, weight_order: Any, training: bool) -> None:
    layer = genesis.torch.ConvBNReLU(3, 4, 3, dtype=torch.float64).train(training)
    layer = layer.to(memory_format=weight_order) if weight_order else layer
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    x = x.contiguous(memory_format=image_order) if image_order else x
    plain = nn.Sequential(*copy.deepcopy(layer).children())
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert layer(x).stride() == plain(x).stride()


@pytest.mark.parametrize("order", [torch.contiguous_format, CHANNELS_LAST])
def test_compiled_too(order: Any, device: str) -> None:
    if device == "simulated":
        pytest.skip("fake tensors are on the CPU")
    model = Net().eval().to(memory_format=order)
    options = {"compiler": "eager"}
    compiled = torch.compile(model, backend=genesis.torch.dynamo.genesis, options=options)
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    with torch.no_grad():
        assert compiled(x).stride() == model(x).stride()


@pytest.mark.parametrize("grad", [False, True])
def test_chains_that_follow_each_other_do_not_convert(grad: bool, device: str) -> None:
    """Without gradients only the last result is copied; with them each result once, and no input."""
    ours = genesis.torch.fuse(Net().eval())
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            ours(x)
        with torch.profiler.profile(record_shapes=True) as profile:
            ours(x)
    copied = [event for event in profile.events() if event.name == "aten::clone"]
    features = [event for event in copied if event.input_shapes[0] == [2, 4, 5, 4]]
    assert len(features) == (3 if grad else 1)
