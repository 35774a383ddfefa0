"""`genesis segment` from the outside: masks, overlays and reports of real photographs; broken files beside them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

import genesis
from benchmarks import torch_segmentation
from genesis import cli, models
from genesis.cli.segment import find
from genesis.segmentation import progress
from tests.narrow import narrow


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def deeplab(tmp_path: Path) -> Iterator[Path]:
    """A file of random weights with torchvision's keys, as torch.save writes it; the network is narrow in the test."""
    torch.manual_seed(0)
    path = tmp_path / "deeplab.pth"
    with narrow():
        torch.save(torch_segmentation.deeplabv3_resnet50(num_classes=21, aux_loss=True).state_dict(), path)
        yield path


def unet(path: str = "unet.safetensors", **arguments: Any) -> str:
    genesis.manual_seed(0)
    genesis.save(models.unet(width=2, **arguments), path)
    return path


def segment(*arguments: str) -> int:
    return cli.main(["segment", *arguments])


def results(name: str, folder: str = "runs/segment") -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """The report, the mask and the overlay of a picture, the pictures checked to be whole PNG files."""
    opened = []
    for kind in ("mask", "overlay"):
        with Image.open(f"{folder}/{name}_{kind}.png") as image:
            assert image.format == "PNG"
            opened.append(np.asarray(image))
    return json.loads(Path(folder, f"{name}.json").read_text(encoding="utf-8")), *opened


def test_photographs_with_deeplab(deeplab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Image.fromarray(data.astronaut()[:300, :400]).save("astronaut.png")
    Image.fromarray(data.chelsea()).save("chelsea.jpg")
    arguments = ["--model", "deeplabv3_resnet50", "--weights", str(deeplab), "--resize", "96"]
    assert segment("astronaut.png", "chelsea.jpg", *arguments) == 0
    for name, shape in (("astronaut", (300, 400)), ("chelsea", (300, 451))):
        said, mask, overlay = results(name)
        assert mask.shape == shape
        assert overlay.shape[0] > shape[0], "there is a legend"
        assert overlay.shape[1:] == (shape[1], 3)
        assert (said["height"], said["width"]) == shape
        counts = np.bincount(mask.ravel())
        assert {entry["class"]: entry["pixels"] for entry in said["classes"]} == {
            index: counts[index] if index < len(counts) else 0 for index in range(21)
        }, "those that do not occur too"
        assert sum(entry["share"] for entry in said["classes"]) == pytest.approx(1)
        assert all(entry["name"] in ("background", f"class {entry['class']}") for entry in said["classes"])
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith("2 of 2 pictures in ")
    assert captured.out.endswith("megapixels/s); results in runs/segment\n")


def test_the_answer_is_pytorchs(deeplab: Path) -> None:
    """The whole way from the file, against the same way written with PyTorch."""
    Image.fromarray(data.chelsea()).save("chelsea.png")
    assert segment("chelsea.png", "--model", "deeplabv3_resnet50", "--weights", str(deeplab), "--resize", "64") == 0
    model = torch_segmentation.deeplabv3_resnet50(num_classes=21, aux_loss=True).eval()
    model.load_state_dict(torch.load(deeplab, weights_only=True))
    small = Image.fromarray(data.chelsea()).resize((int(64 * 451 / 300), 64), Image.Resampling.BILINEAR)
    values = torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)[None] / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        logits = model((values - mean.view(3, 1, 1)) / std.view(3, 1, 1))["out"]
    large = torch.nn.functional.interpolate(logits, size=(300, 451), mode="bilinear", align_corners=False)
    assert (results("chelsea")[1] == large[0].argmax(0).numpy()).mean() > 0.999


