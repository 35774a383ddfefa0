"""Processes of a benchmark that prepare side by side, and measure in turns: whoever measures stops all the others.

What they have started stands still too, such as processes that compile or tune in sessions of their own (on Linux).

Compiling takes nearly all of such a benchmark's time, and one network cannot use all cores for it.

    run([[sys.executable, "bench_zoo.py", "--networks", name] for name in names], 6)

    with measuring():               in these processes; in any other it does nothing
        model(x)
"""

from __future__ import annotations

import collections
import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER = "BENCHMARK_TURNS"  # in the environment: a folder with a file for each process group; it is the lock too
_DRAINED = 0.02  # seconds: what the others launched before they were stopped is done
_measuring = False


def run(commands: Iterable[Sequence[str]], processes: int, seconds: float = float("inf")) -> int:
    """Run commands, so many at a time, and begin none after so long; returns how many failed."""
    waiting, end, num_failed = collections.deque(commands), time.monotonic() + seconds, 0
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="turns_", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "processes"
        folder.mkdir()
        try:
            while running or waiting:
                if waiting and time.monotonic() > end:
                    print("no time for: " + "; ".join(" ".join(command[2:4]) for command in waiting), flush=True)
                    waiting.clear()
                while waiting and len(running) < processes:
                    running.append(_begin(waiting.popleft(), folder))
                time.sleep(0.1)
                for child in [child for child in running if child.poll() is not None]:
                    running.remove(child)
                    (folder / str(child.pid)).unlink()
                    if child.returncode:
                        num_failed += 1
                        with alone(folder):  # it may have ended while the others stood still
                            _signal(folder, signal.SIGCONT)
        finally:
            _signal(folder, signal.SIGKILL)
            for child in running:
                child.wait()
    return num_failed


def _begin(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    caches = tempfile.mkdtemp(prefix="inductor_", dir=folder.parent)  # its locks are held while others stand still
    environment = {**os.environ, _FOLDER: str(folder), "TORCHINDUCTOR_CACHE_DIR": caches}
    with alone(folder):  # nobody measures, and whoever does next stops it
        child = subprocess.Popen(command, env=environment, process_group=0)
        (folder / str(child.pid)).touch()
    return child


@contextmanager
def measuring() -> Iterator[None]:
    """All other processes of run() stand still."""
    global _measuring
    folder = os.environ.get(_FOLDER)
    if folder is None or _measuring:
        yield
        return
    with alone(Path(folder)):
        _measuring = True
        try:
            _signal(Path(folder), signal.SIGSTOP)
            time.sleep(_DRAINED)
            yield
        finally:
            _measuring = False
            _signal(Path(folder), signal.SIGCONT)


def inductor_measures_in_turns() -> None:
    """Inductor, too, times kernels before it chooses one."""
    if _FOLDER not in os.environ:
        return
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    benchmark = CachingAutotuner.benchmark_all_configs

    def benchmark_all_configs(self: CachingAutotuner, *args: object, **kwargs: object) -> object:
        with measuring():
            return benchmark(self, *args, **kwargs)

    CachingAutotuner.benchmark_all_configs = benchmark_all_configs


def _signal(folder: Path, number: signal.Signals) -> None:
    """To all process groups but this one, and to what these processes started, until nothing new is found: one that is
    told to stop may start another before it does."""
    groups = {int(name) for name in os.listdir(folder)} - {os.getpgrp()}
    told: set[int] = set()
    while new := _descendants(groups) - told:
        told |= new
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)
        for process in new - groups:
            with suppress(ProcessLookupError):
                os.kill(process, number)


def _descendants(processes: set[int]) -> set[int]:
    """Processes with all that they started, and what these started."""
    children: collections.defaultdict[int, list[int]] = collections.defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            children[int(parent)].append(int(folder.name))
    found: set[int] = set()
    left = list(processes)
    while left:
        process = left.pop()
        if process not in found:
            found.add(process)
            left += children[process]
    return found


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep the other processes that write results into a folder waiting."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
