"""Random crops for training, each a function of seed, epoch and position alone: resuming needs no generator's state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, count, islice
from typing import NamedTuple

import numpy as np

from genesis.segmentation import interrupts, ranks
from genesis.segmentation.arrays import Array
from genesis.segmentation.examples import Example, Source
from genesis.segmentation.metrics import IGNORED
from genesis.tensor import Tensor


class Draw(NamedTuple):
    """The position-th crop of an epoch is cut from this picture."""

    epoch: int
    position: int
    picture: int


class Crops:
    """Crops of size × size from the examples of a source, by their Draw.

    They are mirrored, made brighter or darker and, where there is no up and down, turned by quarters. Where a picture
    is smaller than a crop, its last rows and columns are repeated, and these don't count.
    """

    def __init__(self, source: Source, size: int, seed: int, turns: bool) -> None:
        self.source, self.size, self.seed, self.turns = source, size, seed, turns

    def __getitem__(self, draw: Draw) -> tuple[Array, Array]:
        generator = np.random.default_rng([self.seed, draw.epoch, draw.position])
        values, labels = _cut(self.source[draw.picture], self.size, generator)
        turns = int(generator.integers(4)) if self.turns else 0
        values, labels = np.rot90(values, turns, axes=(1, 2)), np.rot90(labels, turns)
        if generator.random() < 0.5:
            values, labels = values[:, :, ::-1], labels[:, ::-1]
        contrast, brightness = generator.uniform(0.7, 1.3), generator.uniform(-0.15, 0.15)
        values = np.clip(values * contrast + brightness, 0, 1, dtype=np.float32)
        return np.ascontiguousarray(values), np.ascontiguousarray(labels, dtype=np.int64)


def batches(
    crops: Crops, epoch: int, num_batches: int, batch_size: int, skip: int = 0, workers: int = 0
) -> Iterator[list[Tensor]]:
    """The batches of an epoch from the skip-th on: images (N, 3, size, size) float32, labels (N, size, size) int64.

    Of several ranks, each has its part of each batch.

    All pictures are gone through in a new random order, again and again until there are enough crops.

    Args:
        workers: processes that prepare batches; their number changes nothing else.
    """
    from genesis.data import DataLoader  # which imports torch: the command line starts without it

    chosen = map(ranks.part, islice(_batches_of_draws(crops, epoch, batch_size), skip, num_batches))
    loader = iter(DataLoader(crops, batch_sampler=chosen, num_workers=workers))
    held = interrupts.first_held if workers else nullcontext
    try:
        while True:
            with held():  # while workers start, hand over a batch, and end
                batch = next(loader, None)
            if batch is None:
                return
            yield batch
    finally:
        with held():
            loader.close()


def _batches_of_draws(crops: Crops, epoch: int, batch_size: int) -> Iterator[list[Draw]]:
    """Without end, so that an epoch takes no more memory the more steps it has."""
    generator = np.random.default_rng([crops.seed, epoch])
    order = chain.from_iterable(generator.permutation(len(crops.source)).tolist() for _ in count())
    for first in count(0, batch_size):
        yield [Draw(epoch, first + place, picture) for place, picture in enumerate(islice(order, batch_size))]


def _cut(example: Example, size: int, generator: np.random.Generator) -> tuple[Array, Array]:
    values, labels = example
    height, width = labels.shape
    missing = (0, max(0, size - height)), (0, max(0, size - width))
    if any(after for _, after in missing):
        values = np.pad(values, ((0, 0), *missing), mode="edge")
        labels = np.pad(labels, missing, constant_values=IGNORED)
    top = generator.integers(labels.shape[0] - size + 1)
    left = generator.integers(labels.shape[1] - size + 1)
    return values[:, top : top + size, left : left + size], labels[top : top + size, left : left + size]
