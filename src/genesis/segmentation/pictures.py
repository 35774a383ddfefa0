"""Picture files as their numbers, part by part.

Only the formats of FORMATS are opened, whatever a file's name ends with: some of Pillow's others start programs. A file
is refused by its header if it has too many pixels. What is decoded stays as the file has it, a byte per pixel of grey
or of a palette and four of colours; RGB and numbers are made of a part at a time.

Where kinds of pictures leave a choice: of an animation the first picture is taken; what is transparent is white; the
turn that a camera noted is made; 16-bit grey keeps its 16 bits.
"""

from __future__ import annotations

import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from genesis.errors import describe, is_out_of_memory
from genesis.segmentation.arrays import Array

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage
    from PIL.ImageFile import ImageFile

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")  # what is taken from a folder
MOST_MEGAPIXELS = 200.0
_WHITE_OF_16_BITS = 65535
_BLOCK = 1024

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class Picture:
    """An image of Pillow's as its file has it, upright, and what was done to it that its owner may not expect."""

    image: PillowImage
    note: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.image.size

    def part(self, box: Box) -> PillowImage:
        """A part, or all, as an image of mode "RGB", "L", or "F" (grey from 0 to 1)."""
        whole = (0, 0, *self.size)
        return _in_plain_mode(self.image if box == whole else self.image.crop(box))

    def values(self, channels: int, box: Box | None = None) -> Array:
        """A part, or all: (channels, H, W) float32 from 0 to 1; with 1 channel, grey."""
        return values(self.part(box or (0, 0, *self.size)), channels)

    def resized(self, shorter_side: int, longest: int) -> Picture:
        """In torchvision's way: the shorter side as given, bilinear with antialiasing, not beyond longest.

        Args:
            shorter_side: in pixels; 0 leaves the picture as it is.
            longest: the limit of the longer side.
        """
        from PIL import Image

        size = resized_size(self.size, shorter_side, longest)
        if size == self.size:
            return self
        return Picture(self._plain().resize(size, Image.Resampling.BILINEAR), self.note)

    def _plain(self) -> PillowImage:
        """All of it as by part(), without conversions of the whole at once."""
        from PIL import Image

        if self.image.mode in ("RGB", "L") and "transparency" not in self.image.info:
            return self.image
        plain: PillowImage | None = None
        for box in blocks(*self.size):
            part = self.part(box)
            if plain is None:
                plain = Image.new(part.mode, self.size)
            plain.paste(part, box)
        assert plain is not None, "a picture has at least one block"
        return plain


def blocks(width: int, height: int) -> Iterator[Box]:
    """Boxes of at most a megapixel that make up an image: what is done with one at a time takes little memory."""
    for top in range(0, height, _BLOCK):
        for left in range(0, width, _BLOCK):
            yield left, top, min(width, left + _BLOCK), min(height, top + _BLOCK)


def read(path: Path, argument: str = "image", most_megapixels: float = MOST_MEGAPIXELS) -> Picture:
    """The picture in a file.

    Args:
        argument: what the file was given as, for messages.
        most_megapixels: a larger picture is refused before it is decoded.
    Raises: ValueError: it is no picture, is damaged or too large, or has values that nobody knows the meaning of.
        OSError: it cannot be read.
    """
    from PIL import ImageOps

    with _opened(path, argument, most_megapixels) as file:
        num_frames = getattr(file, "n_frames", 1)
        image = ImageOps.exif_transpose(file)
        _check_range(image)
        _in_plain_mode(image.crop((0, 0, 1, 1)))  # fails, if nobody can tell its colours
        return Picture(image, f"the first of {num_frames} pictures in the file" if num_frames > 1 else "")


