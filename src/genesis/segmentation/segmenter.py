"""A network at work: a picture in, the number of a class for each of its pixels out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypedDict, Unpack

import numpy as np

import genesis
from genesis import nn
from genesis.dtypes import DType
from genesis.errors import describe, is_out_of_memory
from genesis.segmentation import tiles
from genesis.segmentation.arrays import Array
from genesis.segmentation.pictures import Picture, blocks, resized_size
from genesis.segmentation.recipe import Recipe
from genesis.segmentation.tiles import Window

PRECISIONS = {"float32": genesis.float32, "bfloat16": genesis.bfloat16, "float16": genesis.float16}
OVERLAP = 128
LARGEST = 2048  # an image with a longer side is cut into tiles of it
_MOST_ELONGATED = 8  # a resized picture is at most so many times longer than wide
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.GroupNorm, nn.LayerNorm)
_ROWS_AT_ONCE, _COLUMNS_AT_ONCE = 64, 2048

if TYPE_CHECKING:
    Slice = slice[int, int, None]
    Part = Callable[[Slice, Slice], Array]  # the rows and columns of an image as (channels, H, W) from 0 to 1


class Options(TypedDict, total=False):
    """Arguments of Segmenter."""

    tile: int
    overlap: int
    resize: int | None


def for_inference(
    model: nn.Module, recipe: Recipe, device: str = "cpu", precision: str = "float32", **options: Unpack[Options]
) -> Segmenter:
    """A Segmenter with the model brought into eval mode, to a device and a precision, without its auxiliary head.

    Args:
        precision: "float32", "bfloat16" or "float16", of weights and activations; norms stay float32.
        options: tile, overlap, resize of Segmenter.
    """
    if precision not in PRECISIONS:
        raise ValueError(describe("segment", "precision", f"one of {', '.join(PRECISIONS)}", repr(precision)))
    segmenter = Segmenter(model, recipe, device, PRECISIONS[precision], **options)
    if isinstance(getattr(model, "aux_classifier", None), nn.Module):
        model.aux_classifier = None
    _in_precision(model, PRECISIONS[precision]).to(device).eval()
    return segmenter


class Segmenter:
    """A network, its recipe, and how it runs.

    Args:
        model: on device, of dtype; it runs in the mode that it is in.
        tile: cut images longer than this into tiles of this size; 0: never.
        overlap: what neighbouring tiles both see.
        resize: the shorter side of what goes in, instead of the recipe's.
    """

    def __init__(
        self, model: nn.Module, recipe: Recipe, device: str = "cpu", dtype: DType = genesis.float32,
        tile: int = LARGEST, overlap: int = OVERLAP, resize: int | None = None,
    ) -> None:  # fmt: skip
        if tile:
            tiles.windows(1, tile, overlap)  # checks them
        self.model, self.recipe, self.tile, self.overlap = model, recipe, tile, overlap
        self._tile_asked_for = tile
        self.resize = recipe.resize if resize is None else resize
        self._device, self._dtype = device, dtype

    def labels(self, picture: Picture) -> Array:
        """The class of each pixel of a picture: (H, W) uint8, or uint16 of more than 256 classes.

        Where a tile finds no memory, tiles of half the size are tried, for this picture and those that follow.
        """
        while True:
            try:
                return self._labels(picture)
            except Exception as error:
                smaller = self._smaller_tile(picture)
                if not (smaller and is_out_of_memory(error)):
                    raise
            self.tile = smaller  # behind the block that keeps what the error's frames hold

    def note(self, picture: Picture) -> str:
        """A remark on the labels of a picture that its owner may not expect."""
        if self.tile == self._tile_asked_for or self._longest(picture) <= self.tile:
            return ""
        return f"in tiles of {self.tile}, as memory did not suffice for {self._tile_asked_for}"

    def classes(self, values: Array) -> Array:
        """The class of each pixel of an image as numbers, (channels, H, W) from 0 to 1."""
        return self._decided(lambda rows, columns: values[:, rows, columns], *values.shape[1:])

    def logits(self, values: Array) -> Array:
        """The network's logits for an image: (channels, H, W) from 0 to 1 → (num_classes, H, W) float32."""
        whole: Array | None = None
        height, width = values.shape[1:]
        for rows, columns, logits in self._tile_logits(lambda *part: values[:, *part], height, width):
            if whole is None:
                whole = np.empty((logits.shape[0], height, width), np.float32)
            whole[:, rows.core, columns.core] = logits
        assert whole is not None  # there is at least one tile
        return whole

    def _labels(self, picture: Picture) -> Array:
        smaller = picture.resized(self.resize, _MOST_ELONGATED * self.resize)
        width, height = picture.size
        channels = self.recipe.channels
        if smaller.size != picture.size:
            return enlarged_labels(self.logits(smaller.values(channels)), height, width)

        def part(rows: Slice, columns: Slice) -> Array:
            return picture.values(channels, (columns.start, rows.start, columns.stop, rows.stop))

        return self._decided(part, height, width)

    def _decided(self, part: Part, height: int, width: int) -> Array:
        """The class of each pixel; no logits are kept but those of one tile."""
        found = np.empty((height, width), label_dtype(len(self.recipe.classes)))
        for rows, columns, logits in self._tile_logits(part, height, width):
            found[rows.core, columns.core] = decide(logits)
        return found

    def _tile_logits(self, part: Part, height: int, width: int) -> Iterator[tuple[Window, Window, Array]]:
        """Tile by tile, its windows and the logits of its core."""
        mean, std = self._normalization(part, height, width)
        tile = self.tile if max(height, width) > self.tile else 0
        for rows, columns in tiles.grid(height, width, tile, self.overlap):
            logits = self._run((part(rows.seen, columns.seen) - mean) / std)
            yield rows, columns, logits[:, rows.core_in_seen, columns.core_in_seen]

    def _smaller_tile(self, picture: Picture) -> int:
        """The tile halved until it cuts the picture; 0 if that leaves less than the overlap."""
        tile = self.tile // 2
        while tile >= self._longest(picture):
            tile //= 2
        return tile if tile > self.overlap and tile % tiles.ALIGNMENT == 0 else 0

    def _longest(self, picture: Picture) -> int:
        """Pixels of the longer side of what goes in."""
        return max(resized_size(picture.size, self.resize, _MOST_ELONGATED * self.resize))

    def _run(self, values: Array) -> Array:
        """The network on one tile, its sizes padded to the multiples that it needs."""
        height, width = values.shape[1:]
        multiple = self.recipe.multiple
        padded = np.pad(values, ((0, 0), (0, -height % multiple), (0, -width % multiple)), mode="reflect")
        with genesis.no_grad():
            output = self.model(genesis.from_numpy(padded[None]).to(self._device).to(self._dtype))
        logits = output["out"] if isinstance(output, dict) else output
        return logits.to(genesis.float32).cpu().numpy()[0, :, :height, :width]

    def _normalization(self, part: Part, height: int, width: int) -> tuple[Array | np.float32, Array | np.float32]:
        """(mean, standard deviation): subtracted from an image, then divided by."""
        mean, std = self.recipe.mean, self.recipe.std
        if mean is not None and std is not None:
            return _per_channel(mean), _per_channel(std)
        total = squares = count = 0.0
        for left, top, right, bottom in blocks(width, height):
            values = part(slice(top, bottom), slice(left, right))
            total += values.sum(dtype=np.float64)
            squares += np.square(values, dtype=np.float64).sum()
            count += values.size
        deviation = max(0.0, squares / count - (total / count) ** 2) ** 0.5
        return np.float32(total / count), np.float32(deviation + 1e-6)


