"""`genesis segment` among files that are not its own: nothing is overwritten, and no picture ends the run."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from skimage import data

import genesis
from genesis import models
from genesis.errors import OutOfMemoryError
from genesis.segmentation import outputs, pictures, report, segmenter
from genesis.segmentation.progress import Counter
from genesis.segmentation.recipe import Recipe
from genesis.segmentation.segmenter import Segmenter, for_inference
from tests.cli.test_segment import results, segment

UNET = ["--weights", "unet.safetensors", "--model", "unet"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    genesis.manual_seed(0)
    genesis.save(models.unet(in_channels=3, num_classes=3, width=2, depth=2), "unet.safetensors")


def noise(height: int = 20, width: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


def contents(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


# --- where results go ------------------------------------------------------------------------------------------------


def test_files_of_the_user_beside_the_pictures_stay(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pics").mkdir()
    noise().save("pics/a.png")
    Image.new("L", (30, 20), 1).save("pics/a_mask.png")
    Path("pics/a.json").write_text("my notes")
    before = contents("pics")
    assert segment("pics/a.png", *UNET, "--out", "pics") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "genesis segment: argument 'out': expected a folder where results replace no other file, got pics/a_mask.png, "
        "which genesis segment did not write; --overwrite replaces it (and 1 more)\n"
    )
    assert contents("pics") == before
    assert segment("pics/a.png", *UNET, "--out", "pics", "--overwrite") == 0
    assert json.loads(Path("pics/a.json").read_text())["image"] == "pics/a.png"


def test_the_same_command_again(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is in and out at once: results are no pictures, and are written anew."""
    Path("pics").mkdir()
    noise().save("pics/a.png")
    noise(9, 9).save("pics/b.jpg")
    for pictures_meant in ("pics", "pics/*.*g", "pics"):
        assert segment(pictures_meant, *UNET, "--out", "pics") == 0
        assert capsys.readouterr().out.startswith("2 of 2 pictures")
    assert len(contents("pics")) == 2 + 2 * 3


def test_as_many_results_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("x/a.png", "y/a.png", "a_png_2.png"):
        Path(name).parent.mkdir(exist_ok=True)
        noise().save(name)
    assert segment("x/a.png", "y/a.png", "a_png_2.png", "./x/a.png", *UNET) == 0
    assert capsys.readouterr().out.startswith("3 of 3 pictures")
    reports = [json.loads(path.read_text()) for path in Path("runs/segment").glob("*.json")]
    assert sorted(report["image"] for report in reports) == ["a_png_2.png", "x/a.png", "y/a.png"]


def test_a_result_in_the_place_of_the_weights(capsys: pytest.CaptureFixture[str]) -> None:
    noise().save("a.png")
    Path("names.json").write_text("a\nb\nc\n")
    noise().save("names.png")
    command = ["names.png", *UNET, "--classes", "names.json", "--out", ".", "--overwrite"]
    assert segment(*command) == 2
    assert "got names.json, which this run reads" in capsys.readouterr().err
    assert Path("names.json").read_text() == "a\nb\nc\n"


# --- one picture among others ----------------------------------------------------------------------------------------


def kinds() -> dict[str, Image.Image]:
    image = noise()
    deep = np.asarray(image.convert("L")).astype(np.uint16) * 257
    turned = Image.Exif()
    turned[0x0112] = 6
    image.info["exif"] = turned.tobytes()
    return {
        "rgb.png": image, "palette.png": image.quantize(16), "cmyk.jpg": image.convert("CMYK"),
        "deep.png": Image.fromarray(deep), "deep.tif": Image.fromarray(deep), "grey.png": image.convert("L"),
        "bits.png": image.convert("1"), "clear.png": image.convert("RGBA"), "clear_grey.png": image.convert("LA"),
        "moving.gif": image, "phone.jpg": image, "moving.webp": image, "dot.png": noise(1, 1),
        "line.png": noise(1, 10_000), "column.png": noise(10_000, 1),
    }  # fmt: skip


def test_kinds_of_pictures_by_tiles_as_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    """And all of them go through: the tiles of each are converted by themselves."""
    Path("pics").mkdir()
    images = kinds()
    for name, image in images.items():
        more = {"save_all": True, "append_images": [noise().rotate(90)]} if name.startswith("moving") else {}
        more |= {"format": "MPO", "append_images": [noise()], "save_all": True} if name == "phone.jpg" else {}
        image.save(Path("pics", name), exif=image.info.get("exif", b""), **more)
    for tile, folder in (("32", "tiles"), ("0", "whole")):
        assert segment("pics", *UNET, "--tile", tile, "--overlap", "0", "--out", folder) == 0
        captured = capsys.readouterr()
        assert captured.out.startswith(f"{len(images)} of {len(images)} pictures")
        assert len(captured.err.splitlines()) == 3, "of the two animations and the pair"
    for name in outputs.names([Path(name) for name in images]):
        turned = name == "rgb"
        for folder in ("tiles", "whole"):
            mask = results(name, folder)[1]
            size = pictures.read(next(Path("pics").glob(f"{name.replace('_', '?')}*"))).size
            assert mask.shape == size[::-1]
            assert not turned or mask.shape == (30, 20)
    np.testing.assert_array_equal(results("rgb", "tiles")[2], results("rgb", "whole")[2])


