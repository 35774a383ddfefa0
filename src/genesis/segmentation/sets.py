"""Data sets of a training: a folder of pictures and masks, or a photograph of scikit-image's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from genesis.errors import describe
from genesis.segmentation import photographs, pictures
from genesis.segmentation.examples import Example, LabelledSet
from genesis.segmentation.metrics import IGNORED
from genesis.segmentation.pictures import MOST_MEGAPIXELS


class FolderSource:
    """Pairs of a picture's file and its mask's, read when they are asked for.

    Args:
        white_is_one: masks hold 0 and 255, and 255 is the class 1.
        most_megapixels: larger pictures are refused.
    """

    def __init__(
        self, pairs: Sequence[tuple[Path, Path]], white_is_one: bool, most_megapixels: float = MOST_MEGAPIXELS
    ) -> None:
        self.pairs, self.white_is_one, self.most_megapixels = pairs, white_is_one, most_megapixels

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Example:
        picture, mask = self.pairs[index]
        values = pictures.read(picture, most_megapixels=self.most_megapixels).values(3)
        labels = pictures.read_indices(mask, self.most_megapixels).astype(np.uint8)
        return Example(values, np.uint8(1) * (labels > 0) if self.white_is_one else labels)


def open_set(
    data: str,
    classes: tuple[str, ...] | None = None,
    held_out_share: float = 0.2,
    seed: int = 0,
    most_megapixels: float = MOST_MEGAPIXELS,
) -> LabelledSet:
    """The set that a word or a path means.

    Args:
        data: "coins", "immunohistochemistry", or a folder, see folder().
        classes: names of the classes, the first for number 0.
        held_out_share: of the pictures of a folder.
        seed: decides which are held out.
        most_megapixels: larger pictures are refused.
    """
    if data in photographs.BY_NAME and not Path(data).exists():
        found = photographs.BY_NAME[data]()
        return dataclasses.replace(found, classes=_checked(classes or found.classes, found.classes))
    return folder(Path(data), classes, held_out_share, seed, most_megapixels)


def folder(
    path: Path,
    classes: tuple[str, ...] | None,
    held_out_share: float,
    seed: int,
    most_megapixels: float = MOST_MEGAPIXELS,
) -> LabelledSet:
    """Pictures in path/images, their masks under the same names in path/masks.

    A mask has one channel with a class's number per pixel, 255 where a pixel doesn't count; or 0 and 255 for background
    and object. Every mask is looked at once, so that what is wrong is said before the training begins.

    Raises: ValueError: a folder is not there or empty, a picture has no mask, a mask another size, or numbers without a
        class.
    """
    pairs = _pairs(path)
    numbers: set[int] = set()
    for picture, mask in pairs:
        labels = pictures.read_indices(mask, most_megapixels)
        size = pictures.read(picture, most_megapixels=most_megapixels).size
        if labels.shape[::-1] != size:
            expected, got = f"the size of {picture.name}, {size[0]}×{size[1]}", f"{labels.shape[1]}×{labels.shape[0]}"
            raise ValueError(describe("train", "mask", expected, f"{mask}: {got}"))
        numbers.update(np.unique(labels).tolist())
    white_is_one = numbers <= {0, IGNORED} and (classes is None or len(classes) == 2)
    largest = 1 if white_is_one else max(numbers - {IGNORED}, default=0)
    if min(numbers) < 0 or largest > IGNORED:
        raise ValueError(describe("train", "masks", "numbers of classes from 0 to 254", f"{min(numbers)} to {largest}"))
    names = classes or ("background", *(["object"] if largest == 1 else [f"class {n}" for n in range(1, largest + 1)]))
    if largest >= len(names):
        raise ValueError(describe("train", "masks", f"numbers below {len(names)}, the number of classes", largest))
    held_out = min(len(pairs) - 1, max(1, round(held_out_share * len(pairs))))
    order = np.random.default_rng(seed).permutation(len(pairs))
    seen, unseen = ([pairs[i] for i in sorted(part)] for part in (order[held_out:], order[:held_out]))
    learned, judging = (FolderSource(part, white_is_one, most_megapixels) for part in (seen, unseen))
    return LabelledSet(path.name, names, learned, judging)


def _checked(classes: tuple[str, ...], expected: tuple[str, ...]) -> tuple[str, ...]:
    if len(classes) != len(expected):
        raise ValueError(describe("train", "classes", f"{len(expected)} names", len(classes)))
    return classes


def _pairs(path: Path) -> list[tuple[Path, Path]]:
    """Each picture with the mask of the same stem."""
    for part in (path / "images", path / "masks"):
        if not part.is_dir():
            expected = f"a folder with images/ and masks/, or one of {', '.join(photographs.BY_NAME)}"
            raise ValueError(describe("train", "data", expected, f"{path}, without {part.name}/"))
    masks = {file.stem: file for file in sorted((path / "masks").iterdir()) if file.suffix.lower() in pictures.ENDINGS}
    images = [file for file in sorted((path / "images").iterdir()) if file.suffix.lower() in pictures.ENDINGS]
    missing = [file.name for file in images if file.stem not in masks]
    if missing:
        raise ValueError(describe("train", "data", f"a mask for each picture in {path}", f"none for {missing[0]}"))
    if len(images) < 2:
        raise ValueError(describe("train", "data", f"at least 2 pictures in {path / 'images'}", len(images)))
    return [(file, masks[file.stem]) for file in images]
