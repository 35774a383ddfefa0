"""Finds and runs the examples in docstrings and in Markdown files.

In a docstring, an example may follow the word on the same line, `Example: >>> genesis.ones(2)`, or stand below it.
In a Markdown file, every block marked `python` runs, all blocks of a file in one namespace from top to bottom; a
fragment that only shows a shape of things is marked `py`.
"""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "genesis"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """The source of one code block, and the line of the file on which it starts."""

    source: str
    line: int


class ExampleParser(doctest.DocTestParser):
    """Doctest's parser, for which `Example: >>> code` is the same as `>>> code`."""

    def parse(self, string: str, name: str = "<string>") -> list[str | doctest.Example]:
        return super().parse(re.sub(r"^( *)Examples?: +>>> ", r"\1>>> ", string, flags=re.MULTILINE), name)


def namespace() -> dict[str, Any]:
    """The names that examples in docstrings use without importing them."""
    return {
        "genesis": importlib.import_module("genesis"),
        "nn": importlib.import_module("genesis.nn"),
        "optim": importlib.import_module("genesis.optim"),
        "F": importlib.import_module("genesis.nn.functional"),
    }


def modules_with_examples(package: Path = PACKAGE) -> list[str]:
    """Names of the modules in whose source an example stands; the others need not be imported."""
    names = []
    for path in sorted(package.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(package.parent).with_suffix("").parts
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def run_docstrings(module_name: str, names: dict[str, Any]) -> tuple[int, str]:
    """Run the docstring examples of a module; gives how many there are, and the report of those that failed."""
    module = importlib.import_module(module_name)
    finder = doctest.DocTestFinder(parser=ExampleParser())
    return _run(finder.find(module, extraglobs=names))


def blocks(text: str) -> list[Block]:
    """The blocks of a Markdown text that are marked `python`."""
    fence = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [Block(match[1], text.count("\n", 0, match.start(1)) + 1) for match in fence.finditer(text)]


def run_markdown(path: Path) -> str:
    """Run the blocks of a Markdown file; gives the report of what failed in blocks written with >>>."""
    names: dict[str, Any] = {"__name__": path.stem}
    report = ""
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.source.lstrip().startswith(">>> "):
            test = ExampleParser().get_doctest(block.source, names, path.name, str(path), block.line - 1)
            report += _run([test], clear_globals=False)[1]
            names.update(test.globs)
        else:  # the empty lines before it make the line numbers of a traceback those of the file
            exec(compile("\n" * (block.line - 1) + block.source, str(path), "exec"), names)
    return report


def _run(tests: list[doctest.DocTest], clear_globals: bool = True) -> tuple[int, str]:
    runner = doctest.DocTestRunner(verbose=False, optionflags=FLAGS)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append, clear_globs=clear_globals)
    return runner.tries, "".join(report)
