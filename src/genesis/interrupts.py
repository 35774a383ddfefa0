"""Changes that no interrupt cuts in two.

Python runs the handlers of signals between two instructions of the main thread, wherever that is, and they may raise:
Ctrl-C is a KeyboardInterrupt. What must happen whole is prepared aside and then done by at_once(), a single
instruction; what takes more than one is done while signals are held back, or undone.
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
    """Make these calls of built-in functions in a single instruction: nothing can be raised between them.

    Example:
        >>> from genesis.interrupts import at_once
        >>> names, ages = ["Ada"], {"Ada": 36}
        >>> at_once([(names.append, "Alan"), (ages.update, {"Alan": 41})])
        >>> names, ages
        (['Ada', 'Alan'], {'Ada': 36, 'Alan': 41})
    """
    collections.deque(itertools.starmap(operator.call, calls), 0)


def each(function: Callable[..., object], *iterables: Iterable[object]) -> Call:
    """The call, for at_once(), of a built-in function with the items of each iterable in turn."""
    return collections.deque, map(function, *iterables), 0


def replacing(container: dict[K, V] | list[V] | set[V], contents: Iterable[object]) -> list[Call]:
    """The calls, for at_once(), that give a dictionary, list or set other contents."""
    return [(container.clear,), (container.extend if isinstance(container, list) else container.update, contents)]


def finish(change: Callable[[], None]) -> None:
    """Make a change that has the same result when it is begun again: what is raised inside comes after its end."""
    try:
        change()
    except BaseException:
        change()
        raise


class _Waiting:
    """Stands for the handlers of signals: notes them, or passes them on while it does not hold them.

    leaving: the code of a function, in whose own instructions signals are held in any case.
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
        """Take the place of the handlers: in the main thread, the only one in which handlers run."""
        if threading.get_ident() != threading.main_thread().ident:
            return
        for signum in _SIGNALS:
            handler = _signal.getsignal(signum)
            if callable(handler) and not _holds(handler):
                self.handlers[signum] = handler
                _signal.signal(signum, self)

    def release(self) -> None:
        """Give the places back."""
        for signum, handler in self.handlers.items():
            if _signal.getsignal(signum) is self:  # and not one that was set since
                _signal.signal(signum, handler)

    def deliver(self) -> None:
        """Have the handlers called that had to wait."""
        while self.arrived:
            signal.raise_signal(self.arrived.pop(0))


class held:  # noqa: N801  (a with block, as no_grad is)
    """A with block in which signals wait; what their handlers raise is raised at its end.

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
    """A with block that happens whole or not at all: where anything raises inside, it is undone.

    Signals may interrupt it; from the first instruction of leaving it, they wait until that is done.
    """

    def begin(self) -> T:
        """What `as` names. Changes nothing that undo() does not undo."""
        raise NotImplementedError

    def commit(self) -> None:
        """The end of a block that did not raise; takes effect in one instruction. Where it raises, undo() is called."""

    def undo(self, error: BaseException) -> None:
        """Put everything back, unless it was committed. Called again, where it was interrupted, it does the same."""
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
