"""Every kind of picture file: read in the right size and colours, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from genesis.files import replaced
from genesis.segmentation import palette, pictures

ORANGE = (200, 100, 40)


def rgb(width: int = 6, height: int = 4) -> Image.Image:
    image = Image.new("RGB", (width, height), ORANGE)
    image.putpixel((0, 0), (0, 0, 255))
    return image


def pixels(path: Path) -> np.ndarray:
    picture = pictures.read(path)
    assert picture.image.mode in ("RGB", "F")
    return np.rint(pictures.values(picture.image, 3).transpose(1, 2, 0) * 255).astype(int)


@pytest.mark.parametrize(("mode", "ending"), [
    ("RGB", "png"), ("RGB", "bmp"), ("RGB", "tif"), ("RGB", "ppm"), ("RGBA", "png"), ("P", "png"), ("P", "gif"),
])  # fmt: skip
def test_what_keeps_its_colours(tmp_path: Path, mode: str, ending: str) -> None:
    image = rgb().convert(mode) if mode != "P" else rgb().quantize(4)
    image.save(tmp_path / f"a.{ending}")
    np.testing.assert_array_equal(pixels(tmp_path / f"a.{ending}"), np.asarray(rgb()))


@pytest.mark.parametrize(("mode", "ending"), [("RGB", "jpg"), ("CMYK", "jpg"), ("CMYK", "tif"), ("RGB", "webp")])
def test_what_keeps_them_nearly(tmp_path: Path, mode: str, ending: str) -> None:
    Image.new("RGB", (16, 16), ORANGE).convert(mode).save(tmp_path / f"a.{ending}", quality=95)
    np.testing.assert_allclose(pixels(tmp_path / f"a.{ending}"), np.broadcast_to(ORANGE, (16, 16, 3)), atol=6)


@pytest.mark.parametrize(("mode", "value"), [("1", 1), ("L", 255)])
def test_grey(tmp_path: Path, mode: str, value: int) -> None:
    Image.new(mode, (3, 2), value).save(tmp_path / "a.png")
    assert (pixels(tmp_path / "a.png") == 255).all()


def test_16_bits_stay_16_bits(tmp_path: Path) -> None:
    deep = np.array([[0, 1, 65535], [256, 257, 40000]], dtype=np.uint16)
    for ending in ("png", "tif"):
        Image.fromarray(deep).save(tmp_path / f"a.{ending}")
        image = pictures.read(tmp_path / f"a.{ending}").image
        np.testing.assert_allclose(pictures.values(image, 1)[0] * 65535, deep, atol=0.01)


def test_real_numbers_from_0_to_1(tmp_path: Path) -> None:
    Image.fromarray(np.float32([[0, 0.25], [0.5, 1]])).save(tmp_path / "a.tif")
    assert pictures.values(pictures.read(tmp_path / "a.tif").image, 1).tolist() == [[[0, 0.25], [0.5, 1]]]


@pytest.mark.parametrize("value", [-1.0, 1.5, float("nan")])
def test_real_numbers_of_unknown_meaning(tmp_path: Path, value: float) -> None:
    Image.fromarray(np.float32([[0, value]])).save(tmp_path / "a.tif")
    with pytest.raises(ValueError, match=r"expected a picture, got .*its values go from .*, and not from 0 to 1"):
        pictures.read(tmp_path / "a.tif")


def test_what_is_transparent_is_white(tmp_path: Path) -> None:
    image = rgb().convert("RGBA")
    image.putpixel((1, 0), (*ORANGE, 0))
    image.save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png")[0, 1].tolist() == [255, 255, 255]
    indexed = rgb().quantize(4)
    indexed.save(tmp_path / "b.png", transparency=indexed.getpixel((0, 0)))
    assert pixels(tmp_path / "b.png")[0, :2].tolist() == [[255, 255, 255], list(ORANGE)]


def test_the_turn_that_the_camera_noted_is_made(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90° clockwise
    rgb().save(tmp_path / "a.png", exif=exif)
    shown = pixels(tmp_path / "a.png")
    assert shown.shape == (6, 4, 3)
    assert shown[0, 3].tolist() == [0, 0, 255]


def test_of_an_animation_the_first_picture(tmp_path: Path) -> None:
    rgb().save(tmp_path / "a.gif", save_all=True, append_images=[Image.new("RGB", (6, 4), "red")])
    picture = pictures.read(tmp_path / "a.gif")
    assert picture.note == "the first of 2 pictures in the file"
    np.testing.assert_array_equal(np.asarray(picture.image), np.asarray(rgb()))


@pytest.mark.parametrize(("name", "content", "said"), [
    ("a.png", b"", "an empty file"),
    ("a.jpg", b"no picture at all", "cannot identify"),
    ("a.png", "cut", "truncated|broken|Truncated"),
    ("a.jpg", "cut", "truncated"),
    ("a.tif", "cut", "."),
    ("a.gif", "cut", "."),
])  # fmt: skip
def test_files_that_are_no_pictures(tmp_path: Path, name: str, content: bytes | str, said: str) -> None:
    path = tmp_path / name
    if content == "cut":
        noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
        content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"argument 'image': expected a picture, got .*{name}: .*({said})"):
        pictures.read(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        pictures.read(tmp_path / "none.png")


def test_a_decompression_bomb_is_refused(tmp_path: Path) -> None:
    Image.new("1", (20000, 20000)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"exceeds limit"):
        pictures.read(tmp_path / "a.png")


@pytest.mark.parametrize(("size", "shorter", "expected"), [
    ((640, 480), 520, (693, 520)), ((480, 640), 520, (520, 693)), ((100, 100), 520, (520, 520)),
    ((640, 480), 0, (640, 480)), ((1, 1), 520, (520, 520)), ((10000, 10), 100, (800, 1)),
])  # fmt: skip
def test_resizing_as_torchvision_does(size: tuple[int, int], shorter: int, expected: tuple[int, int]) -> None:
    assert pictures.resized(Image.new("RGB", size), shorter, 8 * shorter).size == expected


@pytest.mark.parametrize("image", [Image.new("L", (3, 2), 7), Image.new("1", (3, 2), 1), rgb(3, 2).quantize(4)])
def test_masks_are_numbers_not_colours(tmp_path: Path, image: Image.Image) -> None:
    image.save(tmp_path / "mask.png")
    indices = pictures.read_indices(tmp_path / "mask.png")
    np.testing.assert_array_equal(indices, np.asarray(image).astype(int))


def test_a_mask_with_colours_is_refused(tmp_path: Path) -> None:
    rgb().save(tmp_path / "mask.png")
    with pytest.raises(ValueError, match=r"'mask': expected one channel with a class's number .*mask\.png: 3 channels"):
        pictures.read_indices(tmp_path / "mask.png")


def test_colours_are_those_of_pascal_voc() -> None:
    assert palette.colours(21)[[0, 1, 2, 3, 15, 20]].tolist() == [
        [0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0], [192, 128, 128], [0, 64, 128],
    ]  # fmt: skip
    assert len(np.unique(palette.colours(256), axis=0)) == 256


@pytest.mark.parametrize("num_classes", [2, 256, 300])
def test_masks_come_back_as_they_were(tmp_path: Path, num_classes: int) -> None:
    labels = np.random.default_rng(0).integers(0, num_classes, (5, 7), dtype=np.uint16)
    pictures.save_png(palette.mask_image(labels, num_classes), tmp_path / "mask.png")
    np.testing.assert_array_equal(pictures.read_indices(tmp_path / "mask.png"), labels)


def test_the_overlay_tints_all_but_the_first_class() -> None:
    overlay = np.asarray(palette.overlay(rgb(), np.eye(4, 6, dtype=np.uint16), 2))
    assert overlay[0, 1].tolist() == list(ORANGE)
    assert overlay[1, 1].tolist() == [164, 50, 20]
    grey = palette.overlay(Image.fromarray(np.full((4, 6), 0.5, np.float32)), np.zeros((4, 6), np.uint16), 2)
    assert np.asarray(grey)[0, 0].tolist() == [127, 127, 127]


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a" / "note.txt"
    with replaced(path) as temporary:
        temporary.write_text("first")

    def fail() -> None:
        with replaced(path) as temporary:
            temporary.write_text("second")
            raise RuntimeError("full")

    with pytest.raises(RuntimeError, match="full"):
        fail()
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]
