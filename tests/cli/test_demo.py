"""`genesis demo` from the outside: the result, the same again, going on, Ctrl-C, wrong files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import genesis
from genesis import cli, models
from genesis.segmentation import progress
from genesis.segmentation.training import Training

SMALL = ["--steps", "2", "--width", "2"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def demo(*arguments: str) -> int:
    return cli.main(["demo", *SMALL, *arguments])


def loaded(folder: str) -> dict[str, genesis.Tensor]:
    return genesis.load(f"{folder}/checkpoint.safetensors")["model"]


def weights(folder: str) -> dict[str, list]:
    return {key: value.tolist() for key, value in loaded(folder).items()}


def test_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo("--epochs", "3") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert re.fullmatch(
        r"epoch 1/3  loss \d\.\d{4}  held-out mIoU \d\.\d{3}, object IoU \d\.\d{3}  \d+ s left", lines[0]
    )
    assert re.fullmatch(r"after epoch 1: grown: grow_width of 12 layers \([\d,]+ parameters\)", lines[1])
    assert re.fullmatch(r"after epoch 2: grown: grow_depth encoder.2 \([\d,]+ parameters\)", lines[3])
    assert re.fullmatch(r"held out, after the last epoch: mIoU \d\.\d{3}, object IoU \d\.\d{3}", lines[5])
    assert lines[5].split(": ")[1] in lines[4]
    assert lines[6] == "picture: runs/demo/coins.png"
    assert captured.err == ""
    with Image.open("runs/demo/coins.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert min(picture.size) > 400
    assert sorted(path.name for path in Path("runs/demo").iterdir()) == ["checkpoint.safetensors", "coins.png"]


def test_without_growth_the_width_is_there_from_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo("--epochs", "2", "--no-grow") == 0
    assert "grown" not in capsys.readouterr().out
    grown = models.create("unet", in_channels=3, num_classes=2, width=2, depth=3).state_dict()
    assert {key: value.shape for key, value in loaded("runs/demo").items()} == {k: v.shape for k, v in grown.items()}


def test_the_same_seed_gives_the_same_network(capsys: pytest.CaptureFixture[str]) -> None:
    for out in ("a", "b"):
        assert demo("--epochs", "1", "--out", out) == 0
    assert demo("--epochs", "1", "--seed", "1", "--out", "c") == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("held out, after")]
    assert printed[0] == printed[1]
    assert weights("a") == weights("b")
    assert weights("a") != weights("c")


def test_the_same_seed_gives_the_same_network_in_another_process() -> None:
    assert demo("--epochs", "1", "--out", "a") == 0
    command = [sys.executable, "-m", "genesis", "demo", *SMALL, "--epochs", "1", "--out", "b"]
    subprocess.run(command, check=True, capture_output=True)
    assert weights("a") == weights("b")


def test_it_is_a_training() -> None:
    assert demo("--epochs", "2", "--out", "demo") == 0
    options = ["--crop", "96", "--turns", "--lr", "0.01", "--grow"]
    assert cli.main(["train", "coins", *options, *SMALL, "--epochs", "2", "--out", "train"]) == 0
    assert weights("demo") == weights("train")


def test_ctrl_c_and_going_on_gives_what_one_run_gives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert demo("--epochs", "3", "--out", "whole") == 0
    last = capsys.readouterr().out.splitlines()[-2]

    with monkeypatch.context() as patch:
        step, calls = Training._step, []

        def interrupted(self: Training, *args: object) -> float:
            calls.append(1)
            if len(calls) == 6:  # in the middle of the third epoch
                raise KeyboardInterrupt
            return step(self, *args)

        patch.setattr(Training, "_step", interrupted)
        assert demo("--epochs", "3") == 130
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == (
        "interrupted; runs/demo/checkpoint.safetensors has the first 2 of 3 epochs, continue with --resume"
    )
    assert captured.err == ""
    assert not Path("runs/demo/coins.png").exists()

    assert demo("--epochs", "3", "--resume") == 0
    resumed = capsys.readouterr().out.splitlines()
    assert resumed[0].startswith("after epoch 2: grown: grow_depth encoder.2")
    assert resumed[1].startswith("epoch 3/3")
    assert resumed[-2] == last
    assert weights("runs/demo") == weights("whole")


def test_resume_can_add_epochs_and_has_nothing_to_do_when_all_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo("--epochs", "1") == 0
    assert demo("--epochs", "2", "--resume") == 0
    before = weights("runs/demo")
    capsys.readouterr()
    assert demo("--epochs", "2", "--resume") == 0
    nothing, score, picture = capsys.readouterr().out.splitlines()
    assert nothing == "nothing left to do: all 2 epochs are done; continue with a larger --epochs"
    assert (score.split()[0], picture.split()[0]) == ("held", "picture:")
    assert weights("runs/demo") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume", "--out", "nowhere"], "nowhere/checkpoint.safetensors"),
        (["--resume", "--no-grow"], "is of a training with another plan: grow = True"),
        (["--resume", "--seed", "5"], "is of a training with another plan: seed = 0"),
        (["--image", "a.png"], "argument 'mask': expected a file, since --image is given, got none"),
        (["--mask", "a.png"], "argument 'image': expected a file, since --mask is given, got none"),
        (["--image", "none.png", "--mask", "none.png"], "none.png"),
        (
            ["--image", "text.png", "--mask", "text.png"],
            "argument 'image': expected a picture, got text.png: cannot identify",
        ),
        (
            ["--image", "grey.png", "--mask", "text.png"],
            "argument 'mask': expected a picture, got text.png: cannot identify",
        ),
        (["--image", "cut.png", "--mask", "cut.png"], "expected a picture, got cut.png: image file is truncated"),
        (["--image", "grey.png", "--mask", "other.png"], "expected the size of the picture, 180×100, got 90×100"),
        (["--image", "grey.png", "--mask", "black.png"], "expected bright objects on a dark ground, got black.png"),
        (
            ["--image", "grey.png", "--mask", "grey.png", "--max-megapixels", "0.01"],
            "grey.png: more than 0.01 megapixels",
        ),
        (["--device", "tpu"], "device: argument 'type': expected 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--resume" in arguments:
        assert demo("--epochs", "1") == 0
    capsys.readouterr()
    picture(180).save("grey.png")
    picture(90).save("other.png")
    Image.new("L", (180, 100)).save("black.png")
    Path("text.png").write_text("no picture")
    Path("cut.png").write_bytes(Path("grey.png").read_bytes()[:200])
    assert demo("--epochs", "1", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("genesis demo: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_foreign_checkpoint_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/demo").mkdir(parents=True)
    genesis.save({"weight": genesis.ones(1)}, "runs/demo/checkpoint.safetensors")
    assert demo("--resume") == 2
    assert "expected the checkpoint of a training, with model" in capsys.readouterr().err


@pytest.mark.parametrize("width", [180, 90], ids=["larger than a crop", "smaller"])
def test_a_picture_of_the_users(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    picture(width).convert("RGB").save("mine.jpg")
    picture(width).point(lambda value: 255 * (value > 128)).save("mask.png")
    assert demo("--epochs", "1", "--image", "mine.jpg", "--mask", "mask.png") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "picture: runs/demo/mine.png"


def test_bars_in_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(progress, "PlainProgress", None)  # bars are chosen, not the lines
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert demo("--epochs", "1") == 0
    shown = capsys.readouterr().out
    assert "training" in shown
    assert "held-out mIoU" in shown


def picture(width: int) -> Image.Image:
    """A dark ground with a bright disc, 100 pixels high."""
    x, y = np.meshgrid(np.arange(width), np.arange(100))
    disc = (x % 60 - 30) ** 2 + (y - 50) ** 2 < 400
    return Image.fromarray(np.where(disc, 200, 40).astype(np.uint8))
