"""The user's headers that a source includes, directly or through each other: they decide what is compiled too.

NVRTC does not say what it has read, so the includes are read from the text. Those in a branch that is not compiled
count as well: a change there compiles once too often, never once too rarely.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from genesis.backends.cuda.nvrtc.preprocessor import without_comments

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include(?:_next)?[ \t]*([^\n]*)|__has_include[ \t]*\(([^)]*)\)", re.MULTILINE)
_NAMED = re.compile(r'"([^"]+)"|<([^>]+)>')
_SUFFIXES = {".h", ".hpp", ".hh", ".cuh", ".inc", ".inl", ".cu"}


def included(text: str, folder: Path, include_dirs: Sequence[Path]) -> dict[str, str | None]:
    """Each header by the name it is included under, and its text; None for those that are not the user's.

    Args:
        folder: where the source lies.
        include_dirs: where headers are looked for next.
    """
    found: dict[str, str | None] = {}
    pending = [(text, folder)]
    while pending:
        source, here = pending.pop()
        for name in _names(source, here, include_dirs):
            places = (here, *include_dirs, Path("/"))
            path = next((place / name for place in places if (place / name).is_file()), None)
            label = name if path is None else str(path)
            if label not in found:
                found[label] = None if path is None else path.read_text(encoding="utf-8", errors="replace")
                if path is not None:
                    pending.append((found[label] or "", path.parent))
    return found


def _names(source: str, here: Path, include_dirs: Sequence[Path]) -> Iterator[str]:
    for match in _INCLUDE.finditer(without_comments(source)):
        named = _NAMED.search(match[1] or match[2] or "")
        if named is not None:
            yield named[1] or named[2]
        else:  # the name is a macro's: any header there is can be meant, and beside the source, if not below it
            for folder, pattern in ((here, "*"), *((folder, "**/*") for folder in include_dirs)):
                for path in sorted(folder.glob(pattern)):
                    if path.suffix in _SUFFIXES:
                        yield str(path.relative_to(folder))
