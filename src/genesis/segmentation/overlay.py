"""A photograph with its classes in colour, and under it a legend of their names and shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from genesis.segmentation.arrays import Array
from genesis.segmentation.palette import colours
from genesis.segmentation.pictures import Box, Picture, blocks

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

_OPACITY = 144  # of a class's colour over the photograph, of 256
_RED, _GREEN, _BLUE = 77, 150, 29  # of 256: what each adds to brightness (ITU-R BT.601)
_MOST_ENTRIES, _LONGEST_NAME = 24, 40
_SMALLEST, _LARGEST = 12, 200  # height of the legend's letters


def overlay(picture: Picture, labels: Array, classes: Sequence[str], counts: Array) -> PillowImage:
    """The photograph with each class but the first in its colour, and the legend under it, as an image of Pillow's.

    Where a class is, the photograph is grey under the colour, and the class's edge is its colour alone: olive on a blue
    ground stays olive, which a blend of the two would turn grey.

    Args:
        labels: (H, W), the numbers of classes.
        counts: pixels of each class.
    """
    from PIL import Image

    width, height = picture.size
    legend = _Legend(_entries(classes, counts), max(_SMALLEST, min(_LARGEST, min(width, height) // 36)), width)
    image = Image.new("RGB", (max(width, legend.width), height + legend.height), "white")
    table, line = colours(len(classes)), max(1, round(min(width, height) / 500))
    for box in blocks(width, height):
        image.paste(Image.fromarray(_tinted(picture.part(box), labels, box, table, line)), box)
    legend.draw(image, height, table)
    return image


def _tinted(part: PillowImage, labels: Array, box: Box, table: Array, line: int) -> Array:
    """A part of the photograph in colour, (H, W, 3) uint8, with edges as wide as line."""
    from PIL import Image

    left, top, right, bottom = box
    here = labels[top:bottom, left:right]
    part = Image.fromarray(np.uint8(np.asarray(part) * 255)) if part.mode == "F" else part
    pixels = np.array(part.convert("RGB"))
    inside = here > 0
    if not inside.any():
        return pixels
    found, wide = here[inside], pixels[inside].astype(np.uint16)
    grey = (wide[:, 0] * _RED + wide[:, 1] * _GREEN + wide[:, 2] * _BLUE) >> 8
    tint = table.astype(np.uint16) * _OPACITY
    pixels[inside] = (grey[:, None] * (256 - _OPACITY) + tint[found]) >> 8
    edge = inside & _at_an_edge(labels, box, line)
    pixels[edge] = table[here[edge]]
    return pixels


def _at_an_edge(labels: Array, box: Box, line: int) -> Array:
    """Mark the pixels of the box with another class `line` pixels to a side; the end of the photograph is no edge."""
    left, top, right, bottom = box
    height, width = labels.shape
    first, begin = max(0, top - line), max(0, left - line)
    around = labels[first : min(height, bottom + line), begin : min(width, right + line)]
    missing_below, missing_right = bottom + line - height, right + line - width
    before, after = line - (top - first), max(0, missing_below)
    around = np.pad(around, ((before, after), (line - (left - begin), max(0, missing_right))), mode="edge")
    here = around[line:-line, line:-line]
    sides = (
        around[: -2 * line, line:-line], around[2 * line :, line:-line],
        around[line:-line, : -2 * line], around[line:-line, 2 * line :],
    )  # fmt: skip
    return np.logical_or.reduce([here != side for side in sides])


class _Entry(NamedTuple):
    number: int  # of the class; -1: a line that is of none
    text: str


def _entries(classes: Sequence[str], counts: Array) -> list[_Entry]:
    """The classes that occur, the largest first."""
    order = [int(number) for number in np.argsort(-counts, kind="stable") if counts[number]]
    total = max(1, int(counts.sum()))
    found = [_Entry(number, f"{_short(classes[number])} {_percent(counts[number] / total)}") for number in order]
    if len(found) > _MOST_ENTRIES:
        found = [*found[: _MOST_ENTRIES - 1], _Entry(-1, f"and {len(found) - _MOST_ENTRIES + 1} more")]
    return found


def _short(name: str) -> str:
    name = "".join(letter if letter.isprintable() else " " for letter in name)
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _percent(share: float) -> str:
    return "< 0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


class _Legend:
    """Entries in rows, as wide as the photograph or as the widest of them."""

    def __init__(self, entries: Sequence[_Entry], letter: int, width: int) -> None:
        from PIL import ImageFont

        self._font, self._letter, self._gap = ImageFont.load_default(letter), letter, letter // 2
        self._rows: list[list[tuple[int, _Entry]]] = [[]]
        self._line = 2 * letter
        self.width, x = 0, self._gap
        for entry in entries:
            needed = self._swatch(entry) + round(self._font.getlength(entry.text)) + 2 * self._gap
            if x + needed > width and self._rows[-1]:
                self._rows.append([])
                x = self._gap
            self._rows[-1].append((x, entry))
            x += needed
            self.width = max(self.width, x)
        self.height = self._line * len(self._rows) + self._gap

    def draw(self, image: PillowImage, top: int, table: Array) -> None:
        from PIL import ImageDraw

        brush, letter = ImageDraw.Draw(image), self._letter
        line = max(1, letter // 12)
        for row, entries in enumerate(self._rows):
            y = top + self._gap + row * self._line
            for x, entry in entries:
                if entry.number >= 0:  # the first class is the photograph as it is: an empty frame
                    fill = tuple(table[entry.number].tolist()) if entry.number else "white"
                    brush.rectangle((x, y, x + letter, y + letter), fill=fill, outline="grey", width=line)
                place = (x + self._swatch(entry), y + letter // 2)
                brush.text(place, entry.text, fill="black", font=self._font, anchor="lm")

    def _swatch(self, entry: _Entry) -> int:
        return self._letter + self._gap if entry.number >= 0 else 0
