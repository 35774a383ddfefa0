"""Kernels compiled ahead, for a wheel: what pyproject.toml says about them, and the cubins beside the sources.

    [tool.genesis.kernels]
    architectures = ["sm_80", "sm_90"]

    [[tool.genesis.kernels.modules]]
    name = "blur"                        # as in load()
    sources = ["src/package/blur.cu"]
    functions = ["blur<float>"]          # functions, options, include_dirs: as in load(), if it is given them

The .cu files go into the wheel too: load() takes a cubin only if it was made of the very source that it is given, and
compiles that for any other architecture.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NotRequired, TypedDict

from genesis.cuda.modules import load
from genesis.errors import describe

_KEYS = {"name", "sources", "functions", "options", "include_dirs"}


class ModuleTable(TypedDict):
    """A table [[tool.genesis.kernels.modules]]."""

    name: str
    sources: list[str]
    functions: NotRequired[list[str]]
    options: NotRequired[list[str]]
    include_dirs: NotRequired[list[str]]


class Table(TypedDict):
    """The table [tool.genesis.kernels]."""

    architectures: NotRequired[list[str]]
    modules: list[ModuleTable]


def build(root: Path, architectures: Sequence[str] | None = None) -> Iterator[Path]:
    """Compile the kernels of the project in root; gives each file when it is written. Needs no GPU.

    Args:
        architectures: "sm_90", …; by default those of pyproject.toml.
    Raises: ValueError: pyproject.toml lacks something or says too much; CompileError: a source does not compile;
        FileNotFoundError: there is no pyproject.toml, or no source.
    """
    table = _table(root / "pyproject.toml")
    chosen = table.get("architectures", []) if architectures is None else architectures
    for arch in chosen:
        if not re.fullmatch(r"sm_\d+[af]?", arch):
            raise ValueError(describe("kernels build", "architectures", "names such as sm_90", arch))
    if not chosen:
        raise ValueError(describe("kernels build", "architectures", "at least one, such as sm_90", "none"))
    for entry in table["modules"]:
        sources = [root / source for source in entry["sources"]]
        folders = [root / folder for folder in entry.get("include_dirs", [])]
        module = load(entry["name"], sources, entry.get("functions"), entry.get("options", ()), folders)
        for arch in chosen:
            yield from module.build_ahead(arch)


def _table(path: Path) -> Table:
    """The table [tool.genesis.kernels], checked."""
    project = tomllib.loads(path.read_text(encoding="utf-8"))
    table = project.get("tool", {}).get("genesis", {}).get("kernels")
    if table is None or not table.get("modules"):
        raise ValueError(f"{path}: expected [[tool.genesis.kernels.modules]] with name and sources, found none")
    for entry in table["modules"]:
        unknown, missing = entry.keys() - _KEYS, {"name", "sources"} - entry.keys()
        if unknown or missing:
            problem = f"unknown: {', '.join(sorted(unknown))}" if unknown else f"missing: {', '.join(sorted(missing))}"
            raise ValueError(f"{path}: tool.genesis.kernels.modules takes {', '.join(sorted(_KEYS))}; {problem}")
    found: Table = table
    return found
