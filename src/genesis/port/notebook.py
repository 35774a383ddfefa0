"""rewrite_notebook(): the code cells of a Jupyter notebook rewritten as one program; all else in it stays."""

from __future__ import annotations

import ast
import itertools
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple, TypedDict

from genesis.port.rewrite import rewrite

_CELL, _MAGIC = "# --- cell of the notebook ---", "pass  # magic of the notebook "
_MAGIC_LINE = re.compile(r"([ \t]*)([%!?].*|[\w.]+\?{1,2}[ \t]*)")
_OF_PYTHON = re.compile(r"%%(time|timeit|capture|prun)\b")  # magics of whole cells that run the rest as Python


class RewrittenNotebook(NamedTuple):
    """A notebook whose imports are rewritten, what in it has no counterpart, and cells that could not be parsed."""

    text: str
    gaps: list[str]  # "cell 3, line 2: torch.vmap: …"
    unread: list[str]


def rewrite_notebook(text: str) -> RewrittenNotebook:
    """Rewrite the imports of PyTorch in the code cells of a notebook to Genesis. Lines with magics stay as they are.

    Args:
        text: the file's text: JSON, in format 4 or later.
    Returns: the text, formatted as before; the places that need a change by hand; and the cells left as they are, as
        they are no Python.
    Raises: ValueError: it is no notebook of Python.

    Example:
        >>> import json
        >>> from genesis.port import rewrite_notebook
        >>> cell = {"cell_type": "code", "source": ["%matplotlib inline\\n", "import torch.nn as nn"]}
        >>> json.loads(rewrite_notebook(json.dumps({"cells": [cell]})).text)["cells"][0]["source"]
        ['%matplotlib inline\\n', 'import genesis.nn as nn']
    """
    notebook = _parsed(text)
    magics: list[str] = []
    masked: dict[int, str] = {}  # by the cell's number, from 1
    unread = []
    for number, cell in enumerate(notebook["cells"], 1):
        source = "".join(cell.get("source", "")) if cell.get("cell_type") == "code" else ""
        if not source.strip() or (source.startswith("%%") and not _OF_PYTHON.match(source)):
            continue
        code = "\n".join(_masked(source, magics))
        try:
            ast.parse(code)
            masked[number] = code
        except (SyntaxError, ValueError) as error:
            unread.append(f"cell {number}: not changed, as it cannot be parsed: {error}")
    program = "".join(f"{_CELL}\n{code}\n" for code in masked.values())
    result = rewrite(program)
    starts = list(itertools.accumulate((code.count("\n") + 2 for code in masked.values()), initial=1))
    numbers = list(masked)
    gaps = []
    for gap in result.gaps:
        place = bisect_right(starts, gap.line) - 1
        gaps.append(f"cell {numbers[place]}, line {gap.line - starts[place]}: {gap.name}: {gap.advice}")
    rewritten = result.text.split(f"{_CELL}\n")[1:]
    for number, code in zip(numbers, rewritten, strict=True):
        _replace(notebook["cells"][number - 1], "\n".join(_unmasked(code.removesuffix("\n"), magics)))
    changes = result.text != program
    return RewrittenNotebook(_formatted(notebook, text) if changes else text, gaps, unread)


class _Cell(TypedDict, total=False):
    """The part of a cell that is read."""

    cell_type: str
    source: str | list[str]  # the text, or its lines


class _Notebook(TypedDict):
    """The part of a notebook that is read."""

    cells: list[_Cell]


def _parsed(text: str) -> _Notebook:
    try:
        notebook = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no notebook: {error}") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise ValueError("it is no notebook of format 4 or later: there is no list of cells")
    if not all(_is_text(cell.get("source", "")) for cell in cells):
        raise ValueError("it is no notebook of format 4 or later: the source of a cell is no text")
    language = notebook.get("metadata", {}).get("language_info", {}).get("name", "python")
    if language not in ("python", "ipython"):
        raise ValueError(f"it is a notebook of {language}")
    found: _Notebook = notebook
    return found


def _is_text(source: object) -> bool:
    return isinstance(source, str) or (isinstance(source, list) and all(isinstance(line, str) for line in source))


def _masked(source: str, magics: list[str]) -> Iterator[str]:
    """The lines of a cell; those with magics become statements that do nothing."""
    for line in source.split("\n"):
        match = _MAGIC_LINE.fullmatch(line)
        if match is None:
            yield line
        else:
            magics.append(match[2])
            yield f"{match[1]}{_MAGIC}{len(magics) - 1}"


def _unmasked(code: str, magics: list[str]) -> Iterator[str]:
    for line in code.split("\n"):
        start, mask, number = line.partition(_MAGIC)
        yield start + magics[int(number)] if mask else line


def _replace(cell: _Cell, source: str) -> None:
    """Give a cell its new source, as lines or as one string, as before."""
    before = cell.get("source", "")
    if "".join(before) != source:
        cell["source"] = source if isinstance(before, str) else source.splitlines(keepends=True)


def _formatted(notebook: _Notebook, before: str) -> str:
    """The notebook as JSON, in the format that it had; else in that of Jupyter."""
    old, end = json.loads(before), "\n" if before.endswith("\n") else ""
    for indent, is_ascii in itertools.product((1, 2, 4, None), (False, True)):
        if json.dumps(old, indent=indent, ensure_ascii=is_ascii) + end == before:
            return json.dumps(notebook, indent=indent, ensure_ascii=is_ascii) + end
    return json.dumps(notebook, indent=1, ensure_ascii=False) + end
