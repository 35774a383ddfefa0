"""The folder of a training: one process at a time, and nothing that stood there is lost without being asked for."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import genesis
from genesis import cli, files
from genesis.segmentation import events
from genesis.segmentation.run_folder import RunFolder
from tests.segmentation.test_training import PLAN, Plan, unet

processes = multiprocessing.get_context("fork")
NAMES = ("checkpoint.safetensors", "best.safetensors", "curves.png", events.NAME)
ONCE = Plan(**{**vars(PLAN), "epochs": 1, "steps": 1})
DEMO = ["demo", "--steps", "1", "--epochs", "1", "--width", "2", "--no-grow"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def train(folder: Path, plan: Plan = ONCE, **how: Any) -> None:
    run, training = RunFolder(folder), unet(plan)
    run.begin(training, how.pop("resume", False), **how)
    try:
        run.run(training)
    finally:
        run.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def begin_and_wait(folder: Path, ready: Any, resume: bool) -> None:
    RunFolder(folder).begin(unet(ONCE), resume)
    ready.set()
    time.sleep(60)


@pytest.mark.parametrize("resume", [True, False])
def test_a_second_process_is_kept_out_by_name_until_the_first_dies(folder: Path, resume: bool) -> None:
    if resume:
        train(folder)
    ready = processes.Event()
    first = processes.Process(target=begin_and_wait, args=(folder, ready, resume))
    first.start()
    assert ready.wait(60)
    before = contents(folder)
    for how in ({"resume": True}, {}, {"overwrite": True}):
        said = rf"argument 'out': expected a folder of its own, got .*run, in use by process {first.pid}"
        with pytest.raises(ValueError, match=said):
            train(folder, **how)
    assert contents(folder) == before
    os.kill(first.pid or 0, signal.SIGKILL)
    first.join()
    train(folder, resume=True)
    assert sorted(contents(folder)) == sorted(NAMES)


def test_workers_do_not_keep_a_folder_whose_training_was_killed(folder: Path) -> None:
    """They are forked while it is locked, and live on for some seconds when their parent is gone."""
    worker = processes.Value("i", 0)

    def begin_and_fork() -> None:
        RunFolder(folder).begin(unet(ONCE), False)
        child = os.fork()
        if child:
            worker.value = child
        time.sleep(60)

    first = processes.Process(target=begin_and_fork)
    first.start()
    while not worker.value:
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(first.pid or 0, signal.SIGKILL)
    first.join()
    try:
        train(folder, resume=True)
    finally:
        os.kill(worker.value, signal.SIGKILL)  # it had lived on


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_stands_there_is_not_overwritten_unasked(name: str, kind: str, folder: Path) -> None:
    folder.mkdir()
    target = folder.parent / "precious"
    if kind != "dangling link":
        (folder / name if kind == "file" else target).write_text("years of work")
    if kind != "file":
        (folder / name).symlink_to(target)
    with pytest.raises(ValueError, match=r"argument 'out': expected a folder without .*; .*--overwrite .*, got .*run"):
        train(folder)
    assert os.listdir(folder) == [name]
    assert (folder / name).is_symlink() == (kind != "file")

    train(folder, overwrite=True)
    assert sorted(contents(folder)) == sorted(NAMES)
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert kind == "file" or target.exists() == (kind == "link")
    if kind == "link":
        assert target.read_text() == "years of work"


def test_beginning_anew_leaves_nothing_of_the_old_training(folder: Path) -> None:
    train(folder, Plan(**{**vars(ONCE), "epochs": 2}))
    train(folder, overwrite=True)
    again = folder.parent / "again"
    train(again)
    for name in ("checkpoint.safetensors", "best.safetensors"):
        assert (folder / name).read_bytes() == (again / name).read_bytes()
    assert len((folder / events.NAME).read_bytes()) == len((again / events.NAME).read_bytes())


def test_a_failed_beginning_gives_the_folder_back(folder: Path) -> None:
    train(folder)
    before = contents(folder)
    with pytest.raises(ValueError, match="is of a training with another plan"):
        train(folder, Plan(**{**vars(ONCE), "seed": 9}), resume=True)
    assert contents(folder) == before
    with pytest.raises(FileNotFoundError, match=r"nowhere/checkpoint\.safetensors"):
        train(folder.parent / "nowhere", resume=True)
    assert not (folder.parent / "nowhere").exists()


def test_leftovers_of_a_killed_writer_go(folder: Path) -> None:
    train(folder)
    left = folder / ".checkpoint.safetensors.0123abcd.tmp"
    left.write_text("half")
    files._leftovers.cache_clear()
    train(folder, Plan(**{**vars(ONCE), "epochs": 2}), resume=True)
    assert sorted(contents(folder)) == sorted(NAMES)


def test_the_event_file_is_not_made_longer(folder: Path) -> None:
    """A checkpoint that says more of it than there is, whoever wrote it."""
    train(folder)
    state = genesis.load(folder / NAMES[0])
    genesis.save({**state, "events": 10**15}, folder / NAMES[0])
    train(folder, resume=True)
    assert (folder / events.NAME).stat().st_size < 10_000
    genesis.save({**state, "events": "x"}, folder / NAMES[0])
    with pytest.raises(ValueError, match="argument 'events': expected the size of a file, got 'x'"):
        train(folder, resume=True)


def test_a_full_disk_names_the_event_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = events.EventFile(folder / events.NAME)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left on device: .*{re.escape(events.NAME)}"):
        log.flush()
    monkeypatch.undo()
    log.close()


# --- the demo ---------------------------------------------------------------------------------------------------------


def test_the_demo_can_be_run_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(DEMO) == 0
    first = Path("runs/demo/checkpoint.safetensors").read_bytes()
    assert cli.main(DEMO) == 0
    assert Path("runs/demo/checkpoint.safetensors").read_bytes() == first
    capsys.readouterr()

    assert cli.main([*DEMO, "--seed", "1"]) == 2, "another network, which would take the first one's place"
    assert "--resume goes on with this one, --overwrite begins anew, got runs/demo" in capsys.readouterr().err
    assert Path("runs/demo/checkpoint.safetensors").read_bytes() == first
    assert cli.main([*DEMO, "--seed", "1", "--overwrite"]) == 0
    assert Path("runs/demo/checkpoint.safetensors").read_bytes() != first
    with pytest.raises(SystemExit):
        cli.main([*DEMO, "--resume", "--overwrite"])


def test_the_demo_spares_the_picture_that_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    y, x = np.mgrid[:100, :100]
    disc = (x % 60 - 30) ** 2 + (y - 50) ** 2 < 400
    Image.fromarray(np.where(disc, 200, 40).astype(np.uint8)).save("mine.png")
    Image.fromarray((disc * 255).astype(np.uint8)).save("mask.png")
    before = Path("mine.png").read_bytes()
    for more in ([], ["--overwrite"]):
        assert cli.main([*DEMO, "--image", "mine.png", "--mask", "mask.png", "--out", ".", *more]) == 2
        assert "argument 'out': expected a folder other than that of mine.png" in capsys.readouterr().err
    Path("pictures").mkdir()
    Path("pictures/mine.png").write_text("another of the user's")
    assert cli.main([*DEMO, "--image", "mine.png", "--mask", "mask.png", "--out", "pictures"]) == 2
    assert "a folder without mine.png; --overwrite takes its place, got pictures" in capsys.readouterr().err
    assert Path("mine.png").read_bytes() == before
    assert os.listdir("pictures") == ["mine.png"]


def test_the_demo_keeps_a_foreign_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/demo").mkdir(parents=True)
    Path("runs/demo/checkpoint.safetensors").write_text("no checkpoint at all")
    assert cli.main(DEMO) == 2
    assert "expected a folder without a training" in capsys.readouterr().err
