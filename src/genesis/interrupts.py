"""Changes that signals cannot interrupt half way.

Python runs signal handlers between any two instructions of the main thread, and they may raise: Ctrl-C is a
KeyboardInterrupt. An atomic change is prepared on the side and made by at_once(), in a single instruction; one that
takes more is made while signals are held back, or undone.
"""

from __future__ import annotations

# The module signal wraps these in enums, at ten times the cost: an optimizer's step would feel it.
import _signal  # type: ignore[import-not-found]
import collections
import itertools
import operator
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Call = tuple[object, ...]  # a function and its arguments
Handler = Callable[[int, FrameType | None], object]

# Those whose handlers are likely to raise: Ctrl-C, the end of a job, a time limit.
_SIGNALS = [int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)]


def at_once(calls: Sequence[Call]) -> None:
    """Call built-in functions in a single instruction: nothing can be raised between the calls.

    Example:
        >>> from genesis.interrupts import at_once
        >>> names, ages = ["Ada"], {"Ada": 36}
        >>> at_once([(names.append, "Alan"), (ages.update, {"Alan": 41})])
        >>> names, ages
        (['Ada', 'Alan'], {'Ada': 36, 'Alan': 41})
    """
    collections.deque(itertools.starmap(operator.call, calls), 0)


def each(function: Callable[..., object], *iterables: Iterable[object]) -> Call:
    """A call for at_once(): a built-in function with the items of each iterable in turn."""
    return collections.deque, map(function, *iterables), 0


def replacing(container: dict[K, V] | list[V] | set[V], contents: Iterable[object]) -> list[Call]:
    """Calls for at_once() that replace the contents of a dictionary, list or set."""
    return [(container.clear,), (container.extend if isinstance(container, list) else container.update, contents)]


def finish(change: Callable[[], None]) -> None:
    """Complete a restartable change, then raise what was raised inside."""
    try:
        change()
    except BaseException:
        change()
        raise


class _Waiting:
    """Replaces signal handlers: holds signals back, or passes them on.

    leaving: the code of a function in whose own instructions signals are always held.
    """

    __slots__ = ("_leaving", "arrived", "handlers", "holds")

    def __init__(self, holds: bool, leaving: CodeType | None = None) -> None:
        self.holds, self._leaving = holds, leaving
        self.handlers: dict[int, Handler] = {}
        self.arrived: list[int] = []

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.holds or (frame is not None and frame.f_code is self._leaving):
            self.arrived.append(signum)
        else:
            self.handlers[signum](signum, frame)

    def install(self) -> None:
        """Replace the handlers, in the main thread: the only one in which handlers run."""
        if threading.get_ident() != threading.main_thread().ident:
            return
        for signum in _SIGNALS:
            handler = _signal.getsignal(signum)
            if callable(handler) and not _holds(handler):
                self.handlers[signum] = handler
                _signal.signal(signum, self)

    def release(self) -> None:
        """Restore the handlers."""
        for signum, handler in self.handlers.items():
            if _signal.getsignal(signum) is self:  # and not one that was set since
                _signal.signal(signum, handler)

    def deliver(self) -> None:
        """Raise the signals that were held."""
        while self.arrived:
            signal.raise_signal(self.arrived.pop(0))


class held:  # noqa: N801  (a with block, as no_grad is)
    """Hold signals during a with block; their handlers run at its end.

    Example:
        >>> from genesis.interrupts import held
        >>> done = []
        >>> try:
        ...     with held():
        ...         signal.raise_signal(signal.SIGINT)
        ...         done.append("all")
        ... except KeyboardInterrupt:
        ...     done.append("interrupted")
        >>> done
        ['all', 'interrupted']
    """

    # Itself stands for the handlers: an optimizer's step has no time for an object more.
    __slots__ = ("_arrived", "_handlers")

    def __enter__(self) -> None:
        self._arrived: list[int] = []
        self._handlers: list[tuple[int, Handler]] = []
        if threading.get_ident() != threading.main_thread().ident:
            return
        try:
            for signum in _SIGNALS:
                handler = _signal.getsignal(signum)
                if callable(handler) and not _holds(handler):
                    self._handlers.append((signum, handler))
                    _signal.signal(signum, self)
        except BaseException:
            finish(self._release)
            raise

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        self._arrived.append(signum)

    def __exit__(self, *exception: object) -> None:
        try:
            for signum, handler in self._handlers:
                _signal.signal(signum, handler)
        except BaseException:
            finish(self._release)
            raise
        for signum in self._arrived:
            signal.raise_signal(signum)

    def _release(self) -> None:
        for signum, handler in self._handlers:
            _signal.signal(signum, handler)


def _holds(handler: object) -> bool:
    return type(handler) is held or (type(handler) is _Waiting and handler.holds)


class Whole(Generic[T]):
    """An atomic with block: if anything raises inside, it is undone.

    Signals may interrupt the block itself; once it is being left, they wait.
    """

    def begin(self) -> T:
        """Return the target of `as`. Changes nothing that undo() does not undo."""
        raise NotImplementedError

    def commit(self) -> None:
        """End a block that did not raise; takes effect in one instruction. If it raises, undo() is called."""

    def undo(self, error: BaseException) -> None:
        """Restore everything, unless it was committed. May be called again after an interruption."""
        raise NotImplementedError

    def __enter__(self) -> T:
        self._waiting = _Waiting(holds=False, leaving=Whole.__exit__.__code__)
        try:
            self._waiting.install()
            return self.begin()
        except BaseException as error:
            self._waiting.holds = True
            self._undone(error)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._waiting.holds = True
            if error is None:
                self.commit()
            else:
                self.undo(error)
            self._waiting.release()
        except BaseException as raised:
            self._undone(error or raised)
            raise
        self._waiting.deliver()

    def _undone(self, error: BaseException) -> None:
        try:
            finish(lambda: self.undo(error))
        finally:
            finish(self._waiting.release)
        self._waiting.deliver()
