"""Compilers in processes of their own: all cores compile, and this process keeps the interpreter to itself.

The processes are no children of multiprocessing, which would import the user's program anew in each of them.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_any

from genesis.backends.cuda.driver.compile_server import BEGUN, DONE, READY, Message
from genesis.backends.cuda.driver.deferred import Request, Ticket
from genesis.settings import settings

_logger = logging.getLogger("genesis.tuning")
_SERVER = "genesis.backends.cuda.driver.compile_server"
_PATIENCE = 5.0  # seconds in which workers end what they have begun
_pools: weakref.WeakSet[Processes] = weakref.WeakSet()


class Processes:
    """Workers that are started with the first request, unless there are some."""

    apart = True  # what is compiled does not disturb what this process measures

    def __init__(self, number: int, sockets: Sequence[int] = ()) -> None:
        """sockets: of workers that another process has started for this one."""
        self.number = number
        self.is_broken = False  # no process could be started
        self._server: subprocess.Popen[bytes] | None = None
        self._workers = [_Worker(Connection(each)) for each in sockets]
        self._queue: collections.deque[Ticket] = collections.deque()
        self._began = False  # one of the workers has said so
        _pools.add(self)

    def start(self) -> None:
        """Begin: Triton takes a second to import, in which there may be something else to do."""
        if self._workers or self.is_broken:
            return
        self._reap()
        self._began = False
        try:
            self._server, sockets = start_server(self.number)
        except (OSError, ValueError) as error:
            self._give_up(str(error))
        else:
            self._workers = [_Worker(Connection(each.detach())) for each in sockets]

    def submit(self, request: Request) -> Ticket:
        """The ticket of a request; done at once where it cannot leave this process."""
        ticket = Ticket(request)
        self._queue.append(ticket)
        self.start()
        self._hand_out()
        return ticket

    def wait(self, seconds: float) -> None:
        """Until something more is done, or for so long."""
        deadline = time.monotonic() + seconds
        while True:
            if self._queue:
                self.start()  # workers that were idle for long have ended
            self._hand_out()
            waiting = {worker.connection: worker for worker in self._workers}
            left = max(0.0, deadline - time.monotonic())
            came = [waiting[each] for each in wait_for_any(list(waiting), left)] if waiting else []  # type: ignore[index]
            num_done = sum(self._receive(worker) for worker in came)
            if num_done or not came:
                self._hand_out()
                return

    def drop(self) -> None:
        """Drop what has not been begun."""
        self._queue.clear()

    def close(self) -> None:
        """End all processes. The next request starts others."""
        for worker in self._workers:
            worker.connection.close()
        self._workers = []
        self._queue.clear()
        self._reap()

    def _reap(self) -> None:
        """The server ends when its workers have; killed if they take too long, they leave no parts of files."""
        if self._server is not None:
            try:
                self._server.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._server.pid, signal.SIGKILL)
                self._server.wait()
            self._server = None

    def _hand_out(self) -> None:
        free = [worker for worker in self._workers if worker.is_ready and worker.ticket is None]
        while self._queue and free:
            ticket = self._queue.popleft()
            try:
                message = _message(ticket.request)
            except Exception as error:  # of whatever its arguments' pickling raises
                _logger.debug("%s is compiled in this process: %s", ticket.request.name, error)
                ticket.done = True
                continue
            worker = free.pop()
            worker.ticket = ticket
            with contextlib.suppress(OSError):  # a dead one is found by _receive()
                worker.connection.send_bytes(message)

    def _receive(self, worker: _Worker) -> bool:
        """Is something more done?"""
        try:
            what, succeeded, seconds, text = worker.connection.recv()
        except (EOFError, OSError):
            return self._bury(worker)
        ticket = worker.ticket
        if what == READY:
            worker.is_ready = self._began = True
        elif what == BEGUN:
            worker.is_working = True
        elif ticket is not None:
            worker.ticket, worker.is_working = None, False
            ticket.done, ticket.seconds = True, seconds
            if not succeeded:
                _logger.debug("%s is compiled in this process: %s", ticket.request.name, text)
        return what == DONE

    def _bury(self, worker: _Worker) -> bool:
        """It died of what it compiled, or had nothing to do for long."""
        self._workers.remove(worker)
        worker.connection.close()
        ticket = worker.ticket
        if ticket is not None and not worker.is_working:  # it ended when the request was on its way
            self._queue.appendleft(ticket)
        elif ticket is not None:
            ticket.done = ticket.lost = True
            _logger.warning("a compiler died of %s", ticket.request.subject)
        if not self._workers and not self._began:
            self._give_up("the process ended at once")
            return True
        return ticket is not None and ticket.done

    def _give_up(self, why: str) -> None:
        """All is compiled in this process, by whoever asks for it."""
        _logger.warning("no processes to compile in: %s", why)
        self.is_broken = True
        for ticket in self._queue:
            ticket.done = True
        self._queue.clear()

    def _forget(self) -> None:
        """In a child of this process: the workers are its parent's."""
        for worker in self._workers:
            worker.connection.close()
        self._workers, self._server = [], None
        self._queue.clear()


