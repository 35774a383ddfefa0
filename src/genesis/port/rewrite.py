"""rewrite(): the imports of PyTorch in a source text become imports of Genesis; all else stays, byte by byte."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

from genesis.port import facade, names, scan
from genesis.port.names import Found
from genesis.port.scan import Gap, is_pytorch

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Rewritten(NamedTuple):
    """A text whose imports are rewritten, and what in it has no counterpart."""

    text: str
    gaps: list[Gap]


class _Edit(NamedTuple):
    """Replace what is between two positions: (line from 1, offset in its UTF-8)."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def rewrite(source: str) -> Rewritten:
    """Rewrite the imports of PyTorch to Genesis.

    `import torch` becomes `import genesis as torch`, so that all uses of torch stay as they are; where some of them
    have only a stand-in, torch becomes Genesis' facade of it. Names that Genesis lacks are imported from PyTorch as
    before, and are among the gaps.

    Args:
        source: a Python file's text.
    Returns: the text, and the lines that need a change by hand.
    Raises: SyntaxError: source is no Python.

    Example:
        >>> from genesis.port import rewrite
        >>> rewrite("import torch.nn as nn  # layers").text
        'import genesis.nn as nn  # layers'
    """
    tree = ast.parse(source)
    through_facade = any(
        scan.is_elsewhere(use.name) for use in scan.uses(tree) if not use.name.startswith(_imported_names(tree))
    )
    edits = [edit for node in ast.walk(tree) for edit in _edits(node, source, through_facade)]
    text = _apply(source, edits)
    ast.parse(text)
    return Rewritten(text, scan.gaps(tree))


def _imported_names(tree: ast.Module) -> tuple[str, ...]:
    """Names that `from` imports take: where they are found is decided one by one."""
    return tuple(name for name in scan.bindings(tree).values() if name != "torch") or ("\0",)


def _edits(node: ast.AST, source: str, through_facade: bool) -> Iterator[_Edit]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if is_pytorch(alias.name):
                start, end = (alias.lineno, alias.col_offset), (alias.end_lineno or 0, alias.end_col_offset or 0)
                yield _Edit(start, end, _import(alias, through_facade))
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and is_pytorch(node.module or ""):
        homes = {alias.name: home(node.module or "", alias.name) for alias in node.names}
        start, end = (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)
        statement = ast.get_source_segment(source, node) or ""
        if len(set(homes.values())) == 1:
            text = re.sub(r"^from(\s+)[\w.]+", rf"from\g<1>{homes[node.names[0].name]}", statement)
        else:
            text = _split(node, homes, statement)
        yield _Edit(start, end, text)


def home(module: str, name: str) -> str:
    """The module of Genesis from which a name of a module of PyTorch's is imported; PyTorch's own if there is none."""
    own = (*names.source_names(module), module)[0]
    if name == "*":
        return own
    try:
        value = names.find(module, name)
    except ImportError as error:
        if not names.lacks_package(error):
            raise
        return own  # it needs a package that is not installed here
    for space in names.sources(module):
        if not isinstance(value, Found) and getattr(space, name, None) is value:
            return space.__name__
    below = names.source_names(f"{module}.{name}") if isinstance(facade.member(module, name), facade.Facade) else ()
    for source in below:
        parent, _, leaf = source.rpartition(".")
        if leaf == name:
            return parent
    return module


def _import(alias: ast.alias, through_facade: bool) -> str:
    """An entry of an import statement."""
    if alias.asname is None:
        if through_facade:
            return "genesis.port.torch as torch"
        below = (*names.source_names(alias.name), "genesis")[0]
        return "genesis as torch" + (f", {below}" if below != "genesis" else "")  # which loads what torch.x.y finds
    if alias.name == "torch":
        return f"{'genesis.port.torch' if through_facade else 'genesis'} as {alias.asname}"
    return f"{(*names.source_names(alias.name), alias.name)[0]} as {alias.asname}"


def _split(node: ast.ImportFrom, homes: dict[str, str], statement: str) -> str:
    """A from import whose names come from several modules: a statement for each, below its comments."""
    tokens = tokenize.generate_tokens(io.StringIO(statement + "\n").readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    by_home: dict[str, list[str]] = {}
    for alias in node.names:
        shown = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
        by_home.setdefault(homes[alias.name], []).append(shown)
    lines = comments + [f"from {module} import {', '.join(shown)}" for module, shown in by_home.items()]
    return f"\n{' ' * node.col_offset}".join(lines)


def _apply(source: str, edits: list[_Edit]) -> str:
    lines = [line.encode() for line in _LINE.findall(source)]
    for edit in sorted(edits, reverse=True):
        (first, start), (last, end) = edit.start, edit.end
        behind = lines[last - 1][end:]
        newline = b"\r\n" if lines[first - 1].endswith(b"\r\n") else b"\n"
        text = edit.text.encode().replace(b"\r\n", b"\n").replace(b"\n", newline)
        lines[first - 1 : last] = [lines[first - 1][:start] + text + behind]
    return b"".join(lines).decode()
