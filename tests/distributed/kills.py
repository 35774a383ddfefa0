"""Trainings under torchrun whose ranks are killed at random moments, or interrupted: they go on, and end as one that
was left alone, bit for bit.

python -m tests.distributed.kills --kills 20 --ranks 3
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from genesis import checkpoint

EPOCHS = 6
SMALL = ["--crop", "16", "--width", "4", "--depth", "2", "--batch-size", "6", "--held-out", "0.3", "--save-every", "1"]
LIMIT = 120.0  # seconds of a training


def draw_pictures(folder: Path) -> Path:
    """Bright squares on noise."""
    draw = np.random.default_rng(0)
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for index in range(7):
        mask = np.zeros((24, 24), np.uint8)
        top, left = draw.integers(2, 14, 2)
        mask[top : top + 8, left : left + 8] = 1
        image = (draw.random((24, 24, 3)) * 60 + mask[..., None] * 120).astype(np.uint8)
        Image.fromarray(image).save(folder / "images" / f"{index}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{index}.png")
    return folder


def processes() -> dict[int, tuple[int, bytes]]:
    """The parent and the command line of each process that runs."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
            if len(fields) > 1 and fields[0] not in ("Z", "X"):
                found[int(entry.name)] = int(fields[1]), (entry / "cmdline").read_bytes()
        except OSError:
            continue
    return found


class Job:
    """A training under torchrun.

    Args:
        data, out: the pictures, and where checkpoints go.
        restarts: how often the ranks may be started again.
    """

    def __init__(self, data: Path, out: Path, ranks: int, restarts: int, *options: str) -> None:
        self.saved, self.log, self.out = out / "checkpoint.safetensors", out.with_suffix(".log"), out
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        launcher += ["--max-restarts", str(restarts), "--monitor-interval", "0.2"]
        program = ["-m", "genesis", "train", str(data), *SMALL, "--epochs", str(EPOCHS), "--out", str(out), *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.start, self.ranks = time.monotonic(), ranks
        with self.log.open("w") as output:
            self.agent = subprocess.Popen(
                [*launcher, *program], env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def workers(self) -> list[int]:
        """The processes of the ranks, in their order."""
        found = processes()
        return sorted(pid for pid, (parent, _) in found.items() if parent == self.agent.pid)

    def orphans(self) -> list[int]:
        """What still runs of it, whoever its parent is."""
        return [pid for pid, (_, line) in processes().items() if os.fsencode(self.out) + b"\0" in line]

    def wait(self) -> int:
        """Its exit status. Raises: TimeoutExpired: it hangs."""
        return self.agent.wait(max(1.0, LIMIT - (time.monotonic() - self.start)))

    def end(self) -> None:
        if self.agent.poll() is None:
            os.killpg(self.agent.pid, signal.SIGKILL)
        for pid in self.orphans():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def job(data: Path, out: Path, ranks: int, restarts: int = 0, *options: str) -> Iterator[Job]:
    started = Job(data, out, ranks, restarts, *options)
    try:
        yield started
    finally:
        started.end()


def killed(data: Path, out: Path, ranks: int, victim: int, step: int, after: float) -> tuple[Job, int]:
    """Kill a rank so long after a step has been saved; 0: after it has started. Returns: the job, its exit status."""
    with job(data, out, ranks, 1) as started:
        while started.agent.poll() is None and not has_made(started, step):
            time.sleep(0.01)
        time.sleep(after)
        workers = started.workers()
        if len(workers) == ranks:
            os.kill(workers[victim], signal.SIGKILL)
        return started, started.wait()


def has_made(started: Job, step: int) -> bool:
    if step == 0:
        return len(started.workers()) == started.ranks
    return started.saved.exists() and checkpoint.load(started.saved)["step"] >= step


def interrupted(data: Path, out: Path, ranks: int) -> Job:
    """Press Ctrl-C, which all processes of a terminal get, after a few steps."""
    with job(data, out, ranks) as started:
        while not has_made(started, 3):
            assert started.agent.poll() is None, started.log.read_text()
            time.sleep(0.05)
        os.killpg(started.agent.pid, signal.SIGINT)
        assert started.wait() != 0, "it was not interrupted"
        end = time.monotonic() + 10
        while started.orphans():
            assert time.monotonic() < end, f"{started.orphans()} still run: {started.log.read_text()}"
            time.sleep(0.05)
        return started


def state(saved: Path) -> dict[str, Any]:
    """What must be equal bit for bit: weights, optimizer, losses and scores."""
    loaded = checkpoint.load(saved)
    return {"history": loaded["history"], "step": loaded["step"], **_flat("", loaded["model"], loaded["optimizer"])}


def _flat(prefix: str, *parts: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, part in enumerate(parts):
        items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else None
        if items is None:
            found[f"{prefix}{index}"] = part.numpy().tobytes() if hasattr(part, "numpy") else part
        else:
            for name, value in items:
                found |= _flat(f"{prefix}{index}.{name}.", value)
    return found


def assert_same(saved: Path, expected: dict[str, Any]) -> None:
    found = state(saved)
    different = [name for name in expected.keys() | found.keys() if found.get(name) != expected.get(name)]
    assert not different, f"{len(different)} differ: {sorted(different)[:5]}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        data = draw_pictures(root / "set")
        with job(data, root / "alone", arguments.ranks) as alone:
            assert alone.wait() == 0, alone.log.read_text()
        expected, seconds = state(alone.saved), time.monotonic() - alone.start
        print(f"undisturbed: {seconds:.1f} s, last loss {expected['history'][-1]['loss']}", flush=True)
        number = 0
        for attempt in itertools.count():
            if number == arguments.kills:
                break
            victim, step = number % arguments.ranks, draw.randrange(expected["step"])
            after = draw.random() * (seconds if step == 0 else 0.1)
            done, status = killed(data, root / f"killed-{attempt}", arguments.ranks, victim, step, after)
            took = time.monotonic() - done.start
            assert status == 0, done.log.read_text()
            assert_same(done.saved, expected)
            text = done.log.read_text()
            if "Signal 9" not in text and "exitcode: -9" not in text:
                print("  it ended before the kill; once more", flush=True)
                continue
            where = f"rank {victim}, step {step} + {after:.2f} s"
            print(f"kill {number}: {where}; done after {took:.1f} s, bit for bit", flush=True)
            number += 1
        stopped = interrupted(data, root / "interrupted", arguments.ranks)
        with job(data, root / "interrupted", arguments.ranks, 0, "--resume") as resumed:
            assert resumed.wait() == 0, resumed.log.read_text()
        assert_same(stopped.saved, expected)
        print("Ctrl-C: a checkpoint, no orphans; resumed, bit for bit")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
