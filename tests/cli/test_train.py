"""`genesis train` from the outside: what it writes, going on after kill -9 at any moment, what is wrong with a call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import genesis
from genesis import cli, models
from genesis.segmentation import events, memory, progress
from tests import forkserver
from tests.narrow import narrow
from tests.segmentation.test_training import read_events

TINY = ["--width", "2", "--depth", "2", "--crop", "16", "--batch-size", "2", "--steps", "3"]
NUM_KILLS = 20


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pictures() -> None:
    """A folder "data" of dark pictures with a bright square, and their masks."""
    for kind in ("images", "masks"):
        Path("data", kind).mkdir(parents=True)
    for number in range(4):
        values = np.random.default_rng(number).integers(0, 60, (24, 24, 3), dtype=np.uint8)
        mask = np.zeros((24, 24), np.uint8)
        mask[2 * number : 2 * number + 9, 5:15] = 1
        values[mask == 1] += 150
        Image.fromarray(values).save(f"data/images/{number}.png")
        Image.fromarray(mask).save(f"data/masks/{number}.png")


def train(*arguments: str) -> int:
    return cli.main(["train", "data", *TINY, *arguments])


def result(folder: str, name: str = "checkpoint") -> dict[str, Any]:
    return genesis.load(f"{folder}/{name}.safetensors")


def values(state: Any) -> Any:
    """A state with lists in place of tensors, to be compared; without where the events end."""
    if isinstance(state, dict):
        return {key: values(item) for key, item in state.items() if key != "events"}
    if isinstance(state, genesis.Tensor):
        return state.tolist()
    return [values(item) for item in state] if isinstance(state, list | tuple) else state


@pytest.mark.usefixtures("pictures")
def test_what_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    Path("names.txt").write_text("dark\nbright\n")
    assert train("--epochs", "3", "--lr", "0.03", "--classes", "names.txt") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["1/3", "2/3", "3/3"]
    assert lines[4] == "its network: runs/train/best.safetensors; curves: runs/train/curves.png"
    assert captured.err == ""
    names = ["best.safetensors", "checkpoint.safetensors", "curves.png", events.NAME]
    assert sorted(path.name for path in Path("runs/train").iterdir()) == names

    history = result("runs/train")["history"]
    best = max(range(3), key=lambda index: history[index]["miou"])
    score = (
        f"mIoU {history[best]['miou']:.3f}, object IoU {history[best]['iou'][1]:.3f}, Dice {history[best]['dice']:.3f}"
    )
    assert lines[3].startswith(f"best epoch {best + 1} of 3, on held-out data: {score}, accuracy 0.")
    scalars = read_events(Path("runs/train", events.NAME))
    assert [step for step, tag, _ in scalars if tag == "loss"] == list(range(1, 10))
    assert [value for _, tag, value in scalars if tag == "epoch/miou"] == pytest.approx([e["miou"] for e in history])

    # The network says itself what it is, and finds what it has learned.
    assert cli.main(["segment", "data/images", "--weights", "runs/train/best.safetensors"]) == 0
    assert "4 of 4 pictures" in capsys.readouterr().out
    assert '"name": "dark"' in Path("runs/segment/0.json").read_text()


@pytest.mark.usefixtures("pictures")
def test_the_best_network_is_kept() -> None:
    assert train("--epochs", "4", "--lr", "0.5") == 0
    last = result("runs/train")
    best = max(range(4), key=lambda index: last["history"][index]["miou"])
    assert train("--epochs", "4", "--lr", "0.5", "--out", "again") == 0
    assert values(result("again", "best")["model"]) == values(result("runs/train", "best")["model"])
    assert (values(result("runs/train", "best")["model"]) == values(last["model"])) == (best == 3)


@pytest.mark.usefixtures("pictures")
def test_more_epochs_and_nothing_left_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "1") == 0
    assert train("--epochs", "2", "--resume") == 0
    before = values(result("runs/train"))
    capsys.readouterr()
    assert train("--epochs", "2", "--resume") == 0
    assert capsys.readouterr().out.startswith(
        "nothing left to do: all 2 epochs are done; continue with a larger --epochs"
    )
    assert values(result("runs/train")) == before


@pytest.mark.usefixtures("pictures")
def test_a_network_that_grew_is_found_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "4", "--grow", "--width", "4") == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if ": grown: " in line]
    assert [line.split(":")[0] for line in printed] == ["after epoch 1", "after epoch 2"]
    assert cli.main(["segment", "data/images", "--weights", "runs/train/checkpoint.safetensors"]) == 0
    assert cli.main(["segment", "data/images", "--weights", "runs/train/best.safetensors"]) == 0


@pytest.mark.usefixtures("pictures")
def test_ctrl_c(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from genesis.segmentation.training import Training

    assert train("--epochs", "2", "--out", "whole") == 0
    step = Training._step

    def interrupted(self: Training, *batch: Any) -> Any:
        if self.step == 4:
            raise KeyboardInterrupt
        return step(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "_step", interrupted)
        assert train("--epochs", "2", "--save-every", "1") == 130
    captured = capsys.readouterr()
    last = captured.out.splitlines()[-1]
    assert last == "interrupted; --resume continues from runs/train/checkpoint.safetensors"
    assert result("runs/train")["step"] == 4
    assert train("--epochs", "2", "--resume") == 0
    assert values(result("runs/train")) == values(result("whole"))


@pytest.mark.usefixtures("pictures")
def test_kill_at_twenty_random_moments() -> None:
    """kill -9, from before the first checkpoint on; each time the next process goes on from the last whole one.

    The processes are forked from one that has imported everything, so that they die in the training, not in imports.
    """
    arguments = ["train", "data", *TINY, "--epochs", "1000", "--save-every", "1"]
    generator, checkpoint, steps = np.random.default_rng(0), Path("runs/train/checkpoint.safetensors"), [0]
    for _ in range(NUM_KILLS):
        resume = ["--resume"] if checkpoint.exists() else []
        process = forkserver.context.Process(target=cli.main, args=([*arguments, *resume],))
        process.start()
        wait_for_step(checkpoint, steps[-1] + 1 if generator.random() < 0.7 else 0)
        time.sleep(generator.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it had not ended by itself, in an error"
        steps.append(result("runs/train")["step"] if checkpoint.exists() else 0)
    assert steps == sorted(steps)
    assert len(set(steps)) > NUM_KILLS // 2
    num_epochs = steps[-1] // 3 + 1

    def finish(*more: str) -> None:
        """Until the end of the next epoch, and no further."""
        from genesis.segmentation.training import Training

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Training, "is_done", property(lambda training: len(training.history) >= num_epochs))
            assert cli.main([*arguments, *more]) == 0

    finish("--resume")
    finish("--out", "whole")
    assert values(result("runs/train")) == values(result("whole"))
    assert values(result("runs/train", "best")) == values(result("whole", "best"))
    assert read_events(Path("runs/train", events.NAME)) == read_events(Path("whole", events.NAME))
    left = {path.name for path in Path("runs/train").iterdir()} - {path.name for path in Path("whole").iterdir()}
    assert left == set()


def wait_for_step(checkpoint: Path, step: int) -> None:
    """Until a checkpoint is there that has come so far, or for a second that the machine may have lost."""
    for _ in range(500):
        if step == 0 or (checkpoint.exists() and genesis.load(checkpoint)["step"] >= step):
            return
        time.sleep(0.01)


@pytest.mark.parametrize(("arguments", "said"), [
    (["--resume", "--out", "nowhere"], "nowhere/checkpoint.safetensors"),
    ([], "without a training; --resume goes on with this one, --overwrite begins anew, got runs/train"),
    (["--resume", "--seed", "5"], "is of a training with another plan: seed = 0"),
    (["--out", "b", "--crop", "15"], "argument 'crop': expected a multiple of 2, got 15"),
    (["--out", "b", "--device", "tpu"], "expected 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
    (["--out", "b", "--weights", "none.pth"], "none.pth"),
    (["--out", "b", "--max-megapixels", "0.0005"], "more than 0.0005 megapixels, which --max-megapixels allows"),
    (["--out", "b", "--classes", "one.txt"], "argument 'masks': expected numbers below 1"),
])  # fmt: skip
@pytest.mark.usefixtures("pictures")
def test_what_is_wrong_is_said_in_a_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("one.txt").write_text("all\n")
    assert train("--epochs", "1") == 0
    capsys.readouterr()
    assert train("--epochs", "1", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("genesis train: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("b").exists()


@pytest.mark.parametrize(("name", "value", "expected"), [
    ("--steps", "-1", "a number of at least 0"), ("--held-out", "1", "a number between 0 and 1"),
    ("--epochs", "0", "a number above 0"), ("--seed", "-1", "a number of at least 0"),
])  # fmt: skip
def test_numbers_out_of_range(name: str, value: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        train(name, value)
    assert f"argument {name}: expected {expected}, got {value}" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "said"), [
    (["--width", "999999999"], "argument 'width': expected what takes less than the"),
    (["--width", "1000000", "--grow"], "argument 'width': expected what takes less than the"),
    (["--depth", "20"], "argument 'width': expected what takes less than the"),
    (["--depth", "999999999"], "argument 'depth': expected at most 24, got 999999999"),
    (["--crop", "99999998"], "argument 'crop': expected what takes less than the"),
    (["--batch-size", "999999999"], "argument 'batch_size': expected what takes less than the"),
])  # fmt: skip
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.usefixtures("pictures")
def test_what_fits_into_no_memory(
    arguments: list[str], said: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(*arguments, "--device", device) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("genesis train: " + said)
    assert captured.err.count("\n") == 1
    assert not Path("runs").exists()


def test_the_limit_of_the_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda kind: (4 << 30, -1))
    assert memory.total() == min(4 << 30, memory.total())
    with pytest.raises(
        ValueError, match=r"^a: argument 'b': expected .* the 4\.3 GB .*, got 7, which takes 5\.0 GB or more$"
    ):
        memory.check("a", "b", 7, 5 * 10**9)
    memory.check("a", "b", 7, 10**9)


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is not installed."""
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)


