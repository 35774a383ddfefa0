"""Batch norms without a convolution in compiled graphs: as a dense network and a pre-activation block have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genesis.torch import activations, batch_norms, bridge, dynamo


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "activates", lambda x: True)
    torch._dynamo.reset()


def images(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


def parameters(channels: int, is_affine: bool, tracks: bool) -> list[Tensor | None]:
    """Gamma, beta, running mean and variance."""
    torch.manual_seed(1)
    given = [torch.rand(channels, dtype=torch.float64) + 0.5 for _ in range(4)]
    return [each if is_there else None for each, is_there in zip(given, [is_affine] * 2 + [tracks] * 2, strict=True)]


@pytest.mark.parametrize("activation", [None, "relu", "silu", "hardswish", "leaky_relu(0.1)", "gelu", "tanh"])
@pytest.mark.parametrize(("is_affine", "tracks"), [(True, True), (False, False), (True, False), (False, True)])
def test_the_op(activation: str | None, is_affine: bool, tracks: bool) -> None:
    x = images(3, 5, 4, 6)
    sides: list[list[Tensor]] = []
    for is_ours in (True, False):
        gamma, beta, mean, var = parameters(5, is_affine, tracks)
        leaves = [each.clone().requires_grad_() for each in (x, gamma, beta) if each is not None]
        affine = leaves[1:] if is_affine else [None, None]
        if is_ours:
            y = torch.ops.genesis.batch_norm(leaves[0], *affine, mean, var, 0.2, 1e-3, activation)[0]
        else:
            y = activations.apply(F.batch_norm(leaves[0], mean, var, *affine, True, 0.2, 1e-3), activation)
        y.mul(images(3, 5, 4, 6) + 0.3).sum().backward()
        grads = [leaf.grad for leaf in leaves if leaf.grad is not None]
        assert len(grads) == len(leaves)
        sides.append([y.detach(), *grads, *(each for each in (mean, var) if each is not None)])
    for ours, theirs in zip(*sides, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_compiler_is_told(activation: str | None, dtype: torch.dtype) -> None:
    """Shapes, strides, dtypes, and which arguments change."""
    x = images(2, 3, 4, 5, dtype=dtype).requires_grad_()
    gamma, beta = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    args = (x, gamma, beta, torch.zeros(3), torch.ones(3), 0.1, 1e-5, activation)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(torch.ops.genesis.batch_norm.default, args, test_utils=tests)


def test_gradients_that_nobody_wants() -> None:
    x, gamma = images(2, 3, 4, 5), torch.rand(3, dtype=torch.float64, requires_grad=True)
    y = torch.ops.genesis.batch_norm(x, gamma, None, None, None, 0.1, 1e-5, "relu")[0]
    y.square().sum().backward()
    assert gamma.grad is not None
    assert not x.requires_grad


class Dense(nn.Module):
    """Three layers of a dense block, and a norm of which two things are made."""

    def __init__(self, **norm: Any) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(4 + 3 * i, **norm) for i in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(4 + 3 * i, 3, 3, padding=1, bias=False) for i in range(3))
        self.last = nn.BatchNorm2d(13, **norm)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            parts.append(conv(F.relu(norm(torch.cat(parts, 1)), inplace=True)))
        y = self.last(torch.cat(parts, 1))
        return F.silu(y) + y


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("norm", [{}, {"affine": False}, {"track_running_stats": False}], ids=str)
def test_in_graphs_of_dynamo(norm: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.fx.Graph] = []
    fuse_graph = dynamo.fuse_graph

    def watched(module: torch.fx.GraphModule, *args: str) -> object:
        fusion = fuse_graph(module, *args)
        seen.append(module.graph)
        return fusion

    monkeypatch.setattr(dynamo, "fuse_graph", watched)
    plain, model = (Dense(**norm).double().to(memory_format=torch.channels_last) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    compiled = torch.compile(model, backend=dynamo.genesis, options={"compiler": "aot_eager"})
    x = images(2, 4, 6, 5)
    sides = []
    for net, weights in ((plain, plain), (compiled, model)):
        for step in range(2):
            given = (x + step).requires_grad_()
            y = net(given)
            y.square().sum().backward()
        sides.append([y, given.grad, *(each.grad for each in weights.parameters()), *weights.buffers()])
    for theirs, ours in zip(*sides, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    (graph,) = seen
    calls = [node.args[-1] for node in graph.nodes if node.target is torch.ops.genesis.batch_norm]
    assert calls == ["relu"] * 3  # the last has two users


class Activated(nn.Module):
    def __init__(self, norm: nn.Module, activation: nn.Module | None) -> None:
        super().__init__()
        self.norm, self.activation = norm, nn.Identity() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.norm(x * 2))
        return y


@pytest.mark.usefixtures("as_on_cuda")
@pytest.mark.parametrize(
    ("norm", "activation", "x", "number"),
    [
        (nn.BatchNorm2d(4), nn.ReLU(), images(2, 4, 3, 3), 1),
        (nn.BatchNorm2d(4), nn.ReLU(inplace=True), images(2, 4, 3, 3), 1),
        (nn.BatchNorm2d(4), None, images(2, 4, 3, 3), 0),
        (nn.BatchNorm2d(4, momentum=None), nn.ReLU(), images(2, 4, 3, 3), 0),
        (nn.BatchNorm2d(4).eval(), nn.ReLU(), images(2, 4, 3, 3), 0),
        (nn.BatchNorm2d(4), nn.ReLU(), images(2, 4, 3, 3).contiguous(), 0),
        (nn.BatchNorm2d(4), nn.ReLU(), images(2, 4, 1, 1), 0),
        (nn.BatchNorm1d(4), nn.ReLU(), images(2, 4, 3, 1)[..., 0], 0),
        (nn.BatchNorm2d(4), nn.Softplus(), images(2, 4, 3, 3), 0),
    ],
)
def test_which_are_replaced(norm: nn.Module, activation: nn.Module | None, x: Tensor, number: int) -> None:
    model = Activated(norm.double(), activation)
    found = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        found.append(dynamo.fuse_graph(graph, "aot_eager"))
        return graph

    training = norm.training
    model.train(training)
    torch.compile(model, backend=backend)(x)
    assert sum(len(each.replaced) for each in found) == number


def test_none_on_the_cpu() -> None:
    assert not batch_norms.takes(images(2, 4, 3, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [24, 50, 160])
def test_on_a_gpu(dtype: torch.dtype, channels: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.AvgPool2d(2), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 8, 1, bias=False), nn.AvgPool2d(2)
    )
    model = model.cuda().to(memory_format=torch.channels_last)
    x = images(4, channels, 24, 28, dtype=torch.float32).cuda()
    sides = []
    for how in ("plain", "compiled"):
        torch._dynamo.reset()
        run = torch.compile(model, backend=dynamo.genesis) if how == "compiled" else model
        model.zero_grad()
        model[1].reset_running_stats()
        leaf = x.clone().requires_grad_()
        with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
            y = run(leaf)
        y.float().square().sum().backward()
        sides.append([y.detach(), leaf.grad, *(each.grad for each in model.parameters()), *model[1].buffers()])
    for theirs, ours in zip(*sides, strict=True):
        assert (ours.double() - theirs.double()).norm() <= 2e-2 * theirs.double().norm()
