"""Where results go: no two in one place, none in the place of what a user has; what was written is known again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from genesis.segmentation import outputs, pictures, report, seals
from genesis.segmentation.pictures import Picture


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("paths", "expected"), [
    (["x/a.png", "x/a.jpg", "y/a.png", "b.png"], ["a_png", "a_jpg", "a_png_2", "b"]),
    (["x/a.png", "y/a.png", "a_png_2.png"], ["a_png", "a_png_3", "a_png_2"]),
    (["x/a.png", "y/a.png", "z/a.png", "a_png.png"], ["a_png_2", "a_png_3", "a_png_4", "a_png"]),
    (["A.png", "a.png"], ["A_png", "a_png_2"]),
    (["caf\u00e9.png", "cafe\u0301.png"], ["caf\u00e9_png", "cafe\u0301_png_2"]),
    (["x/a.b.png", "x/a_b.png"], ["a.b", "a_b"]),
    ([".png", "x/.png"], ["_png", "_png_2"]),
])  # fmt: skip
def test_names_are_unique(paths: list[str], expected: list[str]) -> None:
    found = outputs.names([Path(path) for path in paths])
    assert found == expected
    assert len({name.casefold() for name in found}) == len(found)


@given(st.lists(st.from_regex(r"(x/|y/)?[aA](_png)?(_2)?\.(png|PNG|jpg)", fullmatch=True), unique=True, max_size=12))
def test_whatever_the_pictures_are_called(paths: list[str]) -> None:
    found = outputs.names([Path(path) for path in paths])
    assert len({name.casefold() for name in found}) == len(paths)


def test_many_equal_names_take_no_time() -> None:
    assert len(set(outputs.names([Path(f"{n}/image.png") for n in range(20_000)]))) == 20_000


def write(source: str, folder: str = "out") -> outputs.Outputs:
    """The results of a picture, as a run writes them."""
    (places,) = outputs.plan([Path(source)], Path(folder))
    labels = np.zeros((2, 3), np.uint8)
    report.write(places, Path(source), Picture(Image.new("RGB", (3, 2))), labels, ("background", "thing"))
    return places


def test_a_second_run_replaces_what_the_first_wrote() -> None:
    for place in write("a.png"):
        assert seals.find(place) == ("a.png", True)
    assert write("a.png") == write("./a.png")
    for place in write("a.png"):
        with pytest.raises(
            ValueError, match=r"got out/a_.*, which is the result of a\.png; --overwrite replaces it \(and"
        ):
            outputs.plan([Path("elsewhere/a.png")], Path("out"))
        place.unlink()  # an interrupted run has written some
        write("a.png")


def resave(path: Path) -> None:
    if path.suffix == ".json":
        path.write_text(path.read_text().replace("thing", "dog"))
    else:
        image = Image.open(path)
        image.putpixel((0, 0), 1 if image.mode == "P" else (1, 2, 3))
        image.save(path)


def touch_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[60 if path.suffix == ".png" else 20] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("kind", outputs.Outputs._fields)
@pytest.mark.parametrize("change", [resave, touch_a_byte])
def test_what_a_user_changed_is_kept(kind: str, change: object) -> None:
    place = getattr(write("a.png"), kind)
    change(place)
    before = place.read_bytes()
    with pytest.raises(ValueError, match=rf"got {place}, which (was changed after )?genesis segment"):
        outputs.plan([Path("a.png")], Path("out"))
    assert place.read_bytes() == before
    assert outputs.plan([Path("a.png")], Path("out"), overwrite=True)


@pytest.mark.parametrize("kind", outputs.Outputs._fields)
@pytest.mark.parametrize("content", [b"", b"mine", b"{}", b"[1]", b'{"image": "a.png"}', b"\xff", b"[" * 100_000])
def test_files_of_a_user_are_kept(kind: str, content: bytes) -> None:
    Path("out").mkdir()
    (places,) = outputs.plan([Path("a.png")], Path("out"))
    getattr(places, kind).write_bytes(content)
    expected = r"'out': expected a folder where results replace no other file"
    with pytest.raises(ValueError, match=rf"{expected}, got out/a.*, which genesis segment did not write; --overwrite"):
        outputs.plan([Path("a.png")], Path("out"))
    assert outputs.plan([Path("a.png")], Path("out"), overwrite=True) == [places]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_a_run_reads_is_never_replaced(overwrite: bool) -> None:
    """Not the pictures, not the weights, through links neither."""
    for name in ("a.png", "a_mask.png", "a.json"):
        Path(name).write_bytes(b"mine")
    with pytest.raises(ValueError, match=r"got a_mask\.png, which this run reads"):
        outputs.plan([Path("a.png"), Path("a_mask.png")], Path(), overwrite)
    with pytest.raises(ValueError, match=r"got a\.json, which this run reads"):
        outputs.plan([Path("a.png")], Path(), True, also_read=[Path("a.json")])
    Path("out").mkdir()
    Path("out/b_mask.png").symlink_to("../a.png")
    Path("link").symlink_to("out")
    for folder in ("out", "link"):
        with pytest.raises(ValueError, match=rf"got {folder}/b_mask\.png, which this run reads"):
            outputs.plan([Path("a.png"), Path("b.png")], Path(folder), overwrite)
    os.link("a.png", "out/c_overlay.png")
    with pytest.raises(ValueError, match=r"got out/c_overlay\.png, which this run reads"):
        outputs.plan([Path("a.png"), Path("c.png")], Path("out"), overwrite)


def test_links_among_the_results() -> None:
    Path("out").mkdir()
    Path("out/a_mask.png").symlink_to("b_mask.png")
    with pytest.raises(ValueError, match=r"got out/a_mask\.png, which is no regular file"):
        outputs.plan([Path("a.png")], Path("out"), overwrite=True)  # it leads nowhere
    with pytest.raises(ValueError, match=r"which leads to where out/a_mask\.png does|which is no regular file"):
        outputs.plan([Path("a.png"), Path("b.png")], Path("out"), overwrite=True)
    Path("mine.png").write_bytes(b"mine")
    Path("out/a_mask.png").unlink()
    Path("out/a_mask.png").symlink_to("../mine.png")
    with pytest.raises(ValueError, match=r"got out/a_mask\.png, which genesis segment did not write"):
        outputs.plan([Path("a.png")], Path("out"))


def test_folders_that_are_none() -> None:
    Path("file").touch()
    Path("nowhere").symlink_to("none")
    for folder in ("file", "file/deeper", "nowhere", "nowhere/deeper"):
        with pytest.raises(NotADirectoryError, match="Not a folder"):
            outputs.plan([Path("a.png")], Path(folder))
    Path("out/a_mask.png").mkdir(parents=True)
    with pytest.raises(ValueError, match="which is no regular file"):
        outputs.plan([Path("a.png")], Path("out"), overwrite=True)


def test_a_sealed_png_is_a_whole_png() -> None:
    places = write("caf\udce9\u4e2d.png")
    for path in (places.mask, places.overlay):
        with Image.open(path) as image:
            image.verify()
        assert pictures.read(path).note == ""
        assert seals.is_result(path)
        assert seals.find(path) == ("caf\udce9\u4e2d.png", True)
    assert not seals.is_result(places.report)
