"""Compiled models that are not in channels-last: fused ops pass on their results as they lie."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from genesis.torch import bridge, dynamo, pooling, shapes
from tests.torch.image_ops import in_order, two_steps

Forward = Callable[[Any, Tensor], Any]


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where operands are copied into channels-last in the graph, and poolings and activations alone are fused too."""
    torch._dynamo.reset()
    monkeypatch.setattr(shapes, "_are_copied", lambda x: True)
    monkeypatch.setattr(pooling, "has_kernels", lambda input: True)
    monkeypatch.setattr(bridge, "activates", lambda x: True)


class Layers(nn.Module):
    """Convolutions with norms, and whatever forward a test gives them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))
        self._forward = forward
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self._forward(self, x)

    def chain(self, index: int, x: Tensor, residual: Tensor | None = None) -> Tensor:
        x = self.norms[index](self.convs[index](x))
        return F.relu(x if residual is None else x + residual)


def one_after_another(m: Layers, x: Tensor) -> Tensor:
    return m.chain(2, m.chain(1, m.chain(0, x)))


def with_a_sum(m: Layers, x: Tensor) -> Tensor:
    x = m.chain(0, x)
    return m.chain(2, m.chain(1, x), x)


def with_a_pooling(m: Layers, x: Tensor) -> Tensor:
    return m.chain(1, F.max_pool2d(m.chain(0, x), 3, 2, 1))


def of_activations_only(m: Layers, x: Tensor) -> Tensor:
    return F.silu(m.convs[1](F.silu(m.convs[0](x))))


def read_by_others(m: Layers, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first = m.chain(0, x)
    joined = torch.cat([first[:, 1:3], m.chain(1, first)[:, :2]], 1)
    return m.chain(2, joined), first.reshape(-1), joined


def shuffled(m: Layers, x: Tensor) -> Tensor:
    first = m.chain(0, x)
    return m.chain(1, first.view(-1, 2, 2, *first.shape[2:]).transpose(1, 2).reshape(first.shape))


def changed_afterwards(m: Layers, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m.norms[0](m.convs[0](x))
    with torch.no_grad():
        y.mul_(2)
    return m.chain(1, y), y


def changed_through_a_view(m: Layers, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m.norms[0](m.convs[0](x))
    with torch.no_grad():
        y[:, 0].clamp_(max=0.5)
    return m.chain(1, y), y


# The copies into PyTorch's order that stay.
FORWARDS: dict[Forward, int] = {
    one_after_another: 1, with_a_sum: 1, with_a_pooling: 1, of_activations_only: 1, read_by_others: 3, shuffled: 2,
    changed_afterwards: 2, changed_through_a_view: 2,
}  # fmt: skip


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_a_step_is_what_it_was(forward: Forward, layout: str) -> None:
    plain = Layers(forward)
    if layout == "channels_last":
        plain = plain.to(memory_format=torch.channels_last)
    ours: Any = torch.compile(copy.deepcopy(plain), backend=dynamo.genesis, options={"compiler": "aot_eager"})
    x = in_order(torch.randn(2, 4, 6, 5, dtype=torch.float64), layout)
    for expected, found in two_steps(plain, ours, x):
        for name, value in expected.items():
            assert found[name].stride() == value.stride(), name


@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_only_what_others_read_is_copied(forward: Forward) -> None:
    graphs: list[fx.GraphModule] = []

    def fused(graph: fx.GraphModule, _: Any) -> Any:
        dynamo.fuse_graph(graph, "aot_eager")
        graphs.append(graph)
        return graph

    torch.compile(Layers(forward), backend=fused)(torch.randn(2, 4, 6, 5, dtype=torch.float64))
    (graph,) = graphs
    copies = [node for node in graph.graph.nodes if node.op == "call_method" and node.target == "contiguous"]
    assert len(copies) == FORWARDS[forward]
