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
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

import torch

import genesis
from genesis.files import replaced
from genesis.precision import get_float32_precision
from genesis.settings import settings
from genesis.torch.graph_caches import this_genesis
from genesis.torch.graph_calls import Call
from genesis.torch.recordings import Recordings
from genesis.torch.tuning_messages import FAILED, LOG, Answer, Needed, Setting, Told, Tuned

_logger = logging.getLogger("genesis.tuning")
_PATIENCE = 5.0  # seconds in which the process is to end
_LONGEST = 120.0  # seconds that kernels may take when the graph has been compiled: then something hangs
_IF_OTHERS_FOLLOW = 1 / 2  # of the seconds that are left: for a graph that ends early
_LEAST = 0.1  # seconds
_BEGUN = ".begun"  # to tune; kernels were compiled


class Tuning:
    """The tuning of the graphs of a model's first call.

    Args:
        seconds: so long the call may wait for measurements, for all graphs together. 0: what there is no time for while
            a graph is compiled for the first time is not measured.
        device: the index of the CUDA device.
        hint: what the model and its inputs look like. The process takes seconds to start, so it is started before the
            first graph is known, unless one of a model that looks so was tuned before. None: with the first graph that
            has something to tune.
    """

    def __init__(self, seconds: float, recordings: Recordings, device: int | None, hint: str | None) -> None:
        self._waits, self._left, self._recordings, self._device = seconds > 0, seconds, recordings, device
        self._platform = "" if device is None else _platform(device)
        self._hint = None if hint is None else self._digest([hint])
        self._told: set[str] = set()
        self._calls: list[Call] = []  # of the graph that is being compiled
        self._digests: list[str] = []  # of lists of these
        self._last: Tuned | None = None  # of the last graph that had new calls; None: it failed
        self._num_tuned = self._num_left = 0  # problems
        self._num_measured = self._num_known = self._num_failed = 0  # graphs; lists of calls; graphs
        self._waited = 0.0  # seconds
        self._is_unable = False  # the process, which is not asked again then if no call waits
        self._process: _Process | None = None
        if self._hint is not None and not self._is_done(self._hint):
            self._process = _Process(device)

    def add(self, calls: Sequence[Call]) -> None:
        """Begin with calls of the graph that is being compiled: with those that were not told before."""
        if not calls:
            return
        digest = self._digest(map(repr, calls))
        if self._is_done(digest):
            self._num_known += 1
            return
        self._digests.append(digest)
        fresh = list({repr(call): call for call in calls if repr(call) not in self._told}.values())
        if fresh:
            self._process = self._process or _Process(self._device)
            self._process.tell(fresh)
            self._calls += fresh
            self._told.update(map(repr, fresh))

    def finish(self, is_last: bool) -> None:
        """The graph is about to run: wait for its kernels, and for measurements if there are seconds for them.

        is_last: no other graph seems to follow.
        """
        (calls, self._calls), (digests, self._digests) = (self._calls, []), (self._digests, [])
        if calls:
            self._take(self._await(calls, self._left if is_last else self._left * _IF_OTHERS_FOLLOW))
        for digest in digests:
            self._remember(digest)
        if is_last:
            self._end()

    def close(self) -> None:
        """The first call has ended. Say what was found, and end the process."""
        self._end()
        if self._num_measured:
            waited = f"; the first call waited {self._waited:.1f} s for it" if self._waited >= 0.1 else ""
            left = f"; {self._num_left} had no time" if self._num_left else ""
            self._recordings.note(f"tuned {self._num_tuned} problems{waited}{left}")
        elif self._num_known and self._waits:
            self._recordings.note("tuned before")
        if self._hint is None or self._is_done(self._hint) or (self._num_failed and not self._is_unable):
            return
        is_known_in_part = self._num_known > 0 and not self._waits  # and perhaps only begun
        _remember(self._hint, None if self._is_unable or self._num_left or is_known_in_part else ())

    def _take(self, tuned: Tuned | None) -> None:
        self._last = tuned
        if tuned is None:
            self._num_failed += 1
            return
        self._num_measured += 1
        self._num_tuned += tuned.num_tuned
        self._num_left += tuned.num_left
        planner = sys.modules.get("genesis.backends.cuda.engine.planner")
        if planner is not None:
            planner.forget_guesses()

    def _await(self, calls: Sequence[Call], seconds: float) -> Tuned | None:
        """Return what the process has found; None: nothing, as is noted."""
        assert self._process is not None
        began = time.monotonic()
        try:
            return self._process.result(seconds)
        except _UnableError as error:
            self._is_unable = not self._waits
            _logger.log(logging.WARNING if self._waits else logging.INFO, "tuning in a process of its own: %s", error)
            if self._is_unable:
                return None
            try:
                return _tuned_here(calls, seconds)
            except Exception as error:
                self._fail(error)
        except Exception as error:
            self._fail(error)
        finally:
            waited = time.monotonic() - began
            self._waited += waited
            self._left = max(0.0, self._left - waited)
        return None

    def _remember(self, digest: str) -> None:
        """Remember what became of calls of the last graph."""
        if self._last is not None:
            _remember(digest, None if self._last.num_left else self._last.problems)
        elif self._is_unable:
            _remember(digest, None)

    def _fail(self, error: Exception) -> None:
        self._end()
        self._recordings.note(f"not tuned: {type(error).__name__}: {str(error).strip()}")

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _digest(self, texts: Iterable[str]) -> str:
        found = hashlib.sha256(f"{torch.__version__} {this_genesis()} {self._platform}".encode())
        for text in (get_float32_precision(), *texts):
            found.update(text.encode() + b"\0")
        return found.hexdigest()

    def _is_done(self, digest: str) -> bool:
        """Whether nothing is to be done for this; where no call waits, it was done once what there was time for."""
        return _was_tuned(digest, self._device) or (not self._waits and _path(digest, _BEGUN).exists())


