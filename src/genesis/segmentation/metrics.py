"""How well labels agree: a confusion matrix, and what is read off it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

IGNORED = 255  # the label of pixels that don't count


class Scores(NamedTuple):
    """Means over the classes that occur, in the mask or in what was found."""

    miou: float  # intersection over union
    dice: float  # twice the intersection over the sum
    accuracy: float  # the share of pixels that are right


def confusion(found: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """(num_classes, num_classes) int64: how many pixels of class i were found to be j; ignored pixels left out.

    Example:
        >>> import numpy as np
        >>> from genesis.segmentation.metrics import confusion
        >>> confusion(np.array([0, 1, 1]), np.array([0, 0, 255]), 2).tolist()
        [[1, 1], [0, 0]]
    """
    counted = labels != IGNORED
    pairs = num_classes * labels[counted].astype(np.int64) + found[counted]
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def scores(matrix: np.ndarray) -> Scores:
    """The scores of a confusion matrix; 1 where nothing was to be found and nothing was."""
    right, labelled, found = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    occurs = (labelled + found) > 0
    if not occurs.any():
        return Scores(1.0, 1.0, 1.0)
    right, both = right[occurs], (labelled + found)[occurs]
    return Scores(
        float((right / (both - right)).mean()), float((2 * right / both).mean()), float(right.sum() / matrix.sum())
    )
