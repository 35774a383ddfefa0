"""`genesis port PATH`: rewrite the imports of PyTorch code, and list what has no counterpart."""

from __future__ import annotations

import argparse
import difflib
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from genesis.cli.exit_codes import PARTLY_FAILED

HELP = "rewrite the imports of PyTorch code to Genesis, and list what has no counterpart"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files, or folders of .py and .ipynb files")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if there is anything to do")
    parser.add_argument("--diff", action="store_true", help="change nothing; print what would change")


def run(arguments: argparse.Namespace) -> int:
    changed = num_gaps = num_failed = 0
    for path in _files(arguments.paths):
        try:
            has_changed, gaps, unread = _port(
                path, writes=not (arguments.check or arguments.diff), shows=arguments.diff
            )
        except (SyntaxError, ValueError) as error:
            print(f"{path}: not changed, as it cannot be parsed: {error}", file=sys.stderr)
            num_failed += 1
            continue
        changed += has_changed
        num_gaps += len(gaps)
        num_failed += len(unread)
        for gap in gaps:
            print(f"{path}:{gap}")
        for cell in unread:
            print(f"{path}: {cell}", file=sys.stderr)
    done = "would change" if arguments.check or arguments.diff else "changed"
    print(f"{changed} files {done}; {num_gaps} places need a change by hand", file=sys.stderr)
    return PARTLY_FAILED if num_gaps or num_failed or (arguments.check and changed) else 0


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            for file in sorted([*path.rglob("*.py"), *path.rglob("*.ipynb")]):
                inside = file.relative_to(path).parts
                if file.is_file() and not any(part.startswith(".") or part == "site-packages" for part in inside):
                    yield file
        else:
            yield path


def _port(path: Path, writes: bool, shows: bool) -> tuple[bool, list[object], list[str]]:
    """Rewrite a file atomically; whether it changes, its gaps, and cells that are no Python."""
    from genesis.files import replaced
    from genesis.port import rewrite, rewrite_notebook

    content = path.read_bytes()
    unread: list[str] = []
    gaps: list[object]
    if path.suffix == ".ipynb":
        encoding = "utf-8"
        text = content.decode(encoding)
        new, cell_gaps, unread = rewrite_notebook(text)
        gaps = list(cell_gaps)
    else:
        lines = iter(content.splitlines(keepends=True))
        encoding, _ = tokenize.detect_encoding(lambda: next(lines, b""))
        text = content.decode(encoding)
        new, file_gaps = rewrite(text)
        gaps = list(file_gaps)
    if shows:
        before, after = text.splitlines(keepends=True), new.splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(before, after, str(path), str(path)))
    if writes and new != text:
        with replaced(path) as temporary:
            temporary.write_bytes(new.encode(encoding))
    return new != text, gaps, unread
