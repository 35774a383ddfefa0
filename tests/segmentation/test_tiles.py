"""Tiles: their cores are the image, they overlap, and a tiled image gives the result of the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import genesis
from genesis import models
from genesis.segmentation import tiles
from genesis.segmentation.recipe import Recipe
from genesis.segmentation.segmenter import Segmenter, decide, enlarged_labels, for_inference


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 20), st.data())
def test_cores_are_the_image(length: int, tile: int, data: st.DataObject) -> None:
    overlap = 32 * data.draw(st.integers(0, tile - 1))
    windows = tiles.windows(length, 32 * tile, overlap)
    assert [index for window in windows for index in range(length)[window.core]] == list(range(length))
    for window in windows:
        assert window.start % 32 == 0
        assert 0 <= window.start <= window.core_start < window.core_stop <= window.stop <= length
        assert window.stop - window.start <= 32 * tile
        assert window.core_start == 0 or window.core_start - window.start == overlap // 2
        assert window.core_stop == length or window.stop - window.core_stop >= overlap // 2
        assert range(window.start, window.stop)[window.core_in_seen] == range(length)[window.core]


def unet_segmenter(tile: int, overlap: int) -> Segmenter:
    genesis.manual_seed(0)
    recipe = Recipe("unet", {"in_channels": 3, "num_classes": 3, "width": 2, "depth": 3}, ("a", "b", "c"), (0.5,), (1,))
    return for_inference(recipe.build(), recipe, tile=tile, overlap=overlap)


def test_a_4k_image_by_tiles_is_that_in_one_piece() -> None:
    """The 2 + 2 convolutions of each of 3 levels see less than 64 pixels far, half of the overlap."""
    values = np.random.default_rng(0).random((3, 2160, 3840), dtype=np.float32)
    whole = unet_segmenter(0, 128).logits(values)
    tiled = unet_segmenter(1024, 128).logits(values)
    assert whole.std(axis=(1, 2)).min() > 0
    np.testing.assert_allclose(tiled, whole, rtol=0, atol=1e-5 * np.abs(whole).max())
    assert (decide(whole) == decide(tiled)).mean() > 0.99999


def test_near_the_seams_a_small_overlap_shows() -> None:
    values = np.random.default_rng(0).random((3, 64, 256), dtype=np.float32)
    whole, tiled = unet_segmenter(0, 0).logits(values), unet_segmenter(128, 0).logits(values)
    difference = np.abs(tiled - whole).max(axis=(0, 1)) / np.abs(whole).max()
    assert difference[126:130].max() > 1e-3
    assert difference[:64].max() < 1e-5
    assert difference[192:].max() < 1e-5


@pytest.mark.parametrize(("tile", "overlap", "said"), [
    (100, 0, "'tile': expected a positive multiple of 32, got 100"),
    (64, 64, r"'overlap': expected a multiple of 32 below tile \(64\), got 64"),
    (64, 16, "'overlap': expected a multiple of 32"),
])  # fmt: skip
def test_sizes_that_do_not_fit(tile: int, overlap: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        unet_segmenter(tile, overlap)


@pytest.mark.parametrize("size", [(67, 90), (20, 31), (5, 7)])
def test_enlarged_labels_are_those_of_interpolated_logits(size: tuple[int, int]) -> None:
    logits = np.random.default_rng(0).standard_normal((4, 10, 13)).astype(np.float32)
    enlarged = genesis.nn.functional.interpolate(genesis.from_numpy(logits[None]), size=size, mode="bilinear")
    assert (enlarged_labels(logits, *size) == decide(enlarged.numpy()[0])).mean() > 0.999


def test_a_network_with_global_context_runs_by_tiles() -> None:
    genesis.manual_seed(0)
    recipe = Recipe("deeplabv3_resnet50", {"num_classes": 2}, ("a", "b"), (0.5,) * 3, (0.5,) * 3)
    model = models.deeplabv3_resnet50(num_classes=2, aux_loss=True)
    values = np.random.default_rng(0).random((3, 64, 160), dtype=np.float32)
    segmenter = for_inference(model, recipe, tile=96, overlap=32)
    assert model.aux_classifier is None
    assert segmenter.logits(values).shape == (2, 64, 160)
