"""Compiled convolutions that no norm follows: with a ReLU and a sum, or alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from genesis.precision import float32_precision
from genesis.settings import override
from genesis.torch import bridge, dynamo, norms
from tests.torch.image_ops import in_order, two_steps

Forward = Callable[[Any, Tensor], Tensor]
_OPS = {
    torch.ops.genesis.batch_norm, torch.ops.genesis.conv_act, torch.ops.genesis.conv_bn_relu,
    torch.ops.genesis.group_norm,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(bridge, "activates", lambda x: True)
    monkeypatch.setattr(bridge, "trains", lambda x: True)
    monkeypatch.setattr(bridge, "convolves", lambda x, *how: True)
    monkeypatch.setattr(norms, "has_kernels", lambda x: True)


class Layers(nn.Module):
    """Dense, depthwise and strided convolutions, one without a bias, and whatever forward a test gives them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.Conv2d(4, 4, 3, padding="same")
        self.depthwise = nn.Conv2d(4, 4, 5, padding=2, groups=4)
        self.bare = nn.Conv2d(4, 4, 1, bias=False)
        self.strided = nn.Conv2d(4, 6, 2, 2)
        self.norm = nn.BatchNorm2d(4)
        self._forward = forward
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def before_a_layer_norm(m: Layers, x: Tensor) -> Tensor:
    y = F.layer_norm(m.depthwise(x).permute(0, 2, 3, 1), (4,))
    return m.strided(x + y.permute(0, 3, 1, 2))


def after_an_activation(m: Layers, x: Tensor) -> Tensor:
    return torch.cat([m.bare(F.relu(m.norm(x))), m.dense(F.relu(x))], 1)


def before_a_silu(m: Layers, x: Tensor) -> Tensor:
    return F.silu(m.depthwise(F.silu(m.dense(x))))


def before_a_relu(m: Layers, x: Tensor) -> Tensor:
    return F.relu(m.bare(F.relu(m.dense(x))) + x)


def before_a_sum(m: Layers, x: Tensor) -> Tensor:
    return F.gelu(m.dense(x) + x)


def with_a_frozen_bias(m: Layers, x: Tensor) -> Tensor:
    assert m.dense.bias is not None
    m.dense.bias.requires_grad_(False)
    return m.dense(x) * 2


def read_twice(m: Layers, x: Tensor) -> Tensor:
    y = m.dense(x)
    return F.relu(y) + y


def around_a_group_norm(m: Layers, x: Tensor) -> Tensor:
    return m.strided(F.silu(F.group_norm(m.bare(x), 2)))


def one_pixel(m: Layers, x: Tensor) -> Tensor:
    return x * torch.sigmoid(m.bare(x.mean((2, 3), keepdim=True)))


def normalized(m: Layers, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    return activation(m.norm(m.dense(x)))


def normalized_sum(m: Layers, x: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
    return activation(m.norm(m.dense(x)) + x)


# Chains that are fused, and what is replaced by itself, where Inductor compiles the rest.
FORWARDS: dict[Forward, tuple[int, int]] = {
    before_a_layer_norm: (0, 2), before_a_silu: (0, 2), before_a_relu: (2, 0),
    before_a_sum: (1, 0), with_a_frozen_bias: (1, 0), read_twice: (0, 1), one_pixel: (0, 1),
    after_an_activation: (0, 3), around_a_group_norm: (0, 3),  # with the norm
}  # fmt: skip


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_a_step_agrees_with_the_plain_models(forward: Forward, order: torch.memory_format) -> None:
    plain = Layers(forward).to(memory_format=order)

    def backend(graph: fx.GraphModule, inputs: Any) -> Any:
        dynamo.fuse_graph(graph)  # as for Inductor
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)

    ours: Any = torch.compile(copy.deepcopy(plain), backend=backend)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64).to(memory_format=order)
    assert len(list(two_steps(plain, ours, x))) == 2


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_what_runs_alone_is_told(forward: Forward) -> None:
    fusion, graph = _fused(Layers(forward).to(memory_format=torch.channels_last), "inductor")
    assert (len(fusion.fused), len(fusion.replaced)) == FORWARDS[forward]
    assert not fusion.left
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    assert torch.conv2d not in calls
    assert sum(target in _OPS for target in calls) == sum(FORWARDS[forward])


