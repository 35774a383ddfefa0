"""Compiled kernels on disk. An entry is one file: a line of its checksum, a line of names, and the cubin.

Files are written elsewhere and then renamed, so that processes which compile the same kernel at once both succeed. An
entry that is damaged is as good as none.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from genesis.files import replaced

_MAGIC = b"genesis-kernel-1"


class Entry(NamedTuple):
    """A compiled source."""

    cubin: bytes
    names: dict[str, str]  # name expression → the name of the function in the cubin
    key: str = ""  # of what it was compiled from


def read(path: Path) -> Entry | None:
    """The entry, or None where there is none that is whole."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    first, _, body = content.partition(b"\n")
    if first != _first_line(body):
        return None
    head, _, cubin = body.partition(b"\n")
    fields = json.loads(head)
    return Entry(cubin, fields["names"], fields["key"])


def write(path: Path, entry: Entry) -> None:
    """Replace the file at once. Raises: OSError."""
    body = json.dumps({"names": entry.names, "key": entry.key}).encode() + b"\n" + entry.cubin
    with replaced(path) as temporary:
        temporary.write_bytes(_first_line(body) + b"\n" + body)


def _first_line(body: bytes) -> bytes:
    return _MAGIC + b" " + hashlib.sha256(body).hexdigest().encode()
