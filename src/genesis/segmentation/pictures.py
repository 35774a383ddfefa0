"""Any picture file as RGB, and masks as PNG files.

Where kinds of pictures leave a choice: of an animation the first picture is taken; what is transparent is white; the
turn that a camera noted is made; 16-bit grey keeps its 16 bits.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genesis.errors import describe
from genesis.files import replaced

ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")  # what is taken from a folder
_WHITE_OF_16_BITS = 65535


@dataclass(frozen=True)
class Picture:
    """An image of Pillow's, and what was done to it that its owner may not expect."""

    image: Any  # PIL.Image.Image of mode "RGB", or "F" (grey from 0 to 1)
    note: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self.image.size


def read(path: Path, argument: str = "image") -> Picture:
    """The picture in a file.

    Args:
        argument: what the file was given as, for messages.
    Raises: ValueError: it is no picture, is damaged, or has values that nobody knows the meaning of. OSError: it
        cannot be read.
    """
    from PIL import Image

    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(_refusal(argument, path, "an empty file"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # large pictures are cut into tiles
            with Image.open(path) as file:
                num_frames = getattr(file, "n_frames", 1)
                image = _in_rgb(_upright(file))
    except Exception as error:  # a damaged file fails in as many ways as there are decoders
        if isinstance(error, OSError) and error.filename is not None:
            raise  # it is not there, or not to be read; the others are about what is in it
        raise ValueError(_refusal(argument, path, str(error) or type(error).__name__)) from None
    return Picture(image, f"the first of {num_frames} pictures in the file" if num_frames > 1 else "")


def read_indices(path: Path) -> np.ndarray:
    """The numbers in a mask's file: (H, W) uint8 or uint16, without the colours of a palette.

    Raises: ValueError: it is no picture, or has several channels; OSError: it cannot be read.
    """
    from PIL import Image

    try:
        with Image.open(path) as file:
            values = np.asarray(file)
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise ValueError(_refusal("mask", path, str(error) or type(error).__name__)) from None
    if values.ndim != 2 or values.dtype not in (np.bool_, np.uint8, np.uint16, np.int32):
        kind = f"{values.shape[2]} channels" if values.ndim == 3 else f"values of type {values.dtype}"
        raise ValueError(describe("train", "mask", "one channel with a class's number per pixel", f"{path}: {kind}"))
    return values.astype(np.uint8) if values.dtype == np.bool_ else values


def resized(image: Any, shorter_side: int, longest: int) -> Any:
    """The image in torchvision's way: its shorter side as given, bilinear with antialiasing, not beyond longest.

    Args:
        shorter_side: in pixels; 0 leaves the image as it is.
        longest: the limit of the longer side.
    """
    from PIL import Image

    if not shorter_side:
        return image
    short, long = sorted(image.size)
    new_short, new_long = shorter_side, int(shorter_side * long / short)
    if new_long > longest:
        new_short, new_long = max(1, int(longest * new_short / new_long)), longest
    width, height = image.size
    size = (new_short, new_long) if width <= height else (new_long, new_short)
    return image if size == image.size else image.resize(size, Image.Resampling.BILINEAR)


def values(image: Any, channels: int) -> np.ndarray:
    """(channels, H, W) float32 from 0 to 1; with 1 channel, grey."""
    if channels == 1 and image.mode == "RGB":
        image = image.convert("L")
    array = np.asarray(image, dtype=np.float32)
    array = array if image.mode == "F" else array / np.float32(255)
    planes = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return np.ascontiguousarray(np.broadcast_to(planes, (channels, *planes.shape[1:])))


def save_png(image: Any, path: Path) -> None:
    """Write an image of Pillow's, in place of what was there."""
    with replaced(path) as temporary:
        image.save(temporary, format="PNG")


def _upright(file: Any) -> Any:
    from PIL import ImageOps

    return ImageOps.exif_transpose(file)


def _in_rgb(image: Any) -> Any:
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        return _deep_grey(image)
    if "A" in image.getbands() or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return image.convert("RGB")


def _deep_grey(image: Any) -> Any:
    """Grey of 16 bits and more, from 0 to 1."""
    from PIL import Image

    white = 1 if image.mode == "F" else _WHITE_OF_16_BITS
    array = np.asarray(image).astype(np.float32)
    if not (np.isfinite(array).all() and array.min() >= 0 and array.max() <= white):
        raise ValueError(f"its values go from {array.min():g} to {array.max():g}, and not from 0 to {white}")
    return Image.fromarray(array / white)


def _refusal(argument: str, path: Path, reason: str) -> str:
    return describe("segmentation", argument, "a picture", f"{path}: {reason}")
