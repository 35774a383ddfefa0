"""Tuning for genesis.torch.compile: another process measures a graph's convolutions while this one compiles the graph.

The process (tuning_server.py) makes the graph's calls of Genesis' ops with zeros, and tunes what they compute; the
plans reach this process by the store. What it compiles for these calls is found on the disk when the graph runs first.
Graphs whose calls were tuned before, by whichever process, need none.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import torch

from genesis.files import replaced
from genesis.precision import get_float32_precision
from genesis.settings import settings
from genesis.torch.graph_caches import this_genesis
from genesis.torch.graph_calls import Call
from genesis.torch.recordings import Recordings
from genesis.torch.tuning_messages import FAILED, LOG, Answer, Setting, Told, Tuned

_logger = logging.getLogger("genesis.tuning")
_PATIENCE = 5.0  # seconds in which the process is to end
_LEAST = 0.1  # seconds: kernels that the calls launch are compiled in any case


class Tuning:
    """The tuning of the graphs of a model's first call.

    Args:
        budget: seconds of measuring, for all graphs together.
        device: the index of the CUDA device; None: the processor.
        hint: what the model and its inputs look like. The process takes seconds to start, so it is started before the
            first graph is known, unless one of a model that looks so was tuned before.
    """

    def __init__(self, budget: float, recordings: Recordings, device: int | None, hint: str) -> None:
        self._budget, self._left, self._recordings, self._device = budget, budget, recordings, device
        self._hint = _digest([hint])
        self._underway: list[tuple[list[Call], float]] = []  # calls, and the seconds for them
        self._num_tuned = self._num_left = 0  # problems
        self._num_measured = self._num_known = 0  # lists of calls
        self._has_failed = False
        self._process = None if _was_tuned(self._hint, device) else _Process(device)

    def add(self, calls: Sequence[Call], share: float) -> None:
        """Begin with calls of a graph that is being compiled. share: of the time that is left."""
        if not calls:
            return
        if _was_tuned(_digest(map(repr, calls)), self._device):
            self._num_known += 1
            return
        self._process = self._process or _Process(self._device)
        budget = max(_LEAST, share * self._left)
        self._left -= budget
        self._process.tell(calls, budget)
        self._underway.append((list(calls), budget))

    def finish(self) -> None:
        """Wait for what is being measured: the graph is about to run."""
        underway, self._underway = self._underway, []
        for calls, budget in underway:
            assert self._process is not None
            try:
                tuned = self._process.result() or _tuned_here(calls, budget)
            except Exception as error:
                self._has_failed = True
                self._recordings.note(f"not tuned: {type(error).__name__}: {str(error).strip()}")
                continue
            self._num_measured += 1
            self._num_tuned += tuned.num_tuned
            self._num_left += tuned.num_left
            self._left += max(0.0, budget - tuned.seconds)
            if not tuned.num_left:
                _remember(_digest(map(repr, calls)), tuned.problems)
        planner = sys.modules.get("genesis.backends.cuda.engine.planner")
        if underway and planner is not None:
            planner.forget_guesses()

    def close(self) -> None:
        """The first call has ended. Say what was found, and end the process."""
        if self._process is not None:
            self._process.close()
        if self._num_measured:
            found = f"tuned {self._num_tuned} problems in {self._budget:g} s; {self._num_left} had no time"
            self._recordings.note(found)
        elif self._num_known:
            self._recordings.note("tuned before")
        if not (self._num_left or self._has_failed):
            _remember(self._hint, ())


def _tuned_here(calls: Sequence[Call], budget: float) -> Tuned:
    from genesis.torch import tuning_server

    return tuning_server.tune(calls, budget)


# --- what was tuned before --------------------------------------------------------------------------------------------
def _digest(texts: Iterable[str]) -> str:
    found = hashlib.sha256(f"{torch.__version__} {this_genesis()} {get_float32_precision()}".encode())
    for text in texts:
        found.update(text.encode() + b"\0")
    return found.hexdigest()


def _path(digest: str) -> Path:
    return settings.cache_dir / "tuned" / digest


def _was_tuned(digest: str, device: int | None) -> bool:
    """Whether this was tuned, and the device's store has all of the plans."""
    try:
        problems = _path(digest).read_text().splitlines()
    except (OSError, ValueError):
        return False
    if not problems or device is None:
        return True
    from genesis.backends.cuda.engine import platform

    return all(platform.store(device).get(problem) is not None for problem in problems)


def _remember(digest: str, problems: Iterable[str]) -> None:
    with contextlib.suppress(OSError), replaced(_path(digest)) as temporary:  # what is not written is tuned again
        temporary.write_text("".join(f"{problem}\n" for problem in problems))


# --- the process ------------------------------------------------------------------------------------------------------
class _Process:
    """The process that tunes, and the thread that tells it what to do: it takes in nothing before it has started."""

    def __init__(self, device: int | None) -> None:
        from genesis.backends.cuda.driver.compile_processes import command, search_path

        self._messages: SimpleQueue[Setting | Told | None] = SimpleQueue()
        self._connection: Connection[Setting | Told, Answer] | None = None  # None: there is no process
        mine, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [*command("genesis.torch.tuning_server"), str(theirs.fileno())],
                pass_fds=[theirs.fileno()], env={**os.environ, **search_path()}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError as error:
            _logger.warning("no process to tune in: %s", error)
            mine.close()
        else:
            self._connection = Connection(mine.detach())
            threading.Thread(target=self._tell, args=(self._connection,), name="genesis tuning", daemon=True).start()
            self._messages.put(_setting(device))
        finally:
            theirs.close()

    def tell(self, calls: Sequence[Call], budget: float) -> None:
        """Have it tune what some calls compute, after those that it was told of before."""
        self._messages.put((list(calls), budget))

    def result(self) -> Tuned | None:
        """Wait for the next of its results; None: this process has to measure. Raises: RuntimeError: it has died."""
        while self._connection is not None:
            try:
                what, value = self._connection.recv()
            except (EOFError, OSError):
                code = self._process.wait()
                raise RuntimeError(f"the process that tunes has ended with exit code {code}") from None
            if what == LOG:
                _logger.info("%s", value)
            elif what == FAILED:
                _logger.warning("tuning in a process of its own: %s", value)
                return None
            else:
                assert isinstance(value, Tuned)
                return value
        return None

    def close(self) -> None:
        """End the process; what it has found is in the store."""
        if self._connection is None:
            return
        self._messages.put(None)
        self._process.kill()
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)

    def _tell(self, connection: Connection[Setting | Told, Answer]) -> None:
        while (message := self._messages.get()) is not None:
            try:
                connection.send(message)
            except OSError:  # it has ended, which result() finds out
                return


def _setting(device: int | None) -> Setting:
    values = {**asdict(settings), "tune": 0.0, "check": ""}
    cache_dir = values.pop("cache_dir")
    logs = _logger.isEnabledFor(logging.INFO)
    return Setting(values, cache_dir.absolute(), get_float32_precision(), device, logs)
