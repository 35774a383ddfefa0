"""Photographs to train on: the coins with their mask, the two parts, files of the user's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genesis.segmentation import photographs


def test_the_mask_of_the_coins() -> None:
    from scipy import ndimage
    from skimage import data

    mask = photographs.watershed_mask(data.coins())
    labels, count = ndimage.label(mask)
    areas = np.bincount(labels.ravel())[1:]
    assert (areas > 500).sum() == 24, "there are 24 coins in the photograph"
    assert areas[areas <= 500].sum() <= 10
    assert count >= 24
    coins = photographs.coins()
    (seen,), (held_out,) = coins.training, coins.held_out
    assert seen.values.shape == (3, 303, 256)
    assert held_out.values.shape == (3, 303, 128)
    np.testing.assert_array_equal(np.concatenate([seen.labels, held_out.labels], axis=1), mask)
    assert 0 <= seen.values.min() < 0.1
    assert 0.9 < seen.values.max() <= 1


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16", "1"])
@pytest.mark.parametrize("white", [1, 255])
def test_files_of_any_kind(mode: str, white: int, tmp_path: Path) -> None:
    """A mask is what is bright in it, whatever number stands for white."""
    pixels = np.zeros((4, 6), dtype=np.uint8)
    pixels[1:3, 2:4] = white
    values = {"1": pixels > 0, "I;16": pixels.astype(np.uint16) * 257}.get(mode, pixels)
    source = Image.fromarray(values) if mode == "I;16" else Image.fromarray(values).convert(mode)
    source.save(tmp_path / "picture.png")
    data = photographs.from_files(tmp_path / "picture.png", tmp_path / "picture.png")
    (seen,), (held_out,) = data.training, data.held_out
    assert data.name == "picture"
    assert data.classes == ("background", "object")
    assert seen.values.shape == (3, 4, 4)
    brightness = pixels / (white if mode == "1" else 255)
    np.testing.assert_allclose(np.concatenate([seen.values[0], held_out.values[0]], axis=1), brightness, atol=1e-6)
    np.testing.assert_array_equal(np.concatenate([seen.labels, held_out.labels], axis=1), pixels > 0)
