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
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files, or folders of .py files")
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if there is anything to do")
    parser.add_argument("--diff", action="store_true", help="change nothing; print what would change")


def run(arguments: argparse.Namespace) -> int:
    changed = num_gaps = num_failed = 0
    for path in _files(arguments.paths):
        try:
            has_changed, gaps = _port(path, writes=not (arguments.check or arguments.diff), shows=arguments.diff)
        except (SyntaxError, UnicodeDecodeError) as error:
            print(f"{path}: not changed, as it cannot be parsed: {error}", file=sys.stderr)
            num_failed += 1
            continue
        changed += has_changed
        num_gaps += len(gaps)
        for gap in gaps:
            print(f"{path}:{gap}")
    done = "would change" if arguments.check or arguments.diff else "changed"
    print(f"{changed} files {done}; {num_gaps} places need a change by hand", file=sys.stderr)
    return PARTLY_FAILED if num_gaps or num_failed or (arguments.check and changed) else 0


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        if path.is_dir():
            for file in sorted(path.rglob("*.py")):
                inside = file.relative_to(path).parts
                if file.is_file() and not any(part.startswith(".") or part == "site-packages" for part in inside):
                    yield file
        else:
            yield path


def _port(path: Path, writes: bool, shows: bool) -> tuple[bool, list[object]]:
    """Rewrite a file atomically; whether it changes, and its gaps."""
    from genesis.files import replaced
    from genesis.port import rewrite

    content = path.read_bytes()
    lines = iter(content.splitlines(keepends=True))
    encoding, _ = tokenize.detect_encoding(lambda: next(lines, b""))
    text = content.decode(encoding)
    result = rewrite(text)
    if shows:
        before, after = text.splitlines(keepends=True), result.text.splitlines(keepends=True)
        sys.stdout.writelines(difflib.unified_diff(before, after, str(path), str(path)))
    if writes and result.text != text:
        with replaced(path) as temporary:
            temporary.write_bytes(result.text.encode(encoding))
    return result.text != text, list(result.gaps)
