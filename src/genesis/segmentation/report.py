"""Write the results of `genesis segment` for a picture: mask, overlay, and how much of it each class covers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from genesis.files import replaced
from genesis.segmentation import palette, seals
from genesis.segmentation.arrays import Array
from genesis.segmentation.outputs import Outputs
from genesis.segmentation.overlay import overlay
from genesis.segmentation.pictures import Picture, blocks

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage


Area = TypedDict("Area", {"class": int, "name": str, "pixels": int, "share": float})


def areas(counts: Array, classes: Sequence[str]) -> list[Area]:
    """An entry per class, the largest first: its number, name, pixels, and share of the picture.

    Example:
        >>> import numpy as np
        >>> from genesis.segmentation.report import areas
        >>> areas(np.array([1, 3]), ["background", "coin"])[0]
        {'class': 1, 'name': 'coin', 'pixels': 3, 'share': 0.75}
    """
    total = max(1, int(counts.sum()))
    return [
        {"class": int(c), "name": classes[c], "pixels": int(counts[c]), "share": int(counts[c]) / total}
        for c in np.argsort(-counts, kind="stable")
    ]


def count(labels: Array, num_classes: int) -> Array:
    """(num_classes,) int64: how many pixels of each class there are."""
    height, width = labels.shape
    found = np.zeros(num_classes, np.int64)
    for left, top, right, bottom in blocks(width, height):  # of what bincount counts, it makes int64
        found += np.bincount(labels[top:bottom, left:right].ravel(), minlength=num_classes)
    return found


def write(
    outputs: Outputs, source: Path, picture: Picture, labels: Array, classes: Sequence[str], note: str = ""
) -> None:
    """Write the mask, the overlay and the report; the report last, so that it tells of a whole."""
    width, height = picture.size
    counts = count(labels, len(classes))
    _write_png(palette.mask_image(labels, len(classes)), outputs.mask, source)
    _write_png(overlay(picture, labels, classes, counts), outputs.overlay, source)
    report: dict[str, object] = {
        "image": str(source),
        "width": width,
        "height": height,
        "classes": areas(counts, classes),
    }
    report |= {"note": note} if note else {}
    with replaced(outputs.report) as temporary:
        temporary.write_text(seals.sealed_json(report), encoding="utf-8")


def _write_png(image: PillowImage, path: Path, source: Path) -> None:
    with replaced(path) as temporary:
        image.save(temporary, format="PNG")
        seals.seal_png(temporary, source)
