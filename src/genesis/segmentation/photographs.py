"""Single photographs to train on: two of scikit-image's, or one of the user's. The right third of each is held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from genesis.errors import describe
from genesis.segmentation import pictures
from genesis.segmentation.arrays import Array
from genesis.segmentation.examples import Example, LabelledSet


def coins() -> LabelledSet:
    """Greek coins from Pompeii, and the mask of the classical recipe: what `genesis demo` trains on."""
    from skimage import data

    grey = data.coins()
    values = np.repeat(grey[None].astype(np.float32) / 255, 3, axis=0)
    return _split("coins", ("background", "coin"), Example(values, watershed_mask(grey).astype(np.uint8)))


def immunohistochemistry() -> LabelledSet:
    """Tissue under the microscope, 512×512.

    Blue: nuclei, stained by haematoxylin; brown: where an antibody bound, stained by DAB. The masks are those of a
    classical recipe: separate the stains' colours (Ruifrok & Johnston 2001), and cut each at Otsu's threshold.
    """
    from skimage import color, data, filters

    photo = data.immunohistochemistry()
    stains = color.rgb2hed(photo)
    nuclei, brown = stains[..., 0], stains[..., 2]
    labels = np.zeros(photo.shape[:2], np.uint8)
    labels[nuclei > filters.threshold_otsu(nuclei)] = 1
    labels[brown > filters.threshold_otsu(brown)] = 2
    values = np.ascontiguousarray(photo.transpose(2, 0, 1), np.float32) / np.float32(255)
    return _split("immunohistochemistry", ("background", "nucleus", "stain"), Example(values, labels))


BY_NAME = {"coins": coins, "immunohistochemistry": immunohistochemistry}


def from_files(image: Path, mask: Path, most_megapixels: float = pictures.MOST_MEGAPIXELS) -> LabelledSet:
    """A user's picture, and a mask of the same size in which the objects are bright.

    Whether white is written as 1, 255 or 65535 makes no difference in the mask.

    Raises: ValueError: a file is no picture, the sizes differ, or the mask is all of one kind. OSError: no such file.
    """
    values = pictures.read(image, most_megapixels=most_megapixels).values(3)
    brightness = pictures.read(mask, "mask", most_megapixels).values(1)[0]
    if values.shape[1:] != brightness.shape:
        raise ValueError(describe("demo", "mask", f"the size of the picture, {_size(values[0])}", _size(brightness)))
    found = brightness > brightness.max() / 2
    if found.all() or not found.any():
        raise ValueError(describe("demo", "mask", "bright objects on a dark ground", f"{mask}, all of one kind"))
    return _split(image.stem, ("background", "object"), Example(values, found.astype(np.uint8)))


def watershed_mask(image: Array) -> Array:
    """Bright objects on a dark ground, by a flood from markers over the steepness of the picture.

    Args:
        image: (H, W) uint8.
    Returns: (H, W) bool.
    Source: "Comparing edge-based and region-based segmentation", scikit-image's gallery of examples.
    """
    from scipy import ndimage
    from skimage import filters, segmentation

    dark, bright = 1, 2
    markers = np.zeros(image.shape, dtype=np.int32)
    markers[image < 30] = dark
    markers[image > 150] = bright
    flooded = segmentation.watershed(filters.sobel(image), markers)
    return ndimage.binary_fill_holes(flooded == bright)


def _split(name: str, classes: tuple[str, ...], whole: Example) -> LabelledSet:
    """The left two thirds to learn from, the right third to be judged by."""
    boundary = whole.labels.shape[1] * 2 // 3
    left = Example(whole.values[..., :boundary], whole.labels[:, :boundary])
    right = Example(whole.values[..., boundary:], whole.labels[:, boundary:])
    return LabelledSet(name, classes, [left], [right])


def _size(image: Array) -> str:
    height, width = image.shape
    return f"{width}×{height}"
