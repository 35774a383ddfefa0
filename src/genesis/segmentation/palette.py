"""Colours of classes, and label masks as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from genesis.segmentation.arrays import Array

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage


def colours(num_classes: int) -> Array:
    """(num_classes, 3) uint8: a colour per class, black for the first; neighbours differ much.

    The bits of the class's number are dealt out to red, green and blue, the lowest to their highest bits: the colour
    map of Pascal VOC (Everingham et al. 2010).

    Example:
        >>> from genesis.segmentation.palette import colours
        >>> colours(3).tolist()
        [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    numbers = np.arange(num_classes)
    table = np.zeros((num_classes, 3), dtype=np.uint8)
    for level in range(8):
        for channel in range(3):
            table[:, channel] |= ((numbers >> (3 * level + channel)) & 1).astype(np.uint8) << (7 - level)
    return table


def mask_image(labels: Array, num_classes: int) -> PillowImage:
    """An image of Pillow's whose pixels are the numbers of the classes, shown in their colours; beyond 256, 16-bit.

    Args:
        labels: (H, W), numbers below num_classes.
    """
    from PIL import Image

    if num_classes > 256:
        return Image.fromarray(labels.astype(np.uint16, copy=False))
    image = Image.fromarray(labels.astype(np.uint8, copy=False))
    image.putpalette(colours(num_classes).tobytes())
    return image
