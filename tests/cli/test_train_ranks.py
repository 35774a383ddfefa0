"""`torchrun -m genesis train`: the training of one process, in several; after a kill it goes on by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from genesis import checkpoint
from genesis.cli import main
from tests.distributed.kills import draw_pictures, processes

SMALL = ["--crop", "16", "--width", "4", "--depth", "2", "--batch-size", "4", "--held-out", "0.3", "--grow"]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return draw_pictures(tmp_path / "set")


def kill_a_rank(agent: int, saved: Path) -> bool:
    """Kill rank 1 as soon as an epoch has been saved."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if saved.exists() and len(checkpoint.load(saved)["history"]) >= 1:
            running = sorted(processes().items())
            workers = [pid for pid, (parent, line) in running if parent == agent and b"genesis" in line]
            if len(workers) == 2:
                os.kill(workers[1], signal.SIGKILL)
                return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the processes in /proc")
def test_two_ranks_train_as_one_process_even_if_one_is_killed(pictures: Path, tmp_path: Path) -> None:
    command = ["train", str(pictures), *SMALL, "--epochs", "6"]
    assert main([*command, "--out", str(tmp_path / "one")]) == 0
    alone = checkpoint.load(tmp_path / "one" / "checkpoint.safetensors")

    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = ["--max-restarts", "1", "-m", "genesis", *command, "--out", str(tmp_path / "two"), "--save-every", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = tmp_path / "log"
    with log.open("w") as output:
        agent = subprocess.Popen([*launcher, *program], env=environment, stdout=output, stderr=subprocess.STDOUT)
        saved = tmp_path / "two" / "checkpoint.safetensors"
        try:
            was_killed = kill_a_rank(agent.pid, saved)
            code = agent.wait(120)
        finally:
            agent.kill()
    said = log.read_text()
    assert was_killed, said
    assert code == 0, said
    assert any(text in said for text in ("rank 1 (process", "Signal 9 (SIGKILL)", "exitcode: -9"))  # ours or torchrun's
    assert said.count("best epoch") == 1  # rank 0 alone speaks
    together = checkpoint.load(saved)
    assert together["step"] == alone["step"]
    for one, two in zip(alone["history"], together["history"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], rel=2e-3)
        assert two["miou"] == pytest.approx(one["miou"], abs=0.02)
    assert {key: value.shape for key, value in together["model"].items()} == {
        key: value.shape for key, value in alone["model"].items()
    }
    assert main(["train", str(pictures), *SMALL, "--epochs", "7", "--out", str(tmp_path / "two"), "--resume"]) == 0
    assert len(checkpoint.load(saved)["history"]) == 7
