"""The overlay: each class is to be recognised on any ground; the legend says names and shares."""

from __future__ import annotations

import colorsys
from itertools import product

import numpy as np
import pytest
from PIL import Image, ImageDraw
from skimage import data

from genesis.segmentation import overlay, palette, pictures, report
from genesis.segmentation.pictures import Picture

NAMES = tuple(f"class {number}" for number in range(21))


def drawn(image: np.ndarray | Image.Image, labels: np.ndarray, names: tuple[str, ...] = NAMES) -> np.ndarray:
    picture = Picture(image if isinstance(image, Image.Image) else Image.fromarray(image))
    return np.asarray(overlay.overlay(picture, labels, names, report.count(labels, len(names))))


def hue(colour: np.ndarray) -> tuple[float, float]:
    """Hue and how far the colour is from grey, from 0 to 1."""
    red, green, blue = (int(part) / 255 for part in colour)
    return colorsys.rgb_to_hsv(red, green, blue)[0], max(red, green, blue) - min(red, green, blue)


@pytest.mark.parametrize("ground", [*product((0, 255), repeat=3), (128, 128, 128), (90, 140, 220)], ids=str)
def test_a_class_keeps_its_hue_on_any_ground(ground: tuple[int, int, int]) -> None:
    """Olive on blue is olive; a blend of the two is grey."""
    photo = np.broadcast_to(np.uint8(ground), (40, 21 * 40, 3)).copy()
    labels = np.repeat(np.arange(21, dtype=np.uint8), 40)[None].repeat(40, axis=0)
    shown = drawn(photo, labels)
    for number, colour in enumerate(palette.colours(21)):
        inside, edge = shown[20, 40 * number + 20], shown[20, 40 * number]
        if number == 0:
            assert tuple(inside) == ground
            continue
        np.testing.assert_array_equal(edge, colour)
        (expected, strength), (found, left) = hue(colour), hue(inside)
        assert left >= 0.45 * strength
        if strength:
            assert min(abs(found - expected), 1 - abs(found - expected)) < 0.03


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    photo = data.chelsea()
    labels = (np.indices(photo.shape[:2]).sum(axis=0) // 37 % 5).astype(np.uint8)
    whole = drawn(photo, labels)
    monkeypatch.setattr(pictures, "_BLOCK", 64)
    np.testing.assert_array_equal(drawn(photo, labels), whole)


def test_what_is_background_is_the_photograph() -> None:
    labels = np.zeros((300, 451), np.uint8)
    np.testing.assert_array_equal(drawn(data.chelsea(), labels)[:300, :451], data.chelsea())
    grey = np.full((4, 6), 0.5, np.float32)
    assert drawn(Image.fromarray(grey), np.zeros((4, 6), np.uint8))[0, 0].tolist() == [127] * 3


def test_edges_are_as_wide_as_the_picture_asks() -> None:
    labels = np.zeros((1500, 1500), np.uint8)
    labels[500:1000, 500:1000] = 1
    shown = drawn(np.full((1500, 1500), 255, np.uint8), labels)
    assert (shown[750, 500:510] == (128, 0, 0)).all(axis=1).tolist() == [True] * 3 + [False] * 7
    assert (shown[750, 490:500] == 255).all(), "the edge lies inside"


def said(labels: np.ndarray, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    text = ImageDraw.ImageDraw.text
    monkeypatch.setattr(
        ImageDraw.ImageDraw,
        "text",
        lambda self, place, said, **how: (texts.append(said), text(self, place, said, **how)),
    )
    drawn(np.zeros((*labels.shape, 3), np.uint8), labels, names)
    return texts


def test_the_legend(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.zeros((100, 100), np.uint8)
    labels[:30] = 2
    labels[99, 99] = 1
    names = ("ground", "a\nb", "n" * 99, "absent")
    assert said(labels, names, monkeypatch) == ["ground 70.0 %", f"{'n' * 39}… 30.0 %", "a b < 0.1 %"]
    shown = drawn(np.zeros((100, 100, 3), np.uint8), labels, names)
    for number in (1, 2):
        swatch = (shown[100:] == palette.colours(4)[number]).all(axis=2)
        assert swatch.sum() > 50
    assert not (shown[100:] == palette.colours(4)[3]).all(axis=2).any()


def test_a_legend_of_many_classes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.arange(300, dtype=np.uint16).reshape(10, 30)
    texts = said(labels, tuple(f"class {number}" for number in range(300)), monkeypatch)
    assert len(texts) == 24
    assert texts[-1] == "and 277 more"


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1)])
def test_pictures_thinner_than_their_legend(size: tuple[int, int]) -> None:
    shown = drawn(np.full((*size, 3), 77, np.uint8), np.ones(size, np.uint8))
    height, width = size
    tinted = np.add((np.array([128, 0, 0]) * 144), 77 * 112) // 256
    np.testing.assert_array_equal(shown[:height, :width], np.broadcast_to(tinted, (height, width, 3)))
    assert (shown[height:] == (128, 0, 0)).all(axis=2).sum() > 50, "the legend is whole"
