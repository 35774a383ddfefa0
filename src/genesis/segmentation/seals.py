"""Marks in the files that `genesis segment` writes: which picture they are of, and whether anybody changed them since.

A PNG file has the mark as its last chunk but one (tEXt), with the SHA-256 of all bytes before it; a JSON file has it as
its last entry, with that of the text without it. What an editor saves again has no mark, or one that doesn't fit.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NamedTuple

_KEY = "genesis segment"
_END = b"\x00\x00\x00\x00IEND\xaeB`\x82"
_START = b"tEXt" + _KEY.encode() + b"\x00"
_LONGEST = 1 << 16  # of a chunk with the mark: the name of a picture, escaped, is shorter


class Seal(NamedTuple):
    """The picture that a result is of, and whether it is as it was written."""

    source: str
    is_intact: bool


def seal_png(path: Path, source: Path) -> None:
    """Put the mark into a PNG file."""
    with open(path, "r+b") as file:
        file.seek(-len(_END), 2)
        text = json.dumps({"image": str(source), "sha256": _digest(file, file.tell())})
        data = _START + text.encode("ascii")
        file.write(struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data)) + _END)


def sealed_json(report: dict[str, object]) -> str:
    """The text of a JSON file of this report, which has the source as "image", and of its mark."""
    digest = hashlib.sha256(_dumped(report).encode()).hexdigest()
    return _dumped({**report, _KEY: {"sha256": digest}})


def is_result(path: Path) -> bool:
    """Whether a file is a picture that `genesis segment` wrote, changed or not; quick."""
    try:
        return path.suffix.lower() == ".png" and path.is_file() and _png_mark(path) is not None
    except OSError:  # whoever reads it will say so
        return False


def find(path: Path) -> Seal | None:
    """The mark in a file; None if there is none."""
    return _of_json(path) if path.suffix == ".json" else _of_png(path)


def _of_png(path: Path) -> Seal | None:
    mark = _png_mark(path)
    if mark is None:
        return None
    start, found = mark
    with open(path, "rb") as file:
        return Seal(found["image"], _digest(file, start) == found["sha256"])


def _of_json(path: Path) -> Seal | None:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        digest, source = report.pop(_KEY)["sha256"], str(report["image"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Seal(source, hashlib.sha256(_dumped(report).encode()).hexdigest() == digest)


def _png_mark(path: Path) -> tuple[int, dict[str, str]] | None:
    """The offset of the chunk with the mark, and its content."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _LONGEST))
        first, tail = file.tell(), file.read()
    begin = tail.rfind(_START) - 4  # the length stands before the type
    if begin < 0 or not tail.endswith(_END):
        return None
    try:
        found = json.loads(tail[begin + 4 + len(_START) : -len(_END) - 4])
        return first + begin, {"image": str(found["image"]), "sha256": str(found["sha256"])}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _digest(file: BinaryIO, size: int) -> str:
    """SHA-256 of the first bytes of a file; it stands behind them afterwards."""
    file.seek(0)
    digest = hashlib.sha256()
    while size:
        part = file.read(min(size, 1 << 20))
        if not part:
            break
        digest.update(part)
        size -= len(part)
    return digest.hexdigest()


def _dumped(report: dict[str, object]) -> str:
    return json.dumps(report, indent=1) + "\n"
