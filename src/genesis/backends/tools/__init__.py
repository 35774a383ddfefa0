"""Tools that are backends: each puts something around every op of a backend. The settings say which are there."""

from __future__ import annotations

from genesis.backends import registry
from genesis.backends.backend import Backend
from genesis.backends.tools import nan_checker, timer
from genesis.settings import settings


def install() -> None:
    """Put the tools that the settings ask for in front of the backends; without any, NDArray calls the plain ones."""
    registry.equip(equipped)


def equipped(backend: Backend) -> Backend:
    """The backend with the tools in force around it; the timer is innermost, so that it times the op alone."""
    result = backend
    if settings.debug >= 2:
        result = result.wrapped(timer.around(backend))
    if settings.check == "nan":
        result = result.wrapped(nan_checker.around(backend))
    return result
