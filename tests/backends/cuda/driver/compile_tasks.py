"""What the tests ask compilers to do: functions that other processes can import without anything else."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from triton import knobs

from genesis.settings import settings


def write_text(path: Path, text: str) -> None:
    path.write_text(text)


def write_state(path: Path) -> None:
    files = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    devices = [each for each in files if each.startswith("/dev/nvidia")]
    path.write_text(f"{devices} {'torch' in sys.modules} {settings.cache_dir} {knobs.cache.dir} {os.getpid()}")


def write_modules(path: Path) -> None:
    path.write_text("\n".join(sys.modules))


def write_pid_and_sleep(path: Path, seconds: float) -> None:
    path.with_suffix(".part").write_text(f"{os.getpid()} {os.getppid()}")
    path.with_suffix(".part").rename(path)
    time.sleep(seconds)


def die(path: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def fail(path: Path) -> None:
    raise ValueError("no such kernel")
