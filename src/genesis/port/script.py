"""run_script(): a PyTorch script as it stands, on Genesis."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from genesis.errors import describe
from genesis.port.redirect import NEVER, RedirectingFinder, RedirectingLoader, builtins_of_redirected


def run_script(path: Path, arguments: Sequence[str] = (), also: Sequence[str] = ()) -> None:
    """Run a script as `python path arguments` would, with Genesis as its torch.

    The imports of the script, of modules beside it and of the packages in also are redirected, for the rest of the
    process: threads and exit handlers of the script outlive this call. Processes that the script starts by "spawn"
    have PyTorch; forked ones, which are Linux' default, have Genesis.

    Args:
        path: the script.
        arguments: its sys.argv[1:].
        also: installed packages that shall use Genesis too, as "timm".
    Raises: FileNotFoundError, ValueError: see check_script; and what the script raises.
    """
    check_script(path, also)
    folder = path.resolve().parent
    sys.meta_path.insert(0, RedirectingFinder(also, (folder,)))
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(folder))
    loader = RedirectingLoader("__main__", str(path))
    module = ModuleType("__main__")
    vars(module).update(__file__=str(path), __loader__=loader, __builtins__=builtins_of_redirected())
    sys.modules["__main__"] = module
    exec(loader.source_to_code(path.read_bytes(), str(path)), vars(module))  # no bytecode is left beside it


def check_script(path: Path, also: Sequence[str]) -> None:
    """Raise FileNotFoundError if there is no such script, ValueError if a package can't be redirected."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    for package in also:
        if not package.isidentifier() or package in NEVER:
            raise ValueError(describe("run", "also", "packages that use torch", repr(package)))
        if package in sys.modules:
            raise ValueError(describe("run", "also", "packages that are not imported yet", repr(package)))