def test_images_are_not_reordered_for_a_convolution_alone() -> None:
    fusion, graph = _fused(Layers(before_a_layer_norm), "inductor", "contiguous")
    assert (len(fusion.replaced), len(fusion.left)) == (0, 2)
    assert _num_calls(graph, torch.conv2d) == 2


@pytest.mark.parametrize("order", ["channels_last", "contiguous"])
def test_activations_stay_with_convolutions_where_nothing_is_generated(order: str) -> None:
    memory_format = torch.channels_last if order == "channels_last" else torch.contiguous_format
    fusion, graph = _fused(Layers(before_a_silu).to(memory_format=memory_format), "aot_eager", order)
    assert (len(fusion.fused), len(fusion.replaced), fusion.left) == (2, 0, [])
    assert _num_calls(graph, F.silu) == 0


def test_activations_are_left_by_convolutions_that_cannot_run_alone() -> None:
    fusion, graph = _fused(Layers(before_a_silu), "inductor", "contiguous")
    assert (len(fusion.fused), len(fusion.replaced), fusion.left) == (2, 0, [])
    assert _num_calls(graph, F.silu) == 2


@pytest.mark.parametrize("forward", [normalized, normalized_sum], ids=lambda forward: forward.__name__)
@pytest.mark.parametrize(
    ("compiler", "activation", "trains", "num_left"),
    [
        ("inductor", F.silu, False, 1), ("inductor", F.silu, True, 0), ("aot_eager", F.silu, False, 0),
        ("inductor", F.relu, False, 0),
    ],
)  # fmt: skip
def test_activations_behind_folded_norms(
    forward: Callable[..., Tensor], compiler: str, activation: Any, trains: bool, num_left: int
) -> None:
    """Only a ReLU is a part of a convolution's kernel; in training the norm takes a pass, which activates too."""
    model = Layers(lambda m, x: forward(m, x, activation)).to(memory_format=torch.channels_last).train(trains)
    with torch.set_grad_enabled(trains):
        fusion, graph = _fused(model, compiler)
    assert (len(fusion.fused), fusion.left) == (1, [])
    assert _num_calls(graph, activation) == num_left
    assert _num_calls(graph, torch.conv2d) == _num_calls(graph, F.batch_norm) == 0


def test_on_the_cpu_they_stay_with_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(bridge, "activates", lambda x: True)
    fusion, _ = _fused(Layers(after_an_activation).to(memory_format=torch.channels_last), "inductor")
    assert len(fusion.left) == 2


@pytest.mark.parametrize("switch", ["algorithms", "cudnn", None])
def test_convolutions_stay_with_pytorch_that_is_to_be_deterministic(
    switch: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    if switch == "algorithms":
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    if switch == "cudnn":
        monkeypatch.setattr(type(torch.backends.cudnn), "deterministic", True)
    image: Any = SimpleNamespace(is_cuda=True)
    weight = torch.ones(4, 1, 3, 3)
    for dtype in (torch.bfloat16, torch.float32):
        assert bridge.convolves(image, weight, dtype, 4) is (switch is None)
        with override(deterministic=True):
            assert bridge.convolves(image, weight, dtype, 4)
        assert not bridge.convolves(weight, weight, dtype, 4)


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_float32_stays_with_pytorch_unless_neither_rounds(
    precision: str, rounds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    image: Any = SimpleNamespace(is_cuda=True)
    dense, depthwise = torch.ones(4, 4, 3, 3), torch.ones(4, 1, 3, 3)
    with torch.backends.cudnn.flags(allow_tf32=rounds), float32_precision(precision):
        assert bridge.convolves(image, dense, torch.float32, 1) is (precision == "highest" and not rounds)
        assert bridge.convolves(image, depthwise, torch.float32, 4)
        assert bridge.convolves(image, dense, torch.float16, 1)
        assert not bridge.convolves(image, depthwise, torch.float64, 4)


def _num_calls(graph: fx.GraphModule, function: object) -> int:
    return sum(node.target is function for node in graph.graph.nodes)


def _fused(model: nn.Module, compiler: str, layout: str = "channels_last") -> tuple[Any, fx.GraphModule]:
    found: list[tuple[Any, fx.GraphModule]] = []

    def backend(graph: fx.GraphModule, _: Any) -> Any:
        found.append((dynamo.fuse_graph(graph, compiler), graph))
        return graph

    torch.compile(model, backend=backend)(in_order(torch.randn(2, 4, 6, 6, dtype=torch.float64), layout))
    (one,) = found
    return one
