"""The main module of a redirected run, and of the processes that it starts."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from genesis.errors import describe
from genesis.port.redirect import RedirectingLoader, builtins_of_redirected


class Main(NamedTuple):
    """The main module: its file, and its name if it runs as a module."""

    path: str
    module: str | None


def execute(main: Main, name: str) -> None:
    """Load it as sys.modules[name]: "__main__", or "__mp_main__" in a process that it started."""
    spec = None if main.module is None else spec_of(main.module)
    module = ModuleType(name)
    loader = RedirectingLoader(name, main.path)
    vars(module).update(__file__=main.path, __loader__=loader, __builtins__=builtins_of_redirected())
    vars(module).update(__cached__=None, __spec__=spec, __package__=spec.parent if spec else None)
    sys.modules[name] = sys.modules["__main__"] = module
    exec(loader.source_to_code(Path(main.path).read_bytes(), main.path), vars(module))  # no bytecode is left beside it


def spec_of(name: str) -> ModuleSpec:
    """The module of this name, or the `__main__` of this package; packages above it are imported."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = None
    except ValueError:  # sys.modules has something of that name, without a spec
        spec = None
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise ImportError(describe("run", "-m", "a module with source, or a package with __main__.py", repr(name)))
    return spec
