"""`genesis segment` with an ONNX file of `genesis export`: the answer is that of the weights, and what is refused."""

from __future__ import annotations

import builtins
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import genesis
from genesis import cli, export, nn
from genesis.segmentation import metrics, photographs


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("onnx_ir", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package}, of the extra 'export', is not installed")
    monkeypatch.chdir(tmp_path)
    Image.fromarray(np.arange(40 * 50, dtype=np.uint8).reshape(40, 50)).save("image.png")


def run(*arguments: str) -> int:
    return cli.main(list(arguments))


def mask(folder: str, name: str) -> Any:
    with Image.open(f"{folder}/{name}_mask.png") as image:
        return np.asarray(image)


def test_a_grown_unet_of_the_demo_finds_the_same_coins(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("demo", "--epochs", "3", "--steps", "6", "--width", "4", "--lr", "0.02", "--out", "demo") == 0
    weights = "demo/checkpoint.safetensors"
    assert run("export", "unet", "coins.onnx", "--weights", weights, "--size", "64", "--check") == 0
    assert "grown: grow_depth" in capsys.readouterr().out
    held_out = photographs.coins().held_out[0]
    Image.fromarray(np.round(held_out.values[0] * 255).astype(np.uint8)).save("coins.png")
    scores = []
    for folder, arguments in (("plain", ["--weights", weights]), ("onnx", ["--model", "coins.onnx"])):
        assert run("segment", "coins.png", *arguments, "--out", folder) == 0
        scores.append(metrics.scores(metrics.confusion(mask(folder, "coins"), held_out.labels, 2)))
        said = json.loads(Path(folder, "coins.json").read_text(encoding="utf-8"))
        assert {entry["name"] for entry in said["classes"]} == {"background", "coin"}
    assert scores[0].iou[1] > 0
    assert [f"{iou:.4f}" for iou in scores[0].iou] == [f"{iou:.4f}" for iou in scores[1].iou]


class Logits(nn.Module):
    """Logits that are the picture, and its negative."""

    def forward(self, x: genesis.Tensor) -> genesis.Tensor:
        return genesis.cat([x[:, :1], -x[:, :1]], 1)


RIGHT: dict[str, object] = {"classes": ["dark", "bright"], "mean": [0.5], "std": [0.5]}


def written(
    path: str, metadata: dict[str, object], shape: tuple[int, ...] = (1, 1, 32, 32), fixed: bool = False
) -> str:
    dynamic = None if fixed else {0: "batch", 2: "height", 3: "width"}
    export.onnx(Logits(), genesis.randn(*shape), path, dynamic, metadata=metadata, check=False)
    return path


def test_normalization_tiles_and_names(capsys: pytest.CaptureFixture[str]) -> None:
    Path("names.txt").write_text("high\nlow\n", encoding="utf-8")
    file = written("model.ONNX", RIGHT)
    tiles = ["--tile", "32", "--overlap", "0", "--classes", "names.txt"]
    assert run("segment", "image.png", "--model", file, *tiles) == 0
    with Image.open("image.png") as image:
        assert np.array_equal(mask("runs/segment", "image"), np.asarray(image) < 128)
    said = json.loads(Path("runs/segment/image.json").read_text(encoding="utf-8"))
    assert {entry["name"] for entry in said["classes"]} == {"high", "low"}


@pytest.mark.parametrize(
    ("metadata", "options", "said"),
    [
        ({}, {}, "model.onnx: its metadata: expected the names of the classes as \"classes\", .* got 'nothing'"),
        (RIGHT | {"classes": ["one"]}, {}, "expected the names of the classes"),
        (RIGHT | {"classes": ["a", "b", "c"]}, {}, "expected the names of 2 classes"),
        (RIGHT | {"mean": [0.5, 0.5]}, {}, r"expected a mean per channel, got \[0.5, 0.5\]"),
        (RIGHT | {"std": [0]}, {}, r"expected a std per channel, got \[0\]"),
        (RIGHT | {"std": [float("inf")]}, {}, "expected a std per channel"),
        ({"classes": ["a", "b"], "mean": [0.5]}, {}, "expected mean and std, or neither"),
        (RIGHT | {"resize": -1}, {}, "expected a resize from 0 to 16384, got -1"),
        (RIGHT | {"multiples": {"height": 2**40}}, {}, "expected multiples from 1 to 1024"),
        (RIGHT | {"multiples": {"height": 0}}, {}, "expected multiples from 1 to 1024"),
        (RIGHT, {"fixed": True}, "expected height and width that vary, .* export it without --fixed"),
        (RIGHT, {"shape": (1, 4, 32, 32)}, "expected an input of 1 or 3 channels, got 4"),
    ],
)
def test_what_the_file_lacks_is_said(
    metadata: dict[str, object], options: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    written("model.onnx", metadata, **options)
    assert run("segment", "image.png", "--model", "model.onnx") == 2
    captured = capsys.readouterr().err
    assert captured.count("\n") == 1
    assert captured.startswith("genesis segment: model.onnx: ")
    assert re.search(said, captured), captured
    assert not Path("runs").exists()


def test_damaged_and_missing_files(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.onnx").write_bytes(b"\x08\x08\x12no model")
    for name, said in (("broken.onnx", "ONNX Runtime cannot load it"), ("none.onnx", "No such file or directory")):
        assert run("segment", "image.png", "--model", name) == 2
        captured = capsys.readouterr().err
        assert captured.startswith(f"genesis segment: {name}: {said}")
        assert captured.count("\n") == 1


def test_arguments_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    written("model.onnx", RIGHT)
    Path("three.txt").write_text("a\nb\nc\n", encoding="utf-8")
    for arguments, said in (
        ([], "argument 'weights': expected a file, or an ONNX file as --model"),
        (["--model", "model.onnx", "--weights", "w.safetensors"], "argument 'weights': expected nothing"),
        (["--model", "model.onnx", "--precision", "bfloat16"], "argument 'precision': expected float32"),
        (["--model", "model.onnx", "--classes", "three.txt"], "argument 'classes': expected 2 names, got 3"),
        (["--model", "model.onnx", "--device", "tpu"], "argument 'device': expected one that it has: cpu"),
    ):
        assert run("segment", "image.png", *arguments) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("segment", "image.png", "--model", "unett")
    assert "expected one of deeplabv3_resnet50, fcn_resnet50, unet, or a file" in capsys.readouterr().err


def test_without_onnx_runtime(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written("model.onnx", RIGHT)
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("onnxruntime"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return imported(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    assert run("segment", "image.png", "--model", "model.onnx") == 2
    assert "needs the package 'onnxruntime'; install Genesis with its extra: " in capsys.readouterr().err
