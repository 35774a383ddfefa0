"""Compiled kernels on disk. An entry is one file: a line of its checksum, a line of names, and the cubin.

Files are written elsewhere and then renamed, so that processes which compile the same kernel at once both succeed. An
entry that is damaged is as good as none. The checksum tells damage only: cache.py says whose files are believed.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import NamedTuple

from genesis.backends.engine import cache
from genesis.files import replaced

_MAGIC = b"genesis-kernel-1"


class Entry(NamedTuple):
    """A compiled source."""

    cubin: bytes
    names: dict[str, str]  # name expression → the name of the function in the cubin
    key: str = ""  # of what it was compiled from


def read(path: Path) -> Entry | None:
    """The entry of a file that was built ahead, or None where there is none that is whole."""
    try:
        return _parsed(path.read_bytes())
    except OSError:
        return None


def write(path: Path, entry: Entry) -> None:
    """Replace the file at once. Raises: OSError."""
    with replaced(path) as temporary:
        temporary.write_bytes(_content(entry))


def read_cached(path: Path) -> Entry | None:
    """Read a file of the cache; None, with a warning, where others could have written it: it is to be replaced."""
    try:
        return _parsed(cache.read(path))
    except PermissionError as error:
        warnings.warn(f"a compiled kernel is not believed: {error}", stacklevel=2)
    except OSError:
        pass
    return None


def write_cached(path: Path, entry: Entry) -> None:
    """Write a file into the cache. Raises: OSError."""
    with replaced(path, make_folder=False) as temporary:
        cache.write(temporary, _content(entry))


def _parsed(content: bytes) -> Entry | None:
    first, _, body = content.partition(b"\n")
    if first != _first_line(body):
        return None
    head, _, cubin = body.partition(b"\n")
    try:
        fields = json.loads(head)
        names, key = fields["names"], fields["key"]
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    is_whole = (
        isinstance(key, str) and isinstance(names, dict) and all(isinstance(name, str) for name in names.values())
    )
    return Entry(cubin, names, key) if is_whole else None


def _content(entry: Entry) -> bytes:
    body = json.dumps({"names": entry.names, "key": entry.key}).encode() + b"\n" + entry.cubin
    return _first_line(body) + b"\n" + body


def _first_line(body: bytes) -> bytes:
    return _MAGIC + b" " + hashlib.sha256(body).hexdigest().encode()
