"""What `genesis segment` writes for a picture: the mask, the overlay, and how much of the picture each class covers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genesis.files import replaced
from genesis.segmentation import palette, pictures
from genesis.segmentation.pictures import Picture


def areas(labels: np.ndarray, classes: Sequence[str]) -> list[dict[str, Any]]:
    """An entry per class that occurs, the largest first: its number, name, pixels, and share of the picture.

    Example:
        >>> import numpy as np
        >>> from genesis.segmentation.report import areas
        >>> areas(np.array([[0, 1], [1, 1]]), ["background", "coin"])[0]
        {'class': 1, 'name': 'coin', 'pixels': 3, 'share': 0.75}
    """
    counts = np.bincount(labels.ravel(), minlength=len(classes))
    return [
        {"class": int(c), "name": classes[c], "pixels": int(counts[c]), "share": float(counts[c] / labels.size)}
        for c in np.argsort(-counts, kind="stable")
        if counts[c]
    ]


def write(folder: Path, name: str, source: Path, picture: Picture, labels: np.ndarray, classes: Sequence[str]) -> None:
    """Write name_mask.png, name_overlay.png and name.json into folder; the JSON last, so that it tells of a whole."""
    width, height = picture.size
    pictures.save_png(palette.mask_image(labels, len(classes)), folder / f"{name}_mask.png")
    pictures.save_png(palette.overlay(picture.image, labels, len(classes)), folder / f"{name}_overlay.png")
    report = {"image": str(source), "width": width, "height": height, "classes": areas(labels, classes)}
    report |= {"note": picture.note} if picture.note else {}
    with replaced(folder / f"{name}.json") as temporary:
        temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def names(paths: Sequence[Path]) -> list[str]:
    """A name for the results of each picture: its stem; the whole name, and a number, where several share that."""
    stems = [path.stem for path in paths]
    given: dict[str, int] = {}
    found = []
    for path, stem in zip(paths, stems, strict=True):
        name = stem if stems.count(stem) == 1 else path.name.replace(".", "_")
        given[name] = given.get(name, 0) + 1
        found.append(name if given[name] == 1 else f"{name}_{given[name]}")
    return found
