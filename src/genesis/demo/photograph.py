"""A photograph with its mask: the coins of scikit-image, or two files of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genesis.errors import describe


@dataclass(frozen=True)
class Photograph:
    """A grey picture and what is to be found in it."""

    name: str
    image: np.ndarray  # (H, W) float32, from 0 (black) to 1 (white)
    mask: np.ndarray  # (H, W) bool

    @property
    def boundary(self) -> int:
        """The column at which the held-out right third begins."""
        return self.image.shape[1] * 2 // 3

    def training_part(self) -> Photograph:
        """The left two thirds."""
        return Photograph(self.name, self.image[:, : self.boundary], self.mask[:, : self.boundary])

    def held_out_part(self) -> Photograph:
        """The right third, which training never sees."""
        return Photograph(self.name, self.image[:, self.boundary :], self.mask[:, self.boundary :])


def coins() -> Photograph:
    """Greek coins from Pompeii, a photograph that comes with scikit-image, and the mask of the classical recipe."""
    from skimage import data

    image = data.coins()
    return Photograph("coins", image.astype(np.float32) / 255, watershed_mask(image))


def watershed_mask(image: np.ndarray) -> np.ndarray:
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


def from_files(image_path: Path, mask_path: Path) -> Photograph:
    """A user's picture, and a mask of the same size in which the objects are bright.

    Raises: ValueError: a file is no picture, the sizes differ, or the mask is all of one kind. OSError: no such file.
    """
    image, mask = _read("image", image_path), _read("mask", mask_path)
    if image.shape != mask.shape:
        raise ValueError(describe("demo", "mask", f"the size of the picture, {_size(image)}", _size(mask)))
    found = mask > 0.5
    if found.all() or not found.any():
        raise ValueError(describe("demo", "mask", "bright objects on a dark ground", f"{mask_path}, all of one kind"))
    return Photograph(image_path.stem, image, found)


def _read(argument: str, path: Path) -> np.ndarray:
    """Grey values, of which the brightest is 1: whether white is written as 1, 255 or 65535 makes no difference."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            values = np.asarray(picture.convert("F"), dtype=np.float32)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # the file is not there, or not to be read; the others are about what is in it
        raise ValueError(describe("demo", argument, "a picture", f"{path}: {error}")) from None
    return values / max(float(values.max()), 1.0)


def _size(image: np.ndarray) -> str:
    height, width = image.shape
    return f"{width}×{height}"
