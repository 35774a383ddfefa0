"""The script for TensorRT: what it says where something is missing, and the shapes that it asks for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import genesis
from examples import tensorrt_engine
from genesis import export, nn


def test_what_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert tensorrt_engine.main([str(tmp_path / "m.onnx")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for package in ("tensorrt", "torch", "onnxruntime"):
        assert f"needs the package '{package}': pip install" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("cuda", "said"), [(None, "needs PyTorch built for CUDA"), ("13.0", "needs an NVIDIA GPU")])
def test_a_missing_gpu_is_named(cuda: str | None, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert said in tensorrt_engine.missing()[-1]


def test_a_missing_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tensorrt_engine, "missing", list)
    assert tensorrt_engine.main([str(tmp_path / "m.onnx")]) == 2
    assert "m.onnx: no such file" in capsys.readouterr().err


def test_shapes(tmp_path: Path) -> None:
    for package in ("onnx_ir", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package}, of the extra 'export', is not installed")

    class Halves(nn.Module):
        def forward(self, x: genesis.Tensor) -> genesis.Tensor:
            return x.reshape(x.shape[0], 3, x.shape[2] // 4, 4, x.shape[3])

    path, x = tmp_path / "m.onnx", genesis.randn(1, 3, 8, 8)
    export.onnx(Halves(), x, path, {0: "batch", 2: "height"}, check=False)
    assert tensorrt_engine.input_shapes(path, [1, 4, 8], [30, 50]) == [(1, 3, 32, 8), (4, 3, 32, 8), (8, 3, 32, 8)]
    export.onnx(Halves(), x, path, check=False)
    assert tensorrt_engine.input_shapes(path, [1, 4], [30, 50]) == [(1, 3, 8, 8)]
