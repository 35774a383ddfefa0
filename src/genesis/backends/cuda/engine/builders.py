"""Keep compilers busy while one thread measures: jobs run here, and what they lack is compiled elsewhere.

A job is called again when the kernel that it lacked has been compiled, until it ends. Jobs only run when asked to, so
none disturbs what is being measured.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence

from genesis.backends.cuda.driver import KernelError
from genesis.backends.cuda.driver.compile_processes import Processes, Threads
from genesis.backends.cuda.driver.deferred import NotCompiledYet, Ticket, deferring
from genesis.errors import OutOfMemoryError
from genesis.settings import on_change, settings

Job = Callable[[], None]
AnyCompilers = Processes | Threads
_MOST = 16  # compilers: the measuring thread cannot take up what more of them compile


def number() -> int:
    """How many compilers work side by side: settings.compilers, by default one per core that this process may use."""
    if settings.compilers is not None:
        return max(1, settings.compilers)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    local = os.environ.get("LOCAL_WORLD_SIZE", "")  # torchrun's ranks on this machine, which tune at the same time
    return max(1, min(cores // (int(local) if local.isdigit() and int(local) else 1), _MOST))


_shared: AnyCompilers | None = None
_lock = threading.Lock()


def compilers() -> AnyCompilers:
    """This process' compilers, which start with the first request; threads where there can be no processes."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = Threads(number()) if settings.compilers == 0 else Processes(number())
        elif _shared.is_broken:
            _shared = Threads(number())
        return _shared


def adopt(sockets: Sequence[int]) -> None:
    """Take over compilers that another process has started for this one, which has none yet."""
    global _shared
    with _lock:
        _shared = Processes(len(sockets), sockets)


def close() -> None:
    """End the compilers; the next request starts others."""
    with _lock:
        if _shared is not None:
            _shared.close()


class Builders:
    """Jobs, and what they wait for. Ends with drop()."""

    def __init__(self, compilers: AnyCompilers | None) -> None:
        """compilers: None: jobs compile here, and end at once."""
        self._compilers = compilers
        self._tickets: dict[Hashable, Ticket] = {}
        self._waiting: list[tuple[Job, Ticket]] = []
        self._rehearsed: set[str] = set()
        self._open: list[Ticket] = []  # what others wait for
        self.apart = compilers is not None and compilers.apart  # may something be measured while others are compiled?
        self.number = 1 if compilers is None else compilers.number

    @property
    def num_busy(self) -> int:
        """Tickets and jobs that wait."""
        self._open = [ticket for ticket in self._open if not ticket.done]
        return len(self._waiting) + len(self._open)

    @property
    def num_compiled(self) -> int:
        """Return what others compiled for these jobs."""
        return sum(ticket.seconds > 0 for ticket in self._tickets.values())

    @property
    def seconds(self) -> float:
        """The time that took them, together."""
        return sum(ticket.seconds for ticket in self._tickets.values())

    def attempt(self, job: Job) -> Ticket | None:
        """Run a job; if it lacks a kernel, the ticket to wait for before the next attempt."""
        ticket = self._lacks(job)
        if ticket is not None:
            self._open.append(ticket)
        return ticket

    def start(self, job: Job) -> None:
        """Run a job now, and again in advance() as soon as what it lacks has been compiled."""
        ticket = self._lacks(job)
        if ticket is not None:
            self._waiting.append((job, ticket))

    def rehearse(self, steps: Mapping[str, Callable[[], object]]) -> None:
        """Have compiled what these steps run, unless one of that name has been here. Their results do not matter."""
        for name, step in steps.items():
            if self._compilers is not None and name not in self._rehearsed:
                self._rehearsed.add(name)
                self.start(functools.partial(_tried, step))

    def poll(self) -> None:
        """Give compilers that are done the next request."""
        if self._compilers is not None:
            self._compilers.wait(0.0)

    def advance(self, seconds: float) -> None:
        """Run the jobs whose kernels have come; wait for the first of them for so long."""
        if self._compilers is not None:
            self._compilers.wait(seconds)
        came = [job for job, ticket in self._waiting if ticket.done]
        self._waiting = [(job, ticket) for job, ticket in self._waiting if not ticket.done]
        for job in came:
            self.start(job)

    def drop(self) -> None:
        """Nobody waits any more; what is being compiled now is finished, and found on the disk."""
        self._waiting.clear()
        self._open.clear()
        if self._compilers is not None:
            self._compilers.drop()

    def _lacks(self, job: Job) -> Ticket | None:
        if self._compilers is None:
            job()
            return None
        try:
            with deferring(self._compilers, self._tickets):
                job()
        except NotCompiledYet as lacking:
            return lacking.ticket
        return None


def _tried(step: Callable[[], object]) -> None:
    with contextlib.suppress(KernelError, OutOfMemoryError):  # whoever is in need of it will say so
        step()


_followed: int | None = None


def _follow_settings() -> None:
    global _shared, _followed
    if settings.compilers != _followed:
        close()
        _shared, _followed = None, settings.compilers


on_change(_follow_settings)
