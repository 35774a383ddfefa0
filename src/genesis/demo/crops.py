"""Random pieces of a photograph, turned and dimmed, so that one picture is many."""

from __future__ import annotations

import numpy as np

from genesis.demo.photograph import Photograph
from genesis.errors import describe


def batch(
    photograph: Photograph, generator: np.random.Generator, batch_size: int, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Random square crops with random flips, quarter turns and changes of brightness and contrast.

    Args:
        photograph: where to cut; at least size × size.
        generator: draws; the same state gives the same crops.
    Returns: images and masks, each (batch_size, 1, size, size) float32; masks are 0 or 1.
    """
    pairs = [_augmented(*_crop(photograph, generator, size), generator) for _ in range(batch_size)]
    images, masks = zip(*pairs, strict=True)
    return np.stack(images)[:, None], np.stack(masks)[:, None]


def check_size(photograph: Photograph, size: int) -> None:
    """Raise if the photograph is too small to cut crops of this size."""
    height, width = photograph.image.shape
    if min(height, width) < size:
        raise ValueError(
            describe("demo", "image", f"at least {size}×{size} pixels to train on", f"{width}×{height} of them")
        )


def _crop(photograph: Photograph, generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    height, width = photograph.image.shape
    top = generator.integers(height - size + 1)
    left = generator.integers(width - size + 1)
    window = np.s_[top : top + size, left : left + size]
    return photograph.image[window], photograph.mask[window].astype(np.float32)


def _augmented(image: np.ndarray, mask: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    quarter_turns, flipped = int(generator.integers(4)), generator.random() < 0.5
    image, mask = np.rot90(image, quarter_turns), np.rot90(mask, quarter_turns)
    if flipped:
        image, mask = np.fliplr(image), np.fliplr(mask)
    contrast, brightness = generator.uniform(0.7, 1.3), generator.uniform(-0.15, 0.15)
    return np.clip(image * contrast + brightness, 0, 1, dtype=np.float32), mask