def test_one_bad_picture_among_good_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is named in a line, and the last one still comes through."""
    Path("pics").mkdir()
    path = Path("pics/cut.jpg")
    noise(64, 64).save(path)
    path.write_bytes(path.read_bytes()[:700])
    Image.new("1", (20_000, 20_000)).save("pics/huge.png")
    Path("pics/mail.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")
    os.mkfifo("pics/pipe.png")
    Image.new("L", (5, 5)).save("pics/odd[red].png")
    noise().save("pics/zebra.png")
    assert segment("pics", *UNET) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("2 of 6 pictures")
    lines = captured.err.splitlines()
    assert [line.split("got pics/")[1].split(":")[0] for line in lines] == [
        "cut.jpg",
        "huge.png",
        "mail.png",
        "pipe.png",
    ]
    assert "truncated" in lines[0]
    assert lines[1].endswith("huge.png: more than 200 megapixels, which --max-megapixels allows")
    assert lines[2].endswith("cannot identify it as BMP, GIF, JPEG, PNG, PPM, TIFF or WEBP")
    assert sorted(path.name for path in Path("runs/segment").glob("*.json")) == ["odd[red].json", "zebra.json"]


def test_a_limit_of_pixels(capsys: pytest.CaptureFixture[str]) -> None:
    noise(40, 50).save("a.png")
    assert segment("a.png", *UNET, "--max-megapixels", "0.0019") == 1
    assert "a.png: more than 0.0019 megapixels" in capsys.readouterr().err
    assert segment("a.png", *UNET, "--max-megapixels", "0.002") == 0


def test_a_full_disk_names_the_picture(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    noise().save("a.png")
    monkeypatch.setattr(report, "_write_png", fail)
    assert segment("a.png", *UNET) == 1
    assert capsys.readouterr().err == "genesis segment: a.png: [Errno 28] No space left on device\n"


# --- memory ----------------------------------------------------------------------------------------------------------

# A picture first: libraries, kernels and the network are then in memory, and the limit is of what pictures take.
LIMITED = """
import resource, sys
from pathlib import Path
from genesis import cli
assert cli.main(["segment", "z.png", *sys.argv[4:], "--out", "before"]) == 0
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (100 << 20), -1))
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux' account of memory")
def test_a_picture_without_room_is_refused_and_the_next_one_is_done() -> None:
    Image.new("RGB", (8000, 6000)).save("a_huge.png", compress_level=1)
    noise().save("z.png")
    command = [sys.executable, "-c", LIMITED, "segment", "a_huge.png", "z.png", *UNET]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert run.stdout.splitlines()[1].startswith("1 of 2 pictures")
    assert run.stderr.count("\n") == 1
    assert "a_huge.png: there is no memory for its 8000×6000 pixels" in run.stderr
    assert Path("runs/segment/z.json").exists()


