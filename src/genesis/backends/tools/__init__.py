"""Tools that are backends: each puts something around every op of a backend.

The settings say which are there, and recording() adds one for a with block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from genesis.backends import registry
from genesis.backends.backend import Backend
from genesis.backends.tools import cpu_checker, nan_checker, recorder, timer
from genesis.backends.tools.recorder import Call as Call
from genesis.settings import settings

_recorders: list[Callable[[Call], None]] = []


def install() -> None:
    """Put the tools that the settings ask for in front of the backends; without any, NDArray calls the plain ones."""
    registry.equip(equipped)


@contextmanager
def recording(record: Callable[[Call], None]) -> Iterator[None]:
    """Tell record of every op that runs inside the with block, in any thread."""
    _recorders.append(record)
    install()
    try:
        yield
    finally:
        _recorders.remove(record)
        install()


def equipped(backend: Backend) -> Backend:
    """The backend with the tools in force around it; those that take times are innermost: they time the op alone."""
    result = backend
    for record in _recorders:
        result = result.wrapped(recorder.around(backend, record))
    if settings.debug >= 2:
        result = result.wrapped(timer.around(backend))
    if settings.check == "nan":
        result = result.wrapped(nan_checker.around(backend))
    if settings.check == "cpu" and backend.name != "cpu":
        result = result.wrapped(cpu_checker.around(backend, lambda: registry.get("cpu")))
    return result
