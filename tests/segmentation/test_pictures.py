"""Every kind of picture file: read in the right size and colours, or refused with the reason."""

from __future__ import annotations

import os
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
    """Of all of a picture, and the same of it part by part."""
    picture = pictures.read(path)
    whole = picture.values(3)
    width, height = picture.size
    boxes = [(x, y, min(x + 2, width), min(y + 3, height)) for y in range(0, height, 3) for x in range(0, width, 2)]
    for box in boxes:
        np.testing.assert_array_equal(picture.values(3, box), whole[:, box[1] : box[3], box[0] : box[2]])
    return np.rint(whole.transpose(1, 2, 0) * 255).astype(int)


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
        values = pictures.read(tmp_path / f"a.{ending}").values(1)
        np.testing.assert_allclose(values[0] * 65535, deep, atol=0.01)


def test_real_numbers_from_0_to_1(tmp_path: Path) -> None:
    Image.fromarray(np.float32([[0, 0.25], [0.5, 1]])).save(tmp_path / "a.tif")
    assert pictures.read(tmp_path / "a.tif").values(1).tolist() == [[[0, 0.25], [0.5, 1]]]


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
    np.testing.assert_array_equal(pixels(tmp_path / "a.gif"), np.asarray(rgb()))


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


def test_more_pixels_than_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (20000, 20000)).save(path)
    for call in (pictures.read, pictures.read_indices):
        with pytest.raises(ValueError, match=r"a\.png: more than 200 megapixels, which --max-megapixels allows"):
            call(path)
    rgb(40, 30).save(path)
    with pytest.raises(ValueError, match=r"a\.png: more than 0\.001 megapixels"):
        pictures.read(path, most_megapixels=0.001)
    limit = Image.MAX_IMAGE_PIXELS
    assert pictures.read(path, most_megapixels=0.0012).size == (40, 30)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_a_limit_above_pillows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rgb(40, 30).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert pictures.read(tmp_path / "a.png").size == (40, 30)


@pytest.mark.parametrize("header", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"\0\0\1\0", b"qoif"])
def test_only_the_formats_that_are_meant(tmp_path: Path, header: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the name says, no other decoder of Pillow's is asked; that of EPS would start Ghostscript."""
    path = tmp_path / "a.png"
    path.write_bytes(header + bytes(200))
    monkeypatch.setattr("subprocess.Popen", None)
    for call in (pictures.read, pictures.read_indices):
        with pytest.raises(ValueError, match=r"a\.png: cannot identify it as BMP, GIF, JPEG, PNG, PPM, TIFF or WEBP"):
            call(path)


def test_every_place_that_opens_pictures_names_the_formats() -> None:
    package = Path(pictures.__file__).parents[1]
    opened = [line for file in package.rglob("*.py") for line in file.read_text().splitlines() if "Image.open(" in line]
    assert opened
    assert all("formats=FORMATS" in line for line in opened)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(ValueError, match=r"a\.png: not a regular file"):
        pictures.read(tmp_path / "a.png")


def test_no_memory_for_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(image: object) -> None:
        raise MemoryError

    rgb().save(tmp_path / "a.png")
    monkeypatch.setattr("PIL.ImageOps.exif_transpose", fail)
    with pytest.raises(ValueError, match=r"a\.png: there is no memory for its 6×4 pixels"):
        pictures.read(tmp_path / "a.png")


@pytest.mark.parametrize(("size", "shorter", "expected"), [
    ((640, 480), 520, (693, 520)), ((480, 640), 520, (520, 693)), ((100, 100), 520, (520, 520)),
    ((640, 480), 0, (640, 480)), ((1, 1), 520, (520, 520)), ((10000, 10), 100, (800, 1)),
])  # fmt: skip
def test_resizing_as_torchvision_does(size: tuple[int, int], shorter: int, expected: tuple[int, int]) -> None:
    assert pictures.Picture(Image.new("RGB", size)).resized(shorter, 8 * shorter).size == expected


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "I;16", "I"])
def test_resizing_converts_first(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As RGB, or grey from 0 to 1, and not the numbers of a palette; block by block gives what one block gives."""
    levels = np.random.default_rng(0).integers(0, 256, (20, 30), dtype=np.uint8)
    image = Image.fromarray(levels)
    if mode.startswith("I"):
        image = Image.fromarray(levels.astype(np.uint16 if mode == "I;16" else np.int32) * 257)
        expected = Image.fromarray(levels.astype(np.float32) / 255)
    else:
        image = image.convert("RGB").quantize(16) if mode == "P" else image.convert(mode)
        expected = image.convert("RGB")
    resized = expected.resize((15, 10), Image.Resampling.BILINEAR)
    for block in (pictures._BLOCK, 7):
        monkeypatch.setattr(pictures, "_BLOCK", block)
        found = pictures.Picture(image).resized(10, 80).values(3)
        np.testing.assert_allclose(found, pictures.values(resized, 3), atol=1e-6)


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
    palette.mask_image(labels, num_classes).save(tmp_path / "mask.png")
    np.testing.assert_array_equal(pictures.read_indices(tmp_path / "mask.png"), labels)


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