def read_indices(path: Path, most_megapixels: float = MOST_MEGAPIXELS) -> Array:
    """The numbers in a mask's file: (H, W) uint8 or uint16, without the colours of a palette.

    Raises: ValueError: it is no picture, is too large, or has several channels; OSError: it cannot be read.
    """
    with _opened(path, "mask", most_megapixels) as file:
        values = np.asarray(file)
    values = values.astype(values.dtype.newbyteorder("="), copy=False)
    if values.ndim != 2 or values.dtype not in (np.bool_, np.uint8, np.uint16, np.int32):
        kind = f"{values.shape[2]} channels" if values.ndim == 3 else f"values of type {values.dtype}"
        raise ValueError(describe("train", "mask", "one channel with a class's number per pixel", f"{path}: {kind}"))
    return values.astype(np.uint8) if values.dtype == np.bool_ else values


def values(image: PillowImage, channels: int) -> Array:
    """An image of mode "RGB", "L" or "F" as (channels, H, W) float32 from 0 to 1; with 1 channel, grey."""
    if channels == 1 and image.mode == "RGB":
        image = image.convert("L")
    array = np.asarray(image, dtype=np.float32)
    array = array if image.mode == "F" else array / np.float32(255)
    planes = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return np.ascontiguousarray(np.broadcast_to(planes, (channels, *planes.shape[1:])))


@contextmanager
def _opened(path: Path, argument: str, most_megapixels: float) -> Iterator[ImageFile]:
    """A file of one of FORMATS; whatever a decoder says in the block becomes one sentence with the file's name."""
    from PIL import Image, UnidentifiedImageError

    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(_refusal(argument, path, "not a regular file"))
    if path.stat().st_size == 0:
        raise ValueError(_refusal(argument, path, "an empty file"))
    size = "pixels"
    try:
        with _limited(most_megapixels), Image.open(path, formats=FORMATS) as file:
            width, height = file.size
            size = f"{width}×{height} pixels"
            yield file
    except Exception as error:  # a damaged file fails in as many ways as there are decoders
        if isinstance(error, OSError) and error.filename is not None:
            raise  # it is not there, or not to be read; the others are about what is in it
        reason = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = f"cannot identify it as {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        elif isinstance(error, Image.DecompressionBombError):
            reason = f"more than {most_megapixels:g} megapixels, which --max-megapixels allows"
        elif is_out_of_memory(error):
            reason = f"there is no memory for its {size}"
        raise ValueError(_refusal(argument, path, reason)) from None


@contextmanager
def _limited(most_megapixels: float) -> Iterator[None]:
    """Pillow checks the size of a picture, its tiles and frames against a limit of the process before it decodes."""
    from PIL import Image

    before = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = int(most_megapixels * 1e6 / 2)  # a picture twice as large is refused
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of half the limit, and of damage in what is no part of the picture
            yield
    finally:
        Image.MAX_IMAGE_PIXELS = before


def resized_size(size: tuple[int, int], shorter_side: int, longest: int) -> tuple[int, int]:
    """Width and height of Picture.resized()."""
    if not shorter_side:
        return size
    short, long = sorted(size)
    new_short, new_long = shorter_side, int(shorter_side * long / short)
    if new_long > longest:
        new_short, new_long = max(1, int(longest * new_short / new_long)), longest
    return (new_short, new_long) if size[0] <= size[1] else (new_long, new_short)


def _in_plain_mode(image: PillowImage) -> PillowImage:
    """RGB, L, or, of deep grey, F from 0 to 1."""
    from PIL import Image

    if _is_deep(image):
        return Image.fromarray(np.asarray(image).astype(np.float32) / _white(image))
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    if image.mode in ("RGB", "L"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")


def _check_range(image: PillowImage) -> None:
    """Deep grey must be from 0 to white: nobody knows what else it means."""
    if not _is_deep(image) or image.mode.startswith("I;16"):
        return
    white = _white(image)
    for box in blocks(*image.size):
        array = np.asarray(image.crop(box))
        if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= white):
            raise ValueError(f"its values go from {array.min():g} to {array.max():g}, and not from 0 to {white}")


def _is_deep(image: PillowImage) -> bool:
    return image.mode.startswith("I") or image.mode == "F"


def _white(image: PillowImage) -> int:
    return 1 if image.mode == "F" else _WHITE_OF_16_BITS


def _refusal(argument: str, path: Path, reason: str) -> str:
    return describe("segmentation", argument, "a picture", f"{path}: {reason}")