@pytest.mark.usefixtures("pictures", "without_matplotlib")
def test_without_matplotlib_there_are_no_curves(capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--epochs", "1") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "no curves.png: the package 'matplotlib' is not installed"
    assert lines[-1] == "its network: runs/train/best.safetensors"
    assert captured.err == ""
    assert not Path("runs/train/curves.png").exists()


@pytest.mark.usefixtures("without_matplotlib")
def test_without_matplotlib_the_demo_does_not_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["demo", "--epochs", "1", "--steps", "1"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("genesis demo: needs the package 'matplotlib'")
    assert not Path("runs").exists()


@pytest.mark.usefixtures("pictures")
def test_in_a_terminal_without_rich_there_are_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    assert train("--epochs", "1") == 0
    assert capsys.readouterr().out.startswith("epoch 1/1  loss ")


@pytest.mark.usefixtures("pictures")
def test_no_bars_where_nothing_is_left_to_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "120")
    assert train("--epochs", "1") == 0
    assert "3/3" in capsys.readouterr().out
    assert train("--epochs", "1", "--resume") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["nothing", "best", "its"]


@pytest.mark.usefixtures("pictures")
def test_the_best_epoch_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the last one's score above the best one's file."""
    from genesis.segmentation.metrics import Scores
    from genesis.segmentation.training import Training

    mious = iter([0.25, 0.75, 0.75, 0.5])
    monkeypatch.setattr(Training, "evaluate", lambda self: Scores(next(mious), 0.8, 0.9, (0.9, 0.6)))
    assert train("--epochs", "4") == 0
    said = "mIoU 0.750, object IoU 0.600, Dice 0.800, accuracy 0.900"
    assert f"best epoch 2 of 4, on held-out data: {said}\nits network: " in capsys.readouterr().out


@pytest.mark.usefixtures("pictures")
def test_ctrl_c_in_a_process_with_workers() -> None:
    command = [sys.executable, "-m", "genesis", "train", "data", *TINY, "--epochs", "9999", "--workers", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    for _ in range(600):
        if Path("runs/train/best.safetensors").exists() and result("runs/train")["step"] >= 3:  # written after it
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1] == "interrupted; --resume continues from runs/train/checkpoint.safetensors"
    assert result("runs/train")["step"] >= 3


@pytest.mark.usefixtures("pictures")
def test_starting_from_weights(capsys: pytest.CaptureFixture[str]) -> None:
    genesis.save(models.unet(3, 21, width=2, depth=2), "other.safetensors")
    assert train("--epochs", "1", "--weights", "other.safetensors") == 0
    assert capsys.readouterr().out.startswith("initialized from other.safetensors, except head.weight, head.bias\n")


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize("choice", ["simulated", pytest.param("auto", marks=pytest.mark.gpu)])
def test_on_a_gpu(choice: str) -> None:
    """A training in mixed precision that is interrupted, and what it found, on the device as on the CPU."""
    from genesis.settings import override

    with override(cuda=choice):
        arguments = ["--steps", "1", "--crop", "8", "--width", "5", "--precision", "float16"]
        assert train(*arguments, "--epochs", "1", "--device", "cuda") == 0
        assert train(*arguments, "--epochs", "2", "--device", "cuda", "--resume") == 0
        assert train(*arguments, "--epochs", "2", "--out", "cpu") == 0
        losses = [[epoch["loss"] for epoch in result(folder)["history"]] for folder in ("runs/train", "cpu")]
        assert losses[0] == pytest.approx(losses[1], rel=0.02)
        for device, precision in (("cuda", "float16"), ("cpu", "float32")):
            call = ["segment", "data/images/0.png", "--weights", "cpu/best.safetensors", "--out", device]
            assert cli.main([*call, "--device", device, "--precision", precision]) == 0
    masks = [np.asarray(Image.open(f"{device}/0_mask.png")) for device in ("cuda", "cpu")]
    assert (masks[0] == masks[1]).mean() > 0.98


def test_photographs_and_deeplab() -> None:
    """A network with an auxiliary head on a real photograph, one step; its file names the network."""
    arguments = ["--model", "deeplabv3_resnet50", "--epochs", "1", "--steps", "1", "--batch-size", "2", "--crop", "32"]
    data = Path("data")
    for kind in ("images", "masks"):
        (data / kind).mkdir(parents=True)
    for number in range(2):
        Image.new("RGB", (40, 33), (90 * number, 0, 0)).save(data / f"images/{number}.png")
        Image.new("L", (40, 33), number).save(data / f"masks/{number}.png")
    weights = "runs/train/best.safetensors"
    with narrow():
        assert cli.main(["train", "data", *arguments]) == 0
        assert cli.main(["segment", "data/images/0.png", "--model", "fcn_resnet50", "--weights", weights]) == 2
        assert cli.main(["segment", "data/images/0.png", "--weights", weights]) == 0
    with Image.open("runs/segment/0_mask.png") as mask:
        assert mask.size == (40, 33)
