"""Compiling elsewhere: a kernel that is not on the disk yet is asked for, and what needs it is tried again later.

Inside deferring(compilers), compile_kernel() and Program.compiled() raise NotCompiledYet where they would compile. The
request goes to the compilers, whose result lies in the cache on the disk when its ticket is done; then the same call
finds it there. So one thread keeps many compilers busy, and runs nothing beside what it measures.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import io
import operator
import pickle
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from types import NotImplementedType
from typing import NamedTuple, Protocol, TypeVar, TypeVarTuple

from genesis.backends.cuda.driver.interface import KernelError

Subject = TypeVar("Subject")
Others = TypeVarTuple("Others")


class Request(NamedTuple):
    """call() compiles subject, and leaves the result in the cache on the disk. name: of the function that does."""

    key: Hashable  # equal for equal results
    name: str
    subject: object
    call: Callable[[], object]

    @classmethod
    def of(
        cls, key: Hashable, function: Callable[[Subject, *Others], object], subject: Subject, *args: *Others
    ) -> Request:
        """function(subject, *args) compiles."""
        return cls(key, function.__name__, subject, functools.partial(function, subject, *args))

    def pickled(self) -> bytes:
        """The call for a process that can import all of it. Raises: what pickle does, where that is not possible."""
        file = io.BytesIO()
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(self.call)
        return file.getvalue()


@dataclasses.dataclass(eq=False)
class Ticket:
    """A request on its way."""

    request: Request
    done: bool = False
    lost: bool = False  # the compiler died of it
    seconds: float = 0.0  # of the compiler


class Compilers(Protocol):
    """Whoever compiles requests."""

    def submit(self, request: Request) -> Ticket: ...


class NotCompiledYet(BaseException):
    """Signal that a ticket's kernel has to be waited for.

    It is no Exception: who handles errors of a kernel must not take it for one.
    Code that it passes through can be called again.
    """

    def __init__(self, ticket: Ticket) -> None:
        super().__init__(ticket)
        self.ticket = ticket


class _Thread(threading.local):
    compilers: Compilers | None = None
    tickets: dict[Hashable, Ticket]


_thread = _Thread()


@contextmanager
def deferring(compilers: Compilers, tickets: dict[Hashable, Ticket]) -> Iterator[None]:
    """Inside the with block, this thread does not compile. tickets: of all requests so far, kept by the caller."""
    before = _thread.compilers
    _thread.compilers, _thread.tickets = compilers, tickets
    try:
        yield
    finally:
        _thread.compilers = before


def is_deferring() -> bool:
    return _thread.compilers is not None


def require(request: Request) -> None:
    """Ask for what is to be compiled now; returns when it has been. Only inside deferring().

    Raises: NotCompiledYet; KernelError: the compiler died of it, as this process would.
    """
    assert _thread.compilers is not None
    ticket = _thread.tickets.get(request.key)
    if ticket is None:
        ticket = _thread.tickets[request.key] = _thread.compilers.submit(request)
    if not ticket.done:
        raise NotCompiledYet(ticket)
    if ticket.lost:
        raise KernelError(f"{request.name}: the compiler died of {request.subject}")


class _Pickler(pickle.Pickler):
    """Triton's functions go by name: they hold the Python function that they stand in the place of."""

    def reducer_override(
        self, value: object
    ) -> tuple[Callable[[str, str], object], tuple[str, str]] | NotImplementedType:
        function = getattr(value, "fn", None)
        if function is None or not hasattr(value, "cache_key") or isinstance(value, type):
            return NotImplemented
        return _imported, (function.__module__, function.__qualname__)


def _imported(module: str, name: str) -> object:
    return operator.attrgetter(name)(importlib.import_module(module))
