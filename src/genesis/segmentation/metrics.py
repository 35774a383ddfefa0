"""How well labels agree: a confusion matrix, and what is read off it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from genesis.segmentation.arrays import Array

IGNORED = 255  # the label of pixels that don't count


class Scores(NamedTuple):
    """The first two are means over the classes that occur, in the mask or in what was found; the background is one."""

    miou: float  # intersection over union
    dice: float  # twice the intersection over the sum
    accuracy: float  # the share of pixels that are right
    iou: tuple[float, ...]  # of each class; 1 where it doesn't occur

    def __str__(self) -> str:
        """The text shown while training: mean IoU, and the object's if it is the only other class."""
        return f"mIoU {self.miou:.3f}" + (f", object IoU {self.iou[1]:.3f}" if len(self.iou) == 2 else "")


def confusion(found: Array, labels: Array, num_classes: int) -> Array:
    """(num_classes, num_classes) int64: how many pixels of class i were found to be j; ignored pixels left out.

        Example:
            >>> import numpy as np

    from genesis.segmentation.arrays import Array
            >>> from genesis.segmentation.metrics import confusion
            >>> confusion(np.array([0, 1, 1]), np.array([0, 0, 255]), 2).tolist()
            [[1, 1], [0, 0]]
    """
    counted = labels != IGNORED
    pairs = num_classes * labels[counted].astype(np.int64) + found[counted]
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def scores(matrix: Array) -> Scores:
    """The scores of a confusion matrix; 1 where nothing was to be found and nothing was."""
    right, both = np.diag(matrix), matrix.sum(axis=0) + matrix.sum(axis=1)
    occurs = both > 0
    iou, dice = (
        np.divide(part, of, out=np.ones(len(of)), where=occurs)
        for part, of in ((right, both - right), (2 * right, both))
    )
    if not occurs.any():
        return Scores(1.0, 1.0, 1.0, tuple(iou.tolist()))
    accuracy = right.sum() / matrix.sum()
    return Scores(float(iou[occurs].mean()), float(dice[occurs].mean()), float(accuracy), tuple(iou.tolist()))