def test_no_more_than_a_tile_is_made_into_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole photograph as float32 takes 12 bytes a pixel, its logits 4 times the number of classes."""
    sizes: list[int] = []
    values, decide = pictures.values, segmenter.decide

    def spied(image: Any, channels: int) -> np.ndarray:
        sizes.append(image.width * image.height)
        return values(image, channels)

    monkeypatch.setattr(pictures, "values", spied)
    monkeypatch.setattr(segmenter, "decide", lambda logits: (sizes.append(logits[0].size), decide(logits))[1])
    Image.fromarray(data.chelsea()).save("chelsea.png")
    assert segment("chelsea.png", *UNET, "--tile", "64", "--overlap", "32") == 0
    assert max(sizes) == 64 * 64


def test_own_mean_and_deviation_of_a_picture_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe("unet", {"in_channels": 1, "num_classes": 2, "width": 2, "depth": 2}, ("a", "b"), None, None)
    monkeypatch.setattr(pictures, "_BLOCK", 50)
    photo = pictures.Picture(Image.fromarray(data.coins()))
    seen = photo.values(1)
    mean, deviation = for_inference(recipe.build(), recipe)._normalization(
        lambda rows, columns: seen[:, rows, columns], *seen.shape[1:]
    )
    assert (mean, deviation) == (pytest.approx(seen.mean(), rel=1e-5), pytest.approx(seen.std() + 1e-6, rel=1e-5))


NO_MEMORY = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")


def starve(monkeypatch: pytest.MonkeyPatch, largest: int, error: Exception = NO_MEMORY) -> None:
    """No memory for tiles with more than so many rows or columns."""
    run = Segmenter._run

    def limited(self: Segmenter, values: np.ndarray) -> np.ndarray:
        if max(values.shape[1:]) > largest:
            raise error
        return run(self, values)

    monkeypatch.setattr(Segmenter, "_run", limited)


NO_MEMORY_FOR_A_MAP = OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize(
    "error", [NO_MEMORY, NO_MEMORY_FOR_A_MAP, MemoryError(), OutOfMemoryError("cuda:0: out of memory")], ids=repr
)
def test_smaller_tiles_where_memory_does_not_suffice(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starve(monkeypatch, 128, error)
    Image.fromarray(data.coins()).save("coins.png")
    noise().save("small.png")
    assert segment("small.png", "coins.png", *UNET, "--overlap", "64") == 0
    note = "in tiles of 128, as memory did not suffice for 2048"
    assert capsys.readouterr().err == f"genesis segment: coins.png: {note}\n"
    assert results("coins")[0]["note"] == note
    assert segment("coins.png", *UNET, "--overlap", "64", "--tile", "128", "--out", "small") == 0
    np.testing.assert_array_equal(results("coins")[1], results("coins", "small")[1])


@pytest.mark.gpu
def test_smaller_tiles_where_a_device_is_full(capsys: pytest.CaptureFixture[str]) -> None:
    noise(1024, 1024).save("large.png")
    command = ["large.png", *UNET]
    genesis.cuda.empty_cache()
    genesis.cuda.set_memory_limit(genesis.cuda.memory_reserved() + (32 << 20))  # the input of all takes 12 MB
    try:
        assert segment(*command, "--device", "cuda") == 0
    finally:
        genesis.cuda.set_memory_limit(None)
    assert "large.png: in tiles of " in capsys.readouterr().err
    tile = results("large")[0]["note"].split()[3].rstrip(",")
    assert segment(*command, "--tile", tile, "--out", "cpu") == 0
    assert (results("large")[1] == results("large", "cpu")[1]).mean() > 0.98


@pytest.mark.parametrize("tile", ["2048", "0"])
def test_no_memory_for_any_tile(tile: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    starve(monkeypatch, 40)
    Image.fromarray(data.coins()).save("coins.png")
    noise().save("small.png")
    assert segment("coins.png", "small.png", *UNET, "--tile", tile) == 1
    said = "not enough memory for it; try a smaller --tile or --resize"
    captured = capsys.readouterr()
    assert captured.err == f"genesis segment: coins.png: {said}\n"
    assert captured.out.startswith("1 of 2 pictures")


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_an_interrupt_keeps_what_is_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = report._write_png, []

    def interrupted(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 4:  # the second picture's overlay
            raise KeyboardInterrupt
        write(*arguments)

    for name in "abc":
        noise().save(f"{name}.png")
    with monkeypatch.context() as patch:
        patch.setattr(report, "_write_png", interrupted)
        assert segment("a.png", "b.png", "c.png", *UNET) == 130
    captured = capsys.readouterr()
    assert captured.out.startswith("interrupted after 1 of 3 pictures in ")
    assert captured.err == ""
    assert {path.name for path in Path("runs/segment").iterdir()} == {
        "a_mask.png", "a_overlay.png", "a.json", "b_mask.png",
    }  # fmt: skip
    assert segment("a.png", "b.png", "c.png", *UNET) == 0, "what the interrupted run left is its own"


def test_an_interrupt_between_two_pictures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Counter, name: str) -> None:
        raise KeyboardInterrupt

    for name in "ab":
        noise().save(f"{name}.png")
    monkeypatch.setattr(Counter, "advance", interrupted)
    assert segment("a.png", "b.png", *UNET) == 130
    captured = capsys.readouterr()
    assert captured.out.startswith("interrupted after 1 of 2 pictures in ")
    assert captured.err == ""


def test_ctrl_c_in_a_process() -> None:
    for number in range(300):
        noise().save(f"{number}.png")
    command = [sys.executable, "-m", "genesis", "segment", "*.png", *UNET]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if list(Path("runs/segment").glob("*.json")):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "")
    assert out.startswith("interrupted after ")
    done = int(out.split()[2])
    assert len(list(Path("runs/segment").glob("*.json"))) == done > 0
    assert not list(Path("runs/segment").glob(".*"))