def label_dtype(num_classes: int) -> type[np.uint8 | np.uint16]:
    """The dtype of labels of so many classes; one logit decides between two."""
    return np.uint8 if num_classes <= 256 else np.uint16


def decide(logits: Array) -> Array:
    """(num_classes, H, W) → (H, W): the class with the largest logit; of one logit, whether it is above 0."""
    found = logits[0] > 0 if len(logits) == 1 else logits.argmax(axis=0)
    return found.astype(label_dtype(len(logits)))


def enlarged_labels(logits: Array, height: int, width: int) -> Array:
    """The class of each pixel of a larger (or smaller) image: decided after the logits were interpolated.

    As interpolate(mode="bilinear") and decide(), but a block at a time: the logits of a whole photograph with many
    classes would take gigabytes.
    """
    top, bottom, down = _neighbours(logits.shape[1], height)
    left, right, across = _neighbours(logits.shape[2], width)
    found = np.empty((height, width), label_dtype(len(logits)))
    for start in range(0, height, _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        first, part = top[start], down[rows, None]
        source = logits[:, first : bottom[rows][-1] + 1]
        for begin in range(0, width, _COLUMNS_AT_ONCE):
            columns = slice(begin, begin + _COLUMNS_AT_ONCE)
            share = across[columns]
            wide = source[:, :, left[columns]] * (1 - share) + source[:, :, right[columns]] * share
            above, below = wide[:, top[rows] - first], wide[:, bottom[rows] - first]
            found[rows, columns] = decide(above * (1 - part) + below * part)
    return found


def _neighbours(old: int, new: int) -> tuple[Array, Array, Array]:
    """Compute, for each new position, the old ones before and after it, and the fraction of the way between them."""
    position = np.clip((np.arange(new) + 0.5) * (old / new) - 0.5, 0, old - 1)
    before = position.astype(np.int64)
    return before, np.minimum(before + 1, old - 1), (position - before).astype(np.float32)


def _per_channel(numbers: tuple[float, ...]) -> Array:
    return np.array(numbers, np.float32).reshape(-1, 1, 1)


def _in_precision(model: nn.Module, dtype: DType) -> nn.Module:
    """The model with the parameters of all but its norms in dtype."""
    for module in model.modules():
        if not list(module.children()) and not isinstance(module, _NORMS):
            module.to(dtype)
    return model
