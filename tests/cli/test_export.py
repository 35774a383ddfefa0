"""`genesis export`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import genesis
from genesis import cli, models
from genesis.segmentation.recipe import Recipe

ARGUMENTS = {"in_channels": 1, "num_classes": 2, "width": 4, "depth": 2}


@pytest.fixture(autouse=True, scope="module")
def _needs_the_extra_export() -> None:
    for package in ("onnx_ir", "onnxruntime"):
        pytest.importorskip(package, reason=f"{package}, of the extra 'export', is not installed")


def test_a_segmentation_network_with_its_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import onnx_ir as ir

    weights, out = tmp_path / "best.safetensors", tmp_path / "coins.onnx"
    recipe = Recipe("unet", dict(ARGUMENTS), ("background", "coin"), (0.5,), (0.25,))
    genesis.save({"model": models.create("unet", **ARGUMENTS).state_dict(), "recipe": recipe.as_dict()}, weights)
    assert cli.main(["export", "unet", str(out), "--weights", str(weights), "--size", "16", "--check"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{out}: input → output\nheight: multiples of 2\nwidth: multiples of 2\nONNX Runtime agrees")
    said = ir.load(out).metadata_props
    assert json.loads(said["classes"]) == ["background", "coin"]
    assert (json.loads(said["mean"]), json.loads(said["std"]), said["model"]) == ([0.5], [0.25], "unet")


def test_a_fixed_size_with_norms_kept(tmp_path: Path) -> None:
    import onnx_ir as ir

    out = tmp_path / "resnet.onnx"
    assert cli.main(["export", "resnet18", str(out), "--size", "32", "40", "--fixed", "--keep-batch-norm"]) == 0
    model = ir.load(out)
    assert list(model.graph.inputs[0].shape) == [1, 3, 32, 40]
    assert "BatchNormalization" in [node.op_type for node in model.graph]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["resnet81"], "models.create: argument 'name'"),
        (["unet", "--size", "1", "2", "3"], "argument 'size': expected height and width"),
        (["unet", "--opset", "9"], "argument 'opset'"),
        (["unet", "--classes", "names.txt"], "argument 'classes': expected nothing without weights"),
        (["unet", "--weights", "none.safetensors"], "none.safetensors: No such file"),
    ],
)
def test_errors(arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, *options = arguments
    out = tmp_path / "m.onnx"
    assert cli.main(["export", name, str(out), *options]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()
