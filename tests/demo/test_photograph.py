"""The photograph, its mask, and the crops that are cut from it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from genesis.demo import crops, photograph
from genesis.demo.photograph import Photograph
from genesis.demo.training import intersection_over_union


def test_the_coins_and_their_mask() -> None:
    from scipy import ndimage

    coins = photograph.coins()
    assert coins.image.shape == coins.mask.shape == (303, 384)
    assert coins.image.dtype == np.float32
    assert 0 <= coins.image.min() < 0.1
    assert 0.9 < coins.image.max() <= 1
    labels, count = ndimage.label(coins.mask)
    areas = np.bincount(labels.ravel())[1:]
    assert (areas > 500).sum() == 24, "there are 24 coins in the photograph"
    assert areas[areas <= 500].sum() <= 10
    assert count >= 24


def test_the_parts_are_the_whole() -> None:
    coins = photograph.coins()
    seen, held_out = coins.training_part(), coins.held_out_part()
    assert seen.image.shape == (303, 256)
    assert held_out.image.shape == (303, 128)
    np.testing.assert_array_equal(np.concatenate([seen.mask, held_out.mask], axis=1), coins.mask)


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16", "1"])
def test_pictures_of_any_kind_are_read_between_black_and_white(mode: str, tmp_path) -> None:
    pixels = np.zeros((4, 6), dtype=np.uint8)
    pixels[1:3, 2:4] = 255
    source = Image.fromarray(pixels)
    if mode == "I;16":
        source = Image.fromarray(pixels.astype(np.uint16) * 257)
    else:
        source = source.convert(mode)
    source.save(tmp_path / "picture.png")
    read = photograph.from_files(tmp_path / "picture.png", tmp_path / "picture.png")
    np.testing.assert_allclose(read.image, pixels / 255, atol=1e-6)
    np.testing.assert_array_equal(read.mask, pixels > 0)


def gradient() -> Photograph:
    """Each pixel knows where it is, and the mask is its bright half."""
    image = np.linspace(0.3, 0.6, 40 * 30, dtype=np.float32).reshape(40, 30)
    return Photograph("gradient", image, image > 0.45)


def test_crops_have_their_masks_with_them() -> None:
    images, masks = crops.batch(gradient(), np.random.default_rng(0), batch_size=32, size=16)
    assert images.shape == masks.shape == (32, 1, 16, 16)
    assert images.dtype == masks.dtype == np.float32
    assert set(np.unique(masks)) == {0.0, 1.0}
    assert images.min() >= 0
    assert images.max() <= 1
    for image, mask in zip(images, masks, strict=True):
        if 0 < mask.mean() < 1:  # whatever was turned and dimmed, the mask still marks the brighter pixels
            assert image[mask == 1].min() >= image[mask == 0].max()


def test_crops_are_turned_flipped_and_dimmed() -> None:
    images, _ = crops.batch(gradient(), np.random.default_rng(0), batch_size=64, size=16)
    right, down = np.sign(images[:, 0, 0, 1] - images[:, 0, 0, 0]), np.sign(images[:, 0, 1, 0] - images[:, 0, 0, 0])
    assert {(r, d) for r, d in zip(right, down, strict=True) if r and d} == {(1, 1), (1, -1), (-1, 1), (-1, -1)}
    across = np.abs(images[:, 0, 0, 1] - images[:, 0, 0, 0]) < np.abs(images[:, 0, 1, 0] - images[:, 0, 0, 0])
    assert 16 < across.sum() < 48, "a quarter turn exchanges rows and columns"
    assert images.mean(axis=(1, 2, 3)).std() > 0.05


def test_the_same_generator_cuts_the_same_crops() -> None:
    first, again = (crops.batch(gradient(), np.random.default_rng(3), 4, 16) for _ in range(2))
    np.testing.assert_array_equal(first[0], again[0])
    other = crops.batch(gradient(), np.random.default_rng(4), 4, 16)
    assert (first[0] != other[0]).any()


def test_intersection_over_union() -> None:
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert intersection_over_union(a, b) == pytest.approx(1 / 3)
    assert intersection_over_union(a, a) == 1
    assert intersection_over_union(a & b & ~a, a & ~a) == 1
