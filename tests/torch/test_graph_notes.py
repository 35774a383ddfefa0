"""What reports say of float32: linear layers on tensor cores, and convolutions that round less than PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn
from torch._subclasses import FakeTensorMode

import genesis.torch
from genesis.precision import float32_precision
from genesis.torch import bridge, graph_linears
from genesis.torch import dynamo as dynamo  # registers the ops
from genesis.torch.graph_notes import notes


def graph_of(x: Tensor) -> fx.Graph:
    """A convolution of x."""
    graph = fx.Graph()
    image = graph.placeholder("x")
    image.meta["example_value"] = x
    graph.call_function(torch.ops.genesis.conv_act, (image,))
    return graph


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_convolutions_that_round_less(precision: str, rounds: bool) -> None:
    with FakeTensorMode(), torch.backends.cudnn.flags(allow_tf32=rounds), float32_precision(precision):
        images = [torch.empty(2, 3, 4, 4, device=device, dtype=dtype) for device, dtype in (
            ("cuda", torch.float32), ("cuda", torch.bfloat16), ("cpu", torch.float32),
        )]  # fmt: skip
        found = [notes(graph_of(image)) for image in images]
    assert [len(each) for each in found] == [int(rounds and precision == "highest"), 0, 0]
    assert all('genesis.set_float32_precision("high")' in each for each in found[0])


def test_linear_layers_on_tensor_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setattr(bridge, "multiplies", lambda x: True)
    monkeypatch.setattr(graph_linears, "_LEAST_FLOPS", 0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 2))
    genesis.torch.compile(model, compiler="aot_eager")(torch.ones(3, 64))
    assert genesis.torch.report(model).notes == ["2 products of float32 keep all bits on tensor cores"]
