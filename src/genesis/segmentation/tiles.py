"""A large image in tiles that overlap; of each tile's result the middle is kept.

A pixel whose result depends on nothing farther away than half the overlap gets the same result as in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from genesis.errors import describe

ALIGNMENT = 32  # tiles begin at its multiples: networks that halve the resolution up to five times see the same grid

if TYPE_CHECKING:
    Span = slice[int, int, None]


class Window(NamedTuple):
    """A piece of one dimension: what the network sees, and the part of it whose result is kept."""

    start: int
    stop: int
    core_start: int
    core_stop: int

    @property
    def seen(self) -> Span:
        return slice(self.start, self.stop)

    @property
    def core(self) -> Span:
        return slice(self.core_start, self.core_stop)

    @property
    def core_in_seen(self) -> Span:
        return slice(self.core_start - self.start, self.core_stop - self.start)


def windows(length: int, tile: int, overlap: int) -> list[Window]:
    """Pieces of at most tile whose cores make up the length, one after the other.

    Args:
        tile: a multiple of 32.
        overlap: what neighbours both see at least; a multiple of 32, below tile.
    Raises: ValueError: they are not.

    Example:
        >>> from genesis.segmentation.tiles import windows
        >>> [tuple(window) for window in windows(200, tile=128, overlap=32)]
        [(0, 128, 0, 112), (96, 200, 112, 200)]
    """
    if tile < ALIGNMENT or tile % ALIGNMENT:
        raise ValueError(describe("segment", "tile", f"a positive multiple of {ALIGNMENT}", tile))
    if not 0 <= overlap < tile or overlap % ALIGNMENT:
        raise ValueError(describe("segment", "overlap", f"a multiple of {ALIGNMENT} below tile ({tile})", overlap))
    starts = [0]
    while starts[-1] + tile < length:
        starts.append(starts[-1] + tile - overlap)
    seams = [0, *(start + overlap // 2 for start in starts[1:]), length]
    return [
        Window(start, min(start + tile, length), seams[index], seams[index + 1]) for index, start in enumerate(starts)
    ]


def grid(height: int, width: int, tile: int, overlap: int) -> Iterator[tuple[Window, Window]]:
    """The windows of rows and of columns of each tile of an image; one tile if tile is 0."""
    rows, columns = ([Window(0, n, 0, n)] if tile == 0 else windows(n, tile, overlap) for n in (height, width))
    for row in rows:
        for column in columns:
            yield row, column
