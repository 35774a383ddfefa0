"""Scalars for TensorBoard, written as it reads them: records with checksums, each an Event message.

Format: a record is its length (uint64), the masked CRC-32C of that, its bytes, and their masked CRC-32C
(tensorflow/core/lib/io/record_writer.h); Event, Summary and Summary.Value are protocol buffers
(tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto).
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from genesis.errors import describe

NAME = "events.out.tfevents.0.genesis"  # TensorBoard looks for "tfevents" in the name


class EventFile:
    """Scalars by tag and step, appended to a file; what stands behind `size` bytes of it is dropped first.

    A training notes the size in its checkpoints. So what a killed process wrote after its last one goes away, and the
    steps that are made again are not there twice.
    """

    def __init__(self, path: Path, size: int = 0) -> None:
        if type(size) is not int or size < 0:
            raise ValueError(describe("train", "events", "the size of a file", repr(size)))
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "ab")  # noqa: SIM115  (open as long as the training)
        size = min(size, self._file.tell())
        self._file.truncate(size)
        if size == 0:
            self._write(_text(3, b"brain.Event:2"), step=0)
        self.flush()

    def add(self, tag: str, value: float, step: int) -> None:
        """A scalar; it is in the file after flush()."""
        scalar = _text(1, tag.encode()) + b"\x15" + struct.pack("<f", value)
        self._write(_text(5, _text(1, scalar)), step)

    def flush(self) -> int:
        """Bring all to the disk; the size of the file."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._file.seek(0, os.SEEK_END)
        except OSError as error:
            error.filename = self._file.name  # of a full disk, the system does not say where
            raise

    def close(self) -> None:
        self._file.close()

    def _write(self, content: bytes, step: int) -> None:
        event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + _varint(step) + content
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked_crc(length) + event + _masked_crc(event))


def _text(field: int, content: bytes) -> bytes:
    """A field of bytes: its number and kind, its length, itself."""
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Seven bits per byte, the lowest first; all but the last byte have their highest bit set."""
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _masked_crc(content: bytes) -> bytes:
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(content: bytes) -> int:
    """The CRC with Castagnoli's polynomial.

    Example:
        >>> from genesis.segmentation.events import crc32c
        >>> hex(crc32c(b"123456789"))
        '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _table() -> list[int]:
    """Tabulate each byte's effect on the checksum: eight steps of a division by the polynomial, lowest bit first."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _table()
