"""Fused PyTorch models through PyTorch's exporters: by themselves they give the plain chain, as after unfuse()."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import genesis.torch


class Net(nn.Module):
    """A stem, a block with a sum, pooling and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.c2, self.b2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        x = self.pool(torch.relu(self.b1(self.c1(x))))
        x = torch.relu(self.b2(self.c2(x)) + x)
        return self.head(x.mean((2, 3)))


@pytest.fixture
def plain() -> nn.Module:
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model(torch.randn(4, 3, 8, 8))  # running statistics that are not those of a new network
    return model.eval()


@pytest.fixture(params=["fused", "fused and run", "unfused"])
def ours(request: pytest.FixtureRequest, plain: nn.Module) -> nn.Module:
    model = genesis.torch.fuse(copy.deepcopy(plain))
    if request.param != "fused":
        with torch.no_grad():
            model(images(2))
        assert len(genesis.torch.report(model).fused) == 2
    return genesis.torch.unfuse(model) if request.param == "unfused" else model


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 8, 8)


def exported(model: nn.Module) -> torch.export.ExportedProgram:
    return torch.export.export(model, (images(2),), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},))


def test_torch_export(plain: nn.Module, ours: nn.Module, tmp_path: Path) -> None:
    program = exported(ours)
    nodes = [str(node.target) for node in program.graph.nodes]
    assert nodes == [str(node.target) for node in exported(plain).graph.nodes]
    assert program.state_dict.keys() == plain.state_dict().keys()
    torch.export.save(program, tmp_path / "model.pt2")
    again, x = torch.export.load(tmp_path / "model.pt2").module(), images(5)
    torch.testing.assert_close(again(x), plain(x))


def test_jit_trace(plain: nn.Module, ours: nn.Module, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(ours, images(2))
        kinds = [node.kind() for node in traced.inlined_graph.nodes() if node.kind().startswith("aten::")]
        torch.jit.save(traced, tmp_path / "model.pt")
        again, x = torch.jit.load(tmp_path / "model.pt"), images(5)
    assert kinds.count("aten::batch_norm") == kinds.count("aten::_convolution") == 2
    torch.testing.assert_close(again(x), plain(x))


def by_traces(model: nn.Module, path: Path) -> None:
    pytest.importorskip("onnx", reason="the package onnx, which PyTorch's exporter of traces needs, is not installed")
    sizes = {"x": {0: "batch"}, "y": {0: "batch"}}
    torch.onnx.export(
        model, (images(2),), path, dynamo=False, input_names=["x"], output_names=["y"], dynamic_axes=sizes
    )  # fmt: skip


def by_programs(model: nn.Module, path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the package onnxscript, which torch.onnx.export needs, is not installed")
    batch = torch.export.Dim("batch", min=2, max=64)
    torch.onnx.export(model, (images(2),), path, input_names=["x"], dynamic_shapes=({0: batch},), verbose=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("export", [by_traces, by_programs])
def test_torch_onnx(
    export: Callable[[nn.Module, Path], None], plain: nn.Module, ours: nn.Module, tmp_path: Path
) -> None:
    export(ours, tmp_path / "ours.onnx")
    export(plain, tmp_path / "plain.onnx")
    onnx = pytest.importorskip("onnx")
    graphs = [onnx.load(tmp_path / name).graph for name in ("ours.onnx", "plain.onnx")]
    assert [node.op_type for node in graphs[0].node] == [node.op_type for node in graphs[1].node]
    onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime, of the extra 'export', is not installed")
    x = images(5)
    session = onnxruntime.InferenceSession(tmp_path / "ours.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, plain(x).detach().numpy(), rtol=1e-5, atol=1e-6)
