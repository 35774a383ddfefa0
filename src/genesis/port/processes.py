"""redirect(): imports are redirected for the rest of the process, and in those that it starts by multiprocessing.

A forked process has what its parent had. One that is started by "spawn" or "forkserver" begins with an empty Python; to
prepare it, multiprocessing sends what get_preparation_data() returns. Here that is an object which prepares the process
when it is unpickled: it redirects imports, and then loads the main module.
"""

from __future__ import annotations

import multiprocessing.spawn
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from genesis.port.main_module import Main, execute
from genesis.port.redirect import RedirectingFinder

_plain_data: Callable[[str], dict[str, object]] = multiprocessing.spawn.get_preparation_data


class Redirection:
    """Holds what is redirected: the modules of packages, those found in folders, and the main one."""

    def __init__(self, packages: tuple[str, ...], folders: tuple[Path, ...], main: Main | None) -> None:
        self.packages, self.folders, self.main = packages, folders, main


_Prepare: TypeAlias = Callable[[dict[str, object], Redirection], dict[str, object]]


class _Preparation(dict[str, object]):
    """Prepares a process; unpickled, an empty dictionary, as all is done."""

    redirection: Redirection

    def __reduce__(self) -> tuple[_Prepare, tuple[dict[str, object], Redirection]]:
        return _prepare, (dict(self), self.redirection)


def redirect(redirection: Redirection) -> None:
    """Redirect imports from here on."""
    sys.meta_path.insert(0, RedirectingFinder(redirection.packages, redirection.folders))

    def preparation(name: str) -> dict[str, object]:
        plain = _plain_data(name)
        has_main = {plain.pop(key, None) for key in ("init_main_from_name", "init_main_from_path")} != {None}
        data = _Preparation(plain)
        data.redirection = redirection if has_main else Redirection(redirection.packages, redirection.folders, None)
        return data

    multiprocessing.spawn.get_preparation_data = preparation


def _prepare(data: dict[str, object], redirection: Redirection) -> dict[str, object]:
    """Prepare a new process as multiprocessing does, with the main module redirected."""
    multiprocessing.spawn.prepare(data)
    redirect(redirection)
    is_package = redirection.main is not None and (redirection.main.module or "").endswith("__main__")
    if redirection.main is not None and not is_package:  # multiprocessing leaves those of packages out, too
        execute(redirection.main, "__mp_main__")
    return {}