def start_server(number: int) -> tuple[subprocess.Popen[bytes], list[socket.socket]]:
    """Start so many workers. They end when their sockets close, and the server, which is returned too, after them.

    Raises: OSError or ValueError: that is not possible.
    """
    pairs = []
    try:
        pairs = [socket.socketpair() for _ in range(number)]
        theirs = [their.fileno() for _, their in pairs]
        server = subprocess.Popen(
            [*command(_SERVER), *map(str, theirs)], pass_fds=theirs, env=_environment(), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=None if settings.debug >= 1 else subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, ValueError):
        for mine, _ in pairs:
            mine.close()
        raise
    finally:
        for _, their in pairs:
            their.close()
    return server, [mine for mine, _ in pairs]


class _Worker:
    def __init__(self, connection: Connection[bytes, Message]) -> None:
        self.connection = connection
        self.is_ready = False
        self.ticket: Ticket | None = None  # what it has been given
        self.is_working = False  # on that


class Threads:
    """Compilers in threads of this process, where there can be no others. Nothing should be measured meanwhile."""

    apart = False
    is_broken = False

    def __init__(self, number: int) -> None:
        self.number = number
        self._running: dict[Future[float], Ticket] = {}
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.number, thread_name_prefix="genesis build")

    def submit(self, request: Request) -> Ticket:
        self.start()
        assert self._pool is not None
        ticket = Ticket(request)
        self._running[self._pool.submit(_timed, request)] = ticket
        return ticket

    def wait(self, seconds: float) -> None:
        """Until something more is done, or for so long."""
        for future in wait(self._running, seconds, FIRST_COMPLETED).done:
            ticket = self._running.pop(future)
            ticket.done = True
            if future.exception() is None:  # else whoever asks for it compiles again, and gets the error
                ticket.seconds = future.result()

    def drop(self) -> None:
        """Drop what has not been begun."""
        for future in self._running:
            future.cancel()
        self._running.clear()

    def close(self) -> None:
        self.drop()
        if self._pool is not None:
            self._pool.shutdown(wait=False)
            self._pool = None


def _timed(request: Request) -> float:
    began = time.monotonic()
    request.call()
    return time.monotonic() - began


def _message(request: Request) -> bytes:
    import pickle

    from triton import knobs

    return pickle.dumps((settings.cache_dir.absolute(), os.path.abspath(knobs.cache.dir), request.pickled()))


def command(module: str) -> list[str]:
    """Start this Python anew with a module of Genesis. Raises: OSError: that is not possible."""
    if not sys.executable or not hasattr(os, "fork"):
        raise OSError("this Python cannot be started anew")
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    # -P: a file triton.py in the working directory is not what is meant
    return [sys.executable, *flags, "-P", "-m", module]


def search_path() -> dict[str, str]:
    """The variable by which another Python finds the same modules."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _environment() -> dict[str, str]:
    """The same modules are found there; no device is used, and no library starts threads, which a fork would lose."""
    quiet = {"GENESIS_CUDA": "off", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **quiet, "GENESIS_DEBUG": "0", "GENESIS_CHECK": "", **search_path()}


def _forget_all() -> None:
    for pool in list(_pools):
        pool._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