def test_the_network_of_the_demo_finds_coins(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--epochs", "4", "--steps", "8", "--width", "8"]) == 0
    Image.fromarray(data.coins()).save("coins.png")
    weights = "runs/demo/checkpoint.safetensors"
    Path("names.txt").write_text("table\n\ncoin\n")
    assert "growth" in genesis.load(weights), "it grew while it was trained"
    assert segment("coins.png", "--weights", weights, "--classes", "names.txt") == 0
    said, mask, _ = results("coins")
    assert mask.shape == (303, 384)
    assert {entry["name"] for entry in said["classes"]} == {"table", "coin"}
    bright = data.coins() > 130
    assert (mask[bright] == 1).mean() > (mask[~bright] == 1).mean()


def test_broken_files_are_reported_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("pictures")
    folder.mkdir()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 30, 3), dtype=np.uint8))
    noise.save(folder / "fine.png")
    noise.convert("CMYK").save(folder / "print.jpg")
    noise.crop((0, 0, 1, 1)).save(folder / "dot.png")
    Image.fromarray(np.full((9, 5), 300, np.uint16)).save(folder / "deep.png")
    noise.save(folder / "moving.gif", save_all=True, append_images=[noise.rotate(90)])
    (folder / "empty.png").touch()
    (folder / "cut.jpg").write_bytes((folder / "print.jpg").read_bytes()[:400])
    (folder / "notes.txt").write_text("not asked for")
    assert segment("pictures", "missing.png", "--model", "unet", "--weights", unet(in_channels=3)) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("5 of 8 pictures in ")
    lines = captured.err.splitlines()
    assert len(lines) == 4
    assert "cut.jpg" in lines[0]
    assert lines[1].endswith("expected a picture, got pictures/empty.png: an empty file")
    assert lines[2] == "genesis segment: pictures/moving.gif: the first of 2 pictures in the file"
    assert "missing.png" in lines[3]
    for name, shape in (
        ("fine", (40, 30)),
        ("print", (40, 30)),
        ("dot", (1, 1)),
        ("deep", (9, 5)),
        ("moving", (40, 30)),
    ):
        said, mask, _ = results(name)
        assert mask.shape == shape
        assert said.get("note") == ("the first of 2 pictures in the file" if name == "moving" else None)
    assert not Path("runs/segment/cut.json").exists()
    assert not list(Path("runs/segment").glob(".*"))


def test_tiles_change_nothing_for_a_network_that_sees_less_than_their_overlap() -> None:
    Image.fromarray(data.coins()).save("coins.png")
    weights = unet()
    for tile in ("0", "160"):
        assert segment("coins.png", "--model", "unet", "--weights", weights, "--tile", tile, "--out", tile) == 0
    np.testing.assert_array_equal(results("coins", "0")[1], results("coins", "160")[1])


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_finds_nearly_the_same(precision: str) -> None:
    Image.fromarray(data.coins()[:64, :64]).save("coins.png")
    weights = unet()
    for chosen in ("float32", precision):
        assert (
            segment("coins.png", "--model", "unet", "--weights", weights, "--precision", chosen, "--out", chosen) == 0
        )
    assert (results("coins", "float32")[1] == results("coins", precision)[1]).mean() > 0.9


UNET = ["--weights", "unet.safetensors", "--model", "unet"]


@pytest.mark.parametrize(("arguments", "said"), [
    (["--weights", "none.safetensors", "--model", "unet"], "none.safetensors"),
    (["--weights", "unet.safetensors"], "'model': expected one of deeplabv3_resnet50, fcn_resnet50, unet, since"),
    (["--weights", "unet.safetensors", "--model", "fcn_resnet50"], "the weights of fcn_resnet50, which have the key"),
    ([*UNET, "--classes", "three.txt"], "expected 2 names, got 3"),
    ([*UNET, "--classes", "a.png"], "expected a text file in UTF-8, got a.png"),
    ([*UNET, "--device", "tpu"], "expected 'cpu', 'cuda' or 'cuda:N'"),
    ([*UNET, "--tile", "100"], "expected a positive multiple of 32"),
    (["empty", *UNET], "expected a folder with pictures"),
    (["b*.png", *UNET], "expected a pattern that matches files, got b*.png"),
])  # fmt: skip
def test_what_is_wrong_is_said_in_a_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    unet()
    Image.new("RGB", (8, 8), "orange").save("a.png")
    Path("three.txt").write_text("a\nb\nc\n")
    Path("empty").mkdir()
    assert segment("a.png", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("runs").exists()


def test_files_folders_and_patterns() -> None:
    for name in ("b.png", "a.jpg", "a.txt", "deep/c.PNG"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    assert find(["."]) == [Path("a.jpg"), Path("b.png")]
    assert find(["*.png", "b.png", "a.txt"]) == [Path("b.png"), Path("a.txt")]
    assert find(["**/*.PNG"]) == [Path("deep/c.PNG")]
    Path("odd[1].png").touch()
    assert find(["odd[1].png"]) == [Path("odd[1].png")]


def test_a_bar_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress.Counter, "advance", None)  # the bar is chosen, not the silence
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    names = ["[/red].png", os.fsdecode(b"caf\xe9")]  # what rich would take for markup, what is no UTF-8
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        with open(name, "wb") as file:
            Image.new("L", (8, 8)).save(file, format="PNG")
    assert segment(*names, "--model", "unet", "--weights", unet()) == 0
    shown = capsys.readouterr().out
    assert "pictures" in shown
    assert "2/2" in shown