def _platform(device: int) -> str:
    from genesis.backends.cuda.engine import platform

    return platform.store(device).platform


def _tuned_here(calls: Sequence[Call], seconds: float) -> Tuned:
    def make_all() -> None:
        for call in calls:
            call.make()

    report = genesis.tune(make_all, budget=max(seconds, _LEAST), resume=False)
    return Tuned(len(report), report.num_left, [])


# --- what was tuned before --------------------------------------------------------------------------------------------
def _path(digest: str, suffix: str = "") -> Path:
    return settings.cache_dir / "tuned" / f"{digest}{suffix}"


def _was_tuned(digest: str, device: int | None) -> bool:
    """Whether this was tuned to the end, and the device's store has all of the plans."""
    try:
        problems = _path(digest).read_text().splitlines()
    except (OSError, ValueError):
        return False
    if not problems or device is None:
        return True
    from genesis.backends.cuda.engine import platform

    return all(platform.store(device).get(problem) is not None for problem in problems)


def _remember(digest: str, problems: Iterable[str] | None) -> None:
    """None: some had no time."""
    path = _path(digest, _BEGUN) if problems is None else _path(digest)
    with contextlib.suppress(OSError), replaced(path) as temporary:  # what is not written is tuned again
        temporary.write_text("".join(f"{problem}\n" for problem in problems or ()))


# --- the process ------------------------------------------------------------------------------------------------------
class _UnableError(Exception):
    """The process cannot tune."""


class _Process:
    """The process that tunes, and the thread that tells it what to do: it takes in nothing before it has started.

    The compilers that it asks are started here, beside it: that way both are ready in the time that one takes.
    """

    def __init__(self, device: int | None) -> None:
        from genesis.backends.cuda.driver.compile_processes import command, search_path

        self._compilers, compilers = (None, []) if device is None else _start_compilers()
        self._messages: SimpleQueue[Setting | Told | None] = SimpleQueue()
        self._connection: Connection[Setting | Told, Answer] | None = None  # None: there is no process
        mine, theirs = socket.socketpair()
        descriptors = [each.fileno() for each in (theirs, *compilers)]
        try:
            self._process = subprocess.Popen(
                [*command("genesis.torch.tuning_server"), *map(str, descriptors)],
                pass_fds=descriptors, env={**os.environ, **search_path()}, start_new_session=True,
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
            for each in (theirs, *compilers):
                each.close()

    def tell(self, calls: Sequence[Call]) -> None:
        """Have it tune what some calls compute too."""
        self._messages.put(list(calls))

    def result(self, seconds: float) -> Tuned:
        """Wait for what it finds, for so many seconds of measuring.

        Raises: _UnableError. RuntimeError: it has died. TimeoutError: it does not answer.
        """
        self._messages.put(Needed(seconds))
        end = time.monotonic() + seconds + _LONGEST
        while self._connection is not None:
            if not self._connection.poll(max(0.0, end - time.monotonic())):
                raise TimeoutError(f"the process that tunes did not answer for {_LONGEST:g} s")
            try:
                what, value = self._connection.recv()
            except (EOFError, OSError):
                code = self._process.wait()
                raise RuntimeError(f"the process that tunes has ended with exit code {code}") from None
            if what == LOG:
                _logger.info("%s", value)
            elif what == FAILED:
                raise _UnableError(value)
            else:
                assert isinstance(value, Tuned)
                return value
        raise _UnableError("it could not be started")

    def close(self) -> None:
        """End the process; what it has found is in the store."""
        ended = [] if self._compilers is None else [self._compilers]  # by the end of the process that has the sockets
        if self._connection is not None:
            self._messages.put(None)
            self._process.kill()
            self._connection.close()
            ended.insert(0, self._process)
        for process in ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)

    def _tell(self, connection: Connection[Setting | Told, Answer]) -> None:
        while (message := self._messages.get()) is not None:
            try:
                connection.send(message)
            except OSError:  # it has ended, which result() finds out
                return


def _start_compilers() -> tuple[subprocess.Popen[bytes] | None, list[socket.socket]]:
    """Compilers for the process that tunes; none where it is to do without, or has to start them itself."""
    from genesis.backends.cuda.driver.compile_processes import start_server
    from genesis.backends.cuda.engine import builders

    if settings.compilers == 0:
        return None, []
    try:
        return start_server(builders.number())
    except (OSError, ValueError):  # which it will say
        return None, []


def _setting(device: int | None) -> Setting:
    values = {**asdict(settings), "tune": 0.0, "check": ""}
    cache_dir = values.pop("cache_dir")
    logs = _logger.isEnabledFor(logging.INFO)
    return Setting(values, cache_dir.absolute(), get_float32_precision(), device, logs)
