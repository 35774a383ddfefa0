"""Processes that run programs together: started once, by a server that has imported torch before it forks.

A program is a function program(rank, size, **arguments) of a module; what it returns comes back, an exception as text.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from tests import forkserver

TIMEOUT = 60.0  # seconds that a call of a group, and a program, may take
IMPORTING = 300.0  # seconds that the import of a program's module may take, where nothing of it is in memory


class RanksError(AssertionError):
    """A program raised on some ranks: the message has their tracebacks."""


class Ranks:
    """So many processes with a process group; each run() is one program on all of them.

    Args:
        timeout: of the group's calls.
        environment: variables that they see.
    """

    def __init__(self, size: int, timeout: float = TIMEOUT, environment: dict[str, str] | None = None) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory()
        store = os.path.join(self._folder.name, "store")
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            here, there = forkserver.context.Pipe()
            arguments = (there, rank, size, store, timeout, environment or {})
            process = forkserver.context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def run(self, program: str, **arguments: Any) -> list[Any]:
        """The results of all ranks. Raises: RanksError: with what any of them raised."""
        found = self.outcomes(program, **arguments)
        failed = [f"rank {rank}: {text}" for rank, (is_right, text) in enumerate(found) if not is_right]
        if failed:
            raise RanksError("\n".join(failed))
        return [result for _, result in found]

    def outcomes(self, program: str, **arguments: Any) -> list[tuple[bool, Any]]:
        """Of each rank, whether the program returned, and its result, or the traceback; (False, None) if it died."""
        self._send((program, arguments))
        self._received(f"importing {program}", IMPORTING)
        self._send(None)  # begin, all at once: calls wait for the last rank
        return self._received(program, TIMEOUT)

    def _send(self, message: object) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # of a rank that has died
                pipe.send(message)

    def _received(self, doing: str, seconds: float) -> list[tuple[bool, Any]]:
        """The answers of all ranks; (False, None) of those that have died."""
        end = time.monotonic() + seconds
        found: list[tuple[bool, Any]] = []
        for rank, pipe in enumerate(self._pipes):
            try:
                if not pipe.poll(max(0.0, end - time.monotonic())):
                    raise RanksError(f"rank {rank} is still at {doing} after {seconds:g} s")
                found.append(pipe.recv())
            except (EOFError, OSError):
                found.append((False, None))
        return found

    def close(self) -> None:
        self._send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


@contextlib.contextmanager
def ranks(size: int, **options: Any) -> Iterator[Ranks]:
    started = Ranks(size, **options)
    try:
        yield started
    finally:
        started.close()


@functools.cache
def _program(name: str) -> Any:
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(f"tests.distributed.{module or 'programs'}"), function)


def _serve(pipe: Connection, rank: int, size: int, store: str, timeout: float, environment: dict[str, str]) -> None:
    """A rank: runs programs until there are none."""
    os.environ.update(environment)
    import torch

    from genesis import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"file://{store}", timeout, size, rank)
    for program, arguments in iter(pipe.recv, None):
        is_there, found = _outcome(_program, program)
        pipe.send((is_there, None))
        pipe.recv()
        pipe.send(_outcome(found, rank, size, **arguments) if is_there else (False, found))
    distributed.destroy_process_group()


def _outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[bool, Any]:
    """Whether it returned, and its result or the traceback."""
    try:
        return True, function(*args, **kwargs)
    except BaseException:
        return False, traceback.format_exc()
